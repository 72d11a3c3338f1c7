"""Loops of JAX with a bar, in two levels: the outer one reports the progress, and the inner one is as fast as
before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from effects import _jax, _removed
from effects._model.dependency import add_dependency
from effects._model.where import Where, where_called
from effects.extensions.progress import PROGRESS
from effects.extensions.progress.api import Progress


class _Loop:
    """The bar of a loop, and the user's line that began it."""

    def __init__(self, call: str, where: Where, total: Any, description: str, every: int | None):
        self.bar = Progress(total, description, every, PROGRESS, call, where)
        self._where = where

    def says(self, done: Any, carry: Any) -> None:
        """Records that `done` steps are done, once the carry has been computed."""
        leaves = [leaf for leaf in jax.tree.leaves(carry) if isinstance(leaf, jax.Array)]
        if isinstance(done, _jax.Tracer) and leaves:
            [done] = add_dependency([lax.stop_gradient(leaf) for leaf in leaves], [done])
        self.bar.record(done, self._where)


def _as_one_program(run: Callable[..., Any], *arrays: Any) -> Any:
    """Runs a loop with its bar. Outside of programs the two become one program, as one loop of JAX does."""
    return (_jax.jit(run) if _jax.is_outside_of_traces() else run)(*arrays)


@_jax.for_users
@_removed.without_arguments("fx.scan_with_progress", "lanes")
def scan_with_progress(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    description: str = "",
    every: int | None = None,
) -> tuple[Any, Any]:
    """`jax.lax.scan` with a bar.

    Args:
        f, init, xs, length, reverse, unroll: As for `jax.lax.scan`.
        description, every: As for `fx.progress`.

    Returns:
        What `jax.lax.scan` returns.

    Example:
        >>> import effects as fx, jax.numpy as jnp
        >>> @fx.jit
        ... def total(xs):
        ...     return fx.scan_with_progress(lambda sum, x: (sum + x, sum), 0.0, xs, description="sum")[0]
        >>> with fx.capture(suppress=True) as records:
        ...     print(total(jnp.arange(5.0)))
        10.0
        >>> records[0].text, records[-1].text
        ('sum: 0/5', 'sum: 5/5')
    """
    where = where_called(2)  # past `without_arguments`
    shapes = [jnp.shape(x) for x in jax.tree.leaves(xs)]
    lengths = {shape[0] for shape in shapes if shape} | ({length} if length is not None else set())
    if len(lengths) != 1 or () in shapes:
        return lax.scan(f, init, xs, length, reverse, unroll)  # raises JAX's error
    [total] = lengths
    loop = _Loop("fx.scan_with_progress", where, total, description, every)
    steps = loop.bar.steps()
    whole, rest = divmod(total, steps)

    def cut(x: Any) -> tuple[Any, Any]:
        """Splits an array into whole chunks and the elements that come last."""
        x = jnp.asarray(x)
        first, last = (x[rest:], x[:rest]) if reverse else (x[: total - rest], x[total - rest :])
        return first.reshape(whole, steps, *x.shape[1:]), last

    def chunk(carry: Any, at: Any) -> Any:
        number, xs = at
        carry, ys = lax.scan(f, carry, xs, steps, reverse, unroll)
        loop.says((number + 1) * steps, carry)
        return carry, ys

    def run(init: Any, xs: Any) -> tuple[Any, Any]:
        leaves, tree = jax.tree.flatten(xs)
        cuts = [*map(cut, leaves)]
        loop.says(0, init)
        numbers = np.arange(whole)[::-1] if reverse else np.arange(whole)
        carry, ys = lax.scan(chunk, init, (numbers, tree.unflatten([first for first, _ in cuts])), whole, reverse)
        ys = jax.tree.map(lambda y: y.reshape(whole * steps, *y.shape[2:]), ys)
        if rest:
            carry, others = lax.scan(f, carry, tree.unflatten([last for _, last in cuts]), rest, reverse, unroll)
            loop.says(total, carry)
            ys = jax.tree.map(lambda y, other: jnp.concatenate((other, y) if reverse else (y, other)), ys, others)
        return carry, ys

    return _as_one_program(run, init, xs)


@_jax.for_users
@_removed.without_arguments("fx.fori_loop_with_progress", "lanes")
def fori_loop_with_progress(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, Any], Any],
    init_val: Any,
    *,
    unroll: int | bool | None = None,
    description: str = "",
    every: int | None = None,
) -> Any:
    """`jax.lax.fori_loop` with a bar.

    Args:
        lower, upper, body_fun, init_val, unroll: As for `jax.lax.fori_loop`.
        description, every: As for `fx.progress`.

    Returns:
        What `jax.lax.fori_loop` returns.

    Example:
        >>> import effects as fx
        >>> with fx.capture(suppress=True) as records:
        ...     print(fx.jit(lambda x: fx.fori_loop_with_progress(0, 4, lambda i, x: x * 2, x))(1))
        16
        >>> records[-1].text
        '4/4'
    """
    where = where_called(2)  # past `without_arguments`
    total = upper - lower
    total = max(0, int(total)) if not isinstance(total, _jax.Tracer) else jnp.maximum(0, total)
    loop = _Loop("fx.fori_loop_with_progress", where, total, description, every)
    steps = loop.bar.steps()

    def run(first: Any, last: Any, carry: Any) -> Any:
        return lax.fori_loop(first, last, body_fun, carry, unroll=unroll)

    if isinstance(total, _jax.Tracer):

        def some(at: Any) -> Any:
            done, carry = at
            then = jnp.minimum(done + steps, total)
            carry = run(lower + done, lower + then, carry)
            loop.says(then, carry)
            return then, carry

        loop.says(0, init_val)
        return lax.while_loop(lambda at: at[0] < total, some, (jnp.zeros_like(total), init_val))[1]
    whole, rest = divmod(total, steps)

    def chunk(number: Any, carry: Any) -> Any:
        first = lower + number * steps
        # The trip count is static though the first index is not: `fori_loop` becomes a scan, and has a reverse
        # derivative.
        carry = lax.fori_loop(0, steps, lambda i, carry: body_fun(first + i, carry), carry, unroll=unroll)
        loop.says((number + 1) * steps, carry)
        return carry

    def run_all(carry: Any) -> Any:
        loop.says(0, carry)
        carry = lax.fori_loop(0, whole, chunk, carry)
        if rest:
            carry = run(upper - rest, upper, carry)
            loop.says(total, carry)
        return carry

    return _as_one_program(run_all, init_val)
