"""Random programs on arrays of all types: masks, empty arrays, references, and loops and branches over lanes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

TYPES = ("float32", "float16", "bfloat16", "complex64", "float8_e4m3fn", "float8_e5m2")
SIZE = 3


def _made(draw: random.Random) -> Callable[[Any], Any]:
    """One operation on a vector, which makes NaN of some values."""
    number = draw.choice((0.5, 1, 2, 3))
    f = draw.choice((jnp.sqrt, jnp.log, jnp.tanh, jnp.negative, jnp.exp, lambda x: x / (x - x[:1] * 0 - number)))
    return lambda x: f((x - jnp.asarray(number, x.dtype)).astype(x.dtype)).astype(x.dtype)


def _masked(draw: random.Random) -> Callable[[Any], Any]:
    f, limit = _made(draw), draw.choice((0, 1, 2))
    return lambda x: jnp.where(x.real.astype(np.float32) > limit, f(x), x)


def _empty(draw: random.Random) -> Callable[[Any], Any]:
    f, g = _made(draw), _made(draw)
    return lambda x: jnp.concatenate([f(x[:0]), g(x)])


def _kept(draw: random.Random) -> Callable[[Any], Any]:
    f = _made(draw)

    def keep(x: Any) -> Any:
        reference = jax.new_ref(x)
        reference[...] = f(reference[...])
        return reference[...]

    return keep


def _lanes(draw: random.Random) -> Callable[[Any], Any]:
    """A loop or a branch that differs between the lanes of a vector."""
    f, limit, turns = _made(draw), draw.choice((1, 2)), draw.choice((1, 2, 3))

    def real(x: Any) -> Any:
        return x.real.astype(np.float32).sum()

    def one(x: Any) -> Any:
        return f(x[None])[0]

    def loop(x: Any) -> Any:
        def goes_on(at: Any) -> Any:
            return (at[0] < turns) & (real(at[1]) < limit + at[0])

        return lax.while_loop(goes_on, lambda at: (at[0] + 1, one(at[1])), (0, x))[1]

    return jax.vmap(draw.choice((loop, lambda x: lax.cond(real(x) > limit, one, lambda x: x, x))))


def _rows(draw: random.Random) -> Callable[[Any], Any]:
    f = draw.choice((_made, _masked, _lanes))(draw)

    def scan(x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            return jnp.where(row.real.astype(np.float32) > 1, f(carry), carry), row

        return lax.scan(step, x, x, reverse=draw_reverse)[0]

    draw_reverse = draw.random() < 0.5
    return scan


_KINDS = (_made, _masked, _empty, _kept, _lanes, _rows)


def program(draw: random.Random) -> tuple[Callable[[Any], Any], Any]:
    """A function and its argument."""
    steps = [draw.choice(_KINDS)(draw) for _ in range(draw.choice((1, 2, 4)))]
    values = np.array([draw.choice((0, 0.5, 1, 2, 3, 5)) for _ in range(SIZE)], np.float32)
    dtype = draw.choice(TYPES)
    if np.dtype(dtype).itemsize == 1:  # XLA for CPUs may compile four steps for minutes (JAX 0.12)
        del steps[2:]

    def run(x: Any) -> Any:
        for step in steps:
            x = step(x)
        return x

    return run, jnp.asarray(values).astype(dtype)
