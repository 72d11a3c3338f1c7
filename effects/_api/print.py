"""Printing from inside compiled programs."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from effects import _jax
from effects._model.effect import PROGRAM, Effect, host_effect, register_effect
from effects._model.filter import choose
from effects._model.line import Line, check_format
from effects._model.operand import take_arguments
from effects._model.primitive import bind_where, take_when
from effects._model.print_grad import print_grad_p
from effects._model.site import Site
from effects._model.where import where_called

PRINT = register_effect(Effect("print", domain=PROGRAM))


@_jax.for_users
def print(
    fmt: str,
    /,
    *args: Any,
    ordered: bool = True,
    per_shard: bool = False,
    level: int | str = "info",
    logger: str | None = None,
    every: int | None = None,
    first: int | None = None,
    min_seconds: float | None = None,
    when: Any = None,
    effect: Effect | str | None = None,
    **kwargs: Any,
) -> None:
    """Prints a line when the program reaches this point, in program order.

    Works inside `fx.jit`, inside `jax.jit`, and eagerly. The line goes to the `sys.stdout` that was in force when the
    program was called.

    Args:
        fmt: A format as for `str.format`. Some fields need no argument: `{device}` is the device that has the effect
            (-1 if all have it, or if it is not known), `{lane}` is the lane under `vmap`, and in a Pallas kernel
            `{grid}` is the index of the program in its grid.
        *args: Values for the format's positional fields: pytrees of arrays; strings, numbers and None as they are,
            and of other objects the text that they have while tracing.
            Arrays are shown as NumPy arrays, PRNG keys as their key data. `{:stats}` shows minimum, maximum, mean and
            norm of an array's finite elements and the fractions of zeros and of nonfinite elements; of a pytree, such
            as parameters or gradients, in a line for each leaf.
        ordered: True if the line must come in program order. An unordered line may come at any time.
        per_shard: True to print each shard of sharded arrays on its device, without a gather. The line begins with
            device and index, unless the format has fields `{device}` or `{index}`.
        level: The level of the line: a number as for `logging`, or a name such as `"warning"`. The line is left out if
            its level is below the logger's when the program gets here.
        logger: The name of the logger whose level counts, `effects` by default.
        every: A number n: the first line is shown, and each n-th after it, over loops and calls of the program. A
            `vmap` counts once for all lanes.
        first: The maximum number of lines shown, on each device of a `jax.shard_map`.
        min_seconds: The minimum number of seconds since the last line that was shown. So it depends on time.
        when: A boolean, which the program may compute: if it is false, nothing is shown, as in a `cond`.
        effect: A registered `fx.Effect`, or its name, in place of `print`. Its order domain is then that of the line.
        **kwargs: Values for the format's named fields.

    Raises:
        FormatError: while tracing, if format and arguments do not fit together.
        TypeError, ValueError: while tracing, if an argument is an object with a traced value inside that the format
            shows, or one of `level` to `when` is not as described.

    Example:
        >>> import effects as fx, jax
        >>> @fx.jit
        ... def f(n):
        ...     jax.lax.fori_loop(0, n, lambda i, _: fx.print("step {}", i), None)
        >>> f(2)
        >>> fx.effects_barrier()
        step 0
        step 1
    """
    where = where_called()
    operands, leaves, tree = take_arguments(args, kwargs, "fx.print", where, takes_objects=True)
    fmt, leaves, record_fields = check_format("fx.print", fmt, leaves, tree, where, per_shard)
    asked = choose("fx.print", where, level, logger, every, first, min_seconds)
    content = Line(fmt, record_fields=record_fields)
    chosen = host_effect("fx.print", where, effect, PRINT, ordered)
    site = Site(chosen, content, leaves, tree, where, per_shard=bool(per_shard), filter=asked)
    bind_where(when, operands, site, "fx.print")


# Printing cotangents.

T = TypeVar("T")


@_jax.for_users
def print_grad(
    fmt: str,
    x: T,
    /,
    *args: Any,
    ordered: bool = True,
    level: int | str = "info",
    logger: str | None = None,
    every: int | None = None,
    first: int | None = None,
    min_seconds: float | None = None,
    when: Any = None,
    effect: Effect | str | None = None,
    **kwargs: Any,
) -> T:
    """Returns `x`, and prints its cotangent in the backward pass.

    The line comes in program order, at its place in the backward pass: after the effects of the forward pass, and in a
    loop the last iteration first. Without a backward pass nothing is printed.

    Args:
        fmt: A format as for `fx.print`, whose first argument is the cotangent, in the structure of `x`.
        x: A pytree of arrays. Integers have no cotangent; None stands in their place.
        *args: Further values for the format, of the forward pass.
        ordered, level, logger, every, first, min_seconds, when, effect: As for `fx.print`. They apply to the lines of
            the backward pass.
        **kwargs: Values for the format's named fields, of the forward pass.

    Returns:
        `x`.

    Raises:
        FormatError: while tracing, if the format does not fit.
        TypeError, ValueError: while tracing, if one of `level` to `when` is not as described.

    Example:
        >>> import effects as fx, jax
        >>> @fx.jit
        ... @jax.grad
        ... def f(x):
        ...     return fx.print_grad("gradient of the square: {}, at x = {}", x * x, x) * 3
        >>> f(2.0)
        Array(12., dtype=float32, weak_type=True)
        >>> fx.effects_barrier()
        gradient of the square: 3.0, at x = 2.0
    """
    where = where_called()
    leaves, tree = jax.tree.flatten(x)
    leaves = [jnp.asarray(leaf) if isinstance(leaf, (float, complex)) else leaf for leaf in leaves]
    flows = [_has_cotangent(leaf) for leaf in leaves]
    shown = tree.unflatten([leaf if flows_back else None for leaf, flows_back in zip(leaves, flows, strict=True)])
    operands, arguments, arguments_tree = take_arguments((shown, *args), kwargs, "fx.print_grad", where, True)
    fmt, arguments, record_fields = check_format("fx.print_grad", fmt, arguments, arguments_tree, where)
    asked = choose("fx.print_grad", where, level, logger, every, first, min_seconds)
    chosen = host_effect("fx.print_grad", where, effect, PRINT, ordered)
    site = Site(chosen, Line(fmt, record_fields=record_fields), arguments, arguments_tree, where, filter=asked)
    values = [leaf for leaf, back in zip(leaves, flows, strict=True) if back]
    given = [*values, *map(jax.lax.stop_gradient, operands[len(values) :])]
    if (holds := take_when(when, site, "fx.print_grad")) is not True:
        site, given = site.with_mask(), [jnp.asarray(holds), *given]
    outs = iter(print_grad_p.bind(*given, site=site))
    return tree.unflatten([next(outs) if back else leaf for leaf, back in zip(leaves, flows, strict=True)])


def _has_cotangent(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.inexact))
