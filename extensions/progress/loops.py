"""Loops of JAX with a bar, in two levels: the outer one says how far it is, and the inner one is as fast as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from effects import _jax
from effects._model.after import after
from effects._model.where import Where, where_called
from effects.extensions.progress import PROGRESS
from effects.extensions.progress.api import Progress

Lanes = Literal["slowest", "each"]


class _Loop:
    """The bar of a loop, and the user's line that began it."""

    def __init__(self, call: str, where: Where, total: Any, description: str, every: int | None, lanes: Lanes):
        self.bar = Progress(total, description, every, lanes, PROGRESS, call, where)
        self._where = where

    def says(self, done: Any, carry: Any) -> None:
        """So many steps are done when the carried values are there."""
        leaves = [leaf for leaf in jax.tree.leaves(carry) if isinstance(leaf, jax.Array)]
        if isinstance(done, _jax.Tracer) and leaves:
            [done] = after([lax.stop_gradient(leaf) for leaf in leaves], [done])
        self.bar.record(done, self._where)


def _as_one_program(run: Callable[..., Any], *arrays: Any) -> Any:
    """Outside of programs a loop is a program with all of its bar, as one of JAX's loops is by itself."""
    return (jax.jit(run) if _jax.is_outside_of_traces() else run)(*arrays)


@_jax.for_users
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
    lanes: Lanes = "slowest",
) -> tuple[Any, Any]:
    """`jax.lax.scan` with a bar.

    Args:
        f, init, xs, length, reverse, unroll: As for `jax.lax.scan`.
        description, every, lanes: As for `fx.progress`.

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
    where = where_called()
    shapes = [jnp.shape(x) for x in jax.tree.leaves(xs)]
    lengths = {shape[0] for shape in shapes if shape} | ({length} if length is not None else set())
    if len(lengths) != 1 or () in shapes:
        return lax.scan(f, init, xs, length, reverse, unroll)  # which says what is wrong
    [total] = lengths
    loop = _Loop("fx.scan_with_progress", where, total, description, every, lanes)
    steps = loop.bar.steps()
    whole, rest = divmod(total, steps)

    def cut(x: Any) -> tuple[Any, Any]:
        """The elements of whole chunks, and those that come last."""
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
def fori_loop_with_progress(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, Any], Any],
    init_val: Any,
    *,
    unroll: int | bool | None = None,
    description: str = "",
    every: int | None = None,
    lanes: Lanes = "slowest",
) -> Any:
    """`jax.lax.fori_loop` with a bar.

    Args:
        lower, upper, body_fun, init_val, unroll: As for `jax.lax.fori_loop`.
        description, every, lanes: As for `fx.progress`.

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
    where = where_called()
    total = upper - lower
    total = max(0, int(total)) if not isinstance(total, _jax.Tracer) else jnp.maximum(0, total)
    loop = _Loop("fx.fori_loop_with_progress", where, total, description, every, lanes)
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
        # The number of iterations is known, though not the first of them: so the loop can be differentiated backward.
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


@_jax.for_users
def while_loop_with_progress(
    cond_fun: Callable[[Any], Any],
    body_fun: Callable[[Any], Any],
    init_val: Any,
    *,
    total: Any = None,
    description: str = "",
    every: int | None = None,
    lanes: Lanes = "slowest",
) -> Any:
    """`jax.lax.while_loop` with a bar, which counts where the total is not known.

    Args:
        cond_fun, body_fun, init_val: As for `jax.lax.while_loop`.
        total: How many iterations there are at most, if that is known.
        description, every, lanes: As for `fx.progress`.

    Returns:
        What `jax.lax.while_loop` returns.

    Example:
        >>> import effects as fx
        >>> with fx.capture(suppress=True) as records:
        ...     print(fx.jit(lambda x: fx.while_loop_with_progress(lambda x: x < 50, lambda x: x * 2, x))(1))
        64
        >>> records[-1].text
        '6'
    """
    loop = _Loop("fx.while_loop_with_progress", where_called(), total, description, every, lanes)
    init_val = jax.tree.map(jnp.asarray, init_val)  # as the condition is given them in all iterations

    def steps_after(done: Any) -> Any:
        return jnp.maximum(1, done >> 7) if total is None and every is None else jnp.int32(loop.bar.steps())

    def run(init_val: Any) -> Any:
        loop.says(0, init_val)
        if jax.make_jaxpr(cond_fun)(init_val).effects:  # a predicate that is carried makes small loops slower
            return _run_with_effects(loop, steps_after, cond_fun, body_fun, init_val)

        def some(at: Any) -> Any:
            done, carry = at
            steps = steps_after(done)
            taken, carry = lax.while_loop(
                lambda at: (at[0] < steps) & cond_fun(at[1]),
                lambda at: (at[0] + 1, body_fun(at[1])),
                (jnp.zeros_like(done), carry),
            )
            loop.says(done + taken, carry)
            return done + taken, carry

        return lax.while_loop(lambda at: cond_fun(at[1]), some, (jnp.int32(0), init_val))[1]

    return _as_one_program(run, init_val)


def _run_with_effects(
    loop: _Loop, steps_after: Callable[[Any], Any], cond_fun: Callable[[Any], Any], body_fun: Any, init_val: Any
) -> Any:
    """The loop whose condition has effects. It is evaluated as often as without a bar: before the first iteration, and
    after each; what it says is carried."""

    def some(at: Any) -> Any:
        done, _, carry = at
        steps = steps_after(done)

        def step(at: Any) -> Any:
            taken, _, carry = at
            carry = body_fun(carry)
            return taken + 1, cond_fun(carry), carry

        taken, goes_on, carry = lax.while_loop(
            lambda at: (at[0] < steps) & at[1], step, (jnp.zeros_like(done), jnp.bool_(True), carry)
        )
        loop.says(done + taken, carry)
        return done + taken, goes_on, carry

    return lax.while_loop(lambda at: at[1], some, (jnp.int32(0), cond_fun(init_val), init_val))[2]
