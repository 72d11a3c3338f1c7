"""Records that stand next to each other: one call publishes them, and nothing else is different."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import effects as fx
from tests.dispatch.devices.meshes import by_device, rows_of


def _calls(f, *args):
    return fx.jit(f).lower(*args).as_text().count("custom_call @effects_record")


def _three(x):
    fx.print("a {}", x)
    fx.log("b", x=x)
    fx.print("c")


def test_one_call_publishes_records_that_stand_next_to_each_other(lines):
    """Each has its own operands, whatever kinds of effects they are, and they come in the order of the program."""
    got = []

    def f(x):
        fx.print("a {}", x)
        y = x + 1
        fx.print("b {} {}", x, y)
        fx.print("c")
        fx.callback(lambda x, y: got.append((int(x), int(y))), None, x, x)
        fx.print("d {}", x)

    assert _calls(f, 1) == 2  # `y` is computed behind `a`
    assert lines(fx.jit(f), 1) == ["a 1", "b 1 2", "c", "d 1"]
    assert got == [(1, 1)]


def test_what_stands_between_has_its_place():
    """A record does not wait for what is computed behind it, for a result, or for another domain."""

    def computes(x):
        fx.print("a {}", x)
        x = jnp.sin(x)
        fx.print("b {}", x)

    def calls(x):
        fx.print("a {}", x)
        fx.callback(lambda x: x, x, x)
        fx.print("b {}", x)

    def mixes(x):
        fx.print("a {}", x)
        fx.print("b {}", x, ordered=False)
        fx.print("c {}", x)

    assert (_calls(computes, 1.0), _calls(calls, 1.0), _calls(mixes, 1.0)) == (2, 2, 3)


@pytest.mark.parametrize("ordered", [True, False])
def test_in_a_loop_and_in_lanes(lines, ordered):
    """A loop's body and a branch of some lanes are no different."""

    def body(i, x):
        fx.print("first {} {}", i, x, ordered=ordered)
        fx.print("second {} {}", i, x, ordered=ordered)
        return x

    def in_some(x):
        return jax.lax.cond(x > 1, lambda x: body(0, x), lambda x: x, x)

    loop = jax.jit(lambda x: jax.lax.fori_loop(0, 2, body, x))
    assert _calls(loop, 5) == 1
    assert lines(fx.jit(loop), 5) == ["first 0 5", "second 0 5", "first 1 5", "second 1 5"]
    lanes = jax.vmap(in_some)
    assert _calls(lanes, jnp.arange(4)) == 1
    assert lines(fx.jit(lanes), jnp.arange(4)) == ["first 0 2", "first 0 3", "second 0 2", "second 0 3"]


@pytest.mark.parametrize("around", [False, True])
def test_on_devices(lines, around):
    """The first of a region enters it, and the last leaves it, be they one call or two."""

    def region(x):
        first = x[0]
        fx.print("in {}", first)
        if around:
            first += 1
        fx.print("and {}", first)
        fx.print("out")
        return x

    def f(x):
        y = by_device(region)(x)
        fx.print("behind {}", y)
        return y

    x = jnp.arange(4)
    assert _calls(f, x) == 1 + around  # what `y` shows is sharded
    each = [line for n in range(4) for line in (f"in {n}", f"and {n + around}", "out")]
    shown = lines(fx.jit(f), x)
    assert sorted(shown[:-1]) == sorted(each) and shown[-1] == "behind [0 1 2 3]"
    for n in range(4):
        own = [line for line in shown if line in (f"in {n}", f"and {n + around}")]
        assert own[-2:] == [f"in {n}", f"and {n + around}"]
    # What is sharded automatically has a call for each: XLA's partitioner decides what becomes of it.
    assert lines(fx.jit(_three), jax.device_put(x, rows_of())) == ["a [0 1 2 3]", "c"]


def test_one_of_them_is_switched_off(lines):
    """A filter is that of one line, whose place in the order is left out."""

    def f(x):
        fx.print("a {}", x)
        fx.print("b {}", x)
        fx.print("c {}", x)

    jitted = fx.jit(f)
    assert lines(jitted, 1) == ["a 1", "b 1", "c 1"]
    line = f.__code__.co_firstlineno + 2
    with fx.sites(f"*test_adjacent.py:{line}").off():
        assert lines(jitted, 2) == ["a 2", "c 2"]
    assert lines(jitted, 3) == ["a 3", "b 3", "c 3"]


def test_one_of_them_fails(lines):
    """What stands behind a callback that raises is left out, and what stands ahead of it is there."""

    def f(x):
        fx.print("a {}", x)
        fx.callback(lambda x: {}[int(x)], None, x)
        fx.print("b {}", x)

    def call():
        with pytest.raises(fx.EffectError, match="KeyError") as raised:
            fx.jit(f)(1)
            fx.effects_barrier()
        assert raised.value.not_carried_out == {"print": 1}

    assert _calls(f, 1) == 1
    assert lines(call) == ["a 1"]


def test_exported_program_has_a_call_for_each(lines):
    """A process without handlers puts something in the place of each."""
    exported = fx.export(fx.jit(_three))(jnp.int32(1))
    assert exported.mlir_module().count("custom_call @effects_record") == 3
    assert lines(fx.jit(exported.call), jnp.int32(1)) == ["a 1", "c"]


def test_thousands_are_one_call(lines):
    """XLA would compare each of 3,000 calls with each other one."""

    def f(x):
        for n in range(3000):
            fx.print(f"{n} {{}}", x)

    assert _calls(f, 1) == 1
    assert lines(fx.jit(f), 1) == [f"{n} 1" for n in range(3000)]
