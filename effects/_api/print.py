"""Printing from inside compiled programs."""

from __future__ import annotations

from typing import Any

from effects import _jax
from effects._api.registry import register_effect
from effects._model.arguments import take_arguments
from effects._model.effect import PROGRAM, Effect
from effects._model.format import check_format
from effects._model.line import Line
from effects._model.primitive import effect_p
from effects._model.site import Site
from effects._model.where import where_called

PRINT = register_effect(Effect("print", domain=PROGRAM))


@_jax.for_users
def print(fmt: str, /, *args: Any, ordered: bool = True, per_shard: bool = False, **kwargs: Any) -> None:
    """Prints a line when the program reaches this point, in program order.

    Works inside `fx.jit`, inside `jax.jit`, and eagerly. The line goes to the `sys.stdout` that was in force when the
    program was called.

    Args:
        fmt: A format as for `str.format`. A field `{device}` that is no argument is the device that has the effect,
            `{lane}` the lane under `vmap`, and in a Pallas kernel `{grid}` is the index of the program in its grid.
        *args: Values for the format's positional fields: pytrees of arrays; strings, numbers and None as they are,
            and of other objects the text that they have while tracing.
            Arrays are shown as NumPy arrays, PRNG keys as their key data.
        ordered: Whether the line must come in program order. Unordered lines come when they come.
        per_shard: Whether each shard of sharded arrays is printed by itself, on the device that has it, without
            gathering. The line begins with device and index, unless the format has fields `{device}` or `{index}`.
        **kwargs: Values for the format's named fields.

    Raises:
        FormatError: while tracing, if format and arguments do not fit together.
        TypeError: while tracing, if an argument is an object with a traced value inside that the format shows.

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
    fmt, leaves, of_record = check_format("fx.print", fmt, leaves, tree, where, per_shard)
    effect = PRINT if ordered else PRINT.unordered()
    site = Site(effect, Line(fmt, of_record=of_record), leaves, tree, where, per_shard=bool(per_shard))
    effect_p.bind(*operands, site=site)
