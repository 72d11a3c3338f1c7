"""Under `vmap`, `fx.jit` runs JAX's own callbacks as often as `jax.jit` does, but not for lanes that are masked out."""

from __future__ import annotations

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import effects as fx

pytestmark = pytest.mark.slow

LANES = jnp.arange(3, dtype=jnp.int32)
I32 = jax.ShapeDtypeStruct((), jnp.int32)


def _say(tag):
    return lambda *values: print(tag, *(int(value) for value in values))


def _answer(tag):
    def answer(*values):
        print(tag, *(int(value) for value in values))
        return np.int32(7 + sum(values))

    return answer


def _print(tag, ordered, *values):
    jax.debug.print(" ".join([tag, *["{}"] * len(values)]), *values, ordered=ordered)
    return 0


def _callback(tag, ordered, *values):
    jax.debug.callback(_say(tag), *values, ordered=ordered)
    return 0


def _save(tag, ordered, *values):
    io_callback(_say(tag), None, *values, ordered=ordered)
    return 0


def _ask(tag, ordered, *values):
    return io_callback(_answer(tag), I32, *values, ordered=ordered)


KINDS = {"print": _print, "callback": _callback, "io_callback": _save, "io_callback with result": _ask}


def _all(do, lane, same):
    """An effect without operands, and with operands that are constant, the same in all lanes, and different."""
    number = do("none")
    for tag, values in {"const": (5,), "same": (same,), "lane": (lane,), "both": (same, lane)}.items():
        number += do(tag, *values)
    return number


def _plain(do, lane, same):
    return _all(do, lane, same)


def _scan(do, lane, same):
    return jax.lax.scan(lambda c, i: (c + _all(do, lane, same + i), c), jnp.int32(0), jnp.arange(2))


def _carried(do, lane, same):
    return jax.lax.scan(lambda c, i: (c + 1 + _all(do, c, same), lane), lane, None, 2)


def _while(do, lane, same):
    return jax.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] + _all(do, lane, same)), (0, jnp.int32(0)))


def _cond(do, lane, same):
    return jax.lax.cond(same > 0, lambda: jnp.int32(_all(do, lane, same)), lambda: jnp.int32(do("not")))


def _switch(do, lane, same):
    return jax.lax.switch(same, [lambda: jnp.int32(0), lambda: jnp.int32(_all(do, lane, same)), lambda: jnp.int32(2)])


def _inner_jit(do, lane, same):
    return jax.jit(lambda lane, same: _all(do, lane, same))(lane, same)


def _remat(do, lane, same):
    return jax.checkpoint(lambda lane, same: _all(do, lane, same))(lane, same)


def _fori_in_cond(do, lane, same):
    return jax.lax.cond(same > 0, lambda: jax.lax.fori_loop(0, 2, lambda i, c: c + _all(do, lane, same), 0), lambda: 0)


def _vmap_inside(do, lane, same):
    return jax.vmap(lambda inner: _all(do, inner, same) + _all(do, lane, same))(jnp.arange(2, dtype=jnp.int32))


def _scan_of_vmap(do, lane, same):
    return jax.lax.scan(lambda c, _: (c + 1, jax.vmap(lambda x: _all(do, x, c))(jnp.arange(2))), same, None, 2)


def _custom_jvp(do, lane, same):
    f = jax.custom_jvp(lambda lane, same: _all(do, lane, same))
    f.defjvp(lambda primals, tangents: (f(*primals), 0))
    return f(lane, same)


NESTS = [
    *(_plain, _scan, _carried, _while, _cond, _switch, _inner_jit, _remat, _fori_in_cond),
    *(_vmap_inside, _scan_of_vmap, _custom_jvp),
]


def _program(kind, nest, ordered, in_axes=(0, None)):
    def do(tag, *values):
        return kind(tag, ordered, *values)

    return jax.vmap(lambda lane, same: nest(do, lane, same), in_axes)


@pytest.mark.parametrize("nest", NESTS, ids=lambda nest: nest.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_as_often_as_in_jax(kind, nest, lines):
    """An effect happens once, however many lanes there are, unless an operand differs between them; results too are
    those of JAX. What JAX refuses, to order an effect or to have an `io_callback` in a loop or a branch there, happens
    as often as an unordered `jax.debug.callback`."""
    for ordered in (False, True):
        results: list[object] = []

        def run(jit, kind, ordered, results=results):
            results.append(jit(_program(kind, nest, ordered))(LANES, jnp.int32(1)))

        for as_jax_can in [(KINDS[kind], ordered), (KINDS[kind], False), (_callback, False)]:
            try:
                expected = lines(run, jax.jit, *as_jax_can)
                break
            except Exception as error:  # JAX raises a bare one, too
                assert re.search("(?i)ordered|IO effect not supported in vmap", str(error))
        assert collections.Counter(lines(run, fx.jit, KINDS[kind], ordered)) == collections.Counter(expected)
        if as_jax_can[0] is KINDS[kind]:
            jax.tree.map(np.testing.assert_array_equal, *results)


NESTED = {
    "cond": lambda do, turn, same: jax.lax.cond(turn, lambda: jnp.int32(_all(do, 8, same)), lambda: jnp.int32(0)),
    "cond of effects only": lambda do, turn, same: jax.lax.cond(
        turn, lambda: (do("same", same), same)[1], lambda: same
    ),
    "while": lambda do, turn, same: jax.lax.while_loop(
        lambda c: (c[0] < 2) & turn, lambda c: (c[0] + 1, c[1] + _all(do, 8, same)), (0, jnp.int32(0))
    )[1],
}


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.float32])
@pytest.mark.parametrize("of", ["both", "outer", "inner"])
@pytest.mark.parametrize("nest", NESTED)
def test_predicates_of_two_axes(nest, of, dtype, lines):
    """Where all lanes of two `vmap`s take a branch or go on, effects happen as often as in JAX."""

    def call(do, outer, inner):
        turn = {"both": outer + inner, "outer": outer, "inner": inner}[of] >= 0
        return NESTED[nest](do, turn, jnp.asarray(9, dtype))

    for kind in ("print", "callback"):
        inner = _program(KINDS[kind], call, False, (None, 0))
        expected, ours = (lines(jit(jax.vmap(inner, (0, None))), LANES, jnp.arange(2)) for jit in (jax.jit, fx.jit))
        assert collections.Counter(ours) == collections.Counter(expected) and ours


def test_results_do_not_differ_between_lanes(lines):
    """A result of a callback that ran once is equal in all lanes, so `out_axes` may be None; with ours it may not."""

    def run(jit, call):
        f = jax.vmap(lambda x: (x, call()), out_axes=(0, None))
        return jit(f)(LANES)

    by_jax = [run(jit, lambda: io_callback(_answer("asked"), I32)) for jit in (jax.jit, fx.jit)]
    jax.tree.map(np.testing.assert_array_equal, *by_jax)
    with pytest.raises(ValueError, match="out_axes"):
        run(fx.jit, lambda: fx.callback(_answer("asked"), I32))
