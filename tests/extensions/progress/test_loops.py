"""Loops with a bar compute what JAX's loops do, and say how far they are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.extensions.progress.test_progress import said
from tests.forks import run_forked

pytestmark = pytest.mark.slow

LENGTHS = [0, 1, 7, 12]


def run(function, *args):
    with fx.capture(suppress=True) as records:
        out = fx.jit(function)(*args)
    return out, records


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)
    assert jax.tree.structure(one) == jax.tree.structure(other)
    assert jax.tree.map(jnp.result_type, one) == jax.tree.map(jnp.result_type, other)


def step(carry, x):
    carry = carry * 3 + (0 if x is None else x["a"].sum())
    return carry, {"seen": carry, "nothing": None}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("every", [1, 3, 100])
@pytest.mark.parametrize("length", LENGTHS)
def test_scan_gives_what_jaxs_does(length, every, reverse):
    """Carry and results are the same, in whole chunks and in the rest, forward and backward."""
    xs = {"a": jnp.arange(2 * length, dtype=jnp.int32).reshape(length, 2)}
    out, records = run(lambda xs: fx.scan_with_progress(step, 1, xs, reverse=reverse, every=every), xs)
    assert_same(out, jax.jit(lambda xs: jax.lax.scan(step, 1, xs, reverse=reverse))(xs))
    assert said(records) == sorted({0, length, *range(0, length, every)})


def test_scan_of_a_length_without_elements():
    """What is scanned may be nothing, so many times, and the loop may be unrolled."""
    out, records = run(lambda: fx.scan_with_progress(step, 1, length=5, every=2, unroll=2))
    assert_same(out, jax.lax.scan(step, 1, length=5))
    assert said(records) == [0, 2, 4, 5]


@pytest.mark.parametrize("xs", [jnp.zeros(()), (jnp.zeros(2), jnp.zeros(3)), None], ids=["scalar", "lengths", "none"])
def test_scan_of_what_cannot_be_scanned_is_an_error_of_jaxs(xs):
    """JAX says what is wrong."""
    with pytest.raises((ValueError, TypeError, IndexError)) as ours:
        fx.scan_with_progress(lambda c, x: (c, x), 0, xs)
    with pytest.raises(type(ours.value)) as jaxs:
        jax.lax.scan(lambda c, x: (c, x), 0, xs)
    assert str(ours.value) == str(jaxs.value)


@pytest.mark.parametrize("is_static", [False, True], ids=["computed", "known"])
@pytest.mark.parametrize("every", [None, 3])
@pytest.mark.parametrize("length", [*LENGTHS, -4])
def test_fori_loop_gives_what_jaxs_does(length, every, is_static):
    """The bounds may be known or computed in the program. A loop that would run backward has no steps."""

    def loop(of, n):
        return of(2, 2 + n, lambda i, x: x * 3 + i, 1)

    def ours(*bounds):
        return fx.fori_loop_with_progress(*bounds, every=every)

    out, records = run(lambda n: loop(ours, length if is_static else n), length)
    assert int(out) == int(loop(jax.lax.fori_loop, length))
    assert said(records) == sorted({0, max(length, 0), *range(0, length, every or 1)})


def test_step_is_said_when_the_values_are_there():
    """A bar does not run ahead of a loop whose effects come between."""

    def body(i, x):
        fx.print("step {}", i)
        return x + 1

    _, records = run(lambda x: fx.fori_loop_with_progress(0, 4, body, x, every=2), 0)
    assert [record.text for record in records] == ["0/4", "step 0", "step 1", "2/4", "step 2", "step 3", "4/4"]


def test_step_is_said_when_unordered_functions_have_returned():
    """Nothing but the carried values ties the bar to the loop."""
    seen = []

    def note(i):
        seen.append(f"step {int(i)}")
        return np.float32(i)

    def body(i, x):
        return x + fx.callback(note, jax.ShapeDtypeStruct((), "float32"), i, ordered=False)

    with fx.add_handler(lambda record: seen.append(record.text), effects="progress"):
        run(lambda x: fx.fori_loop_with_progress(0, 4, body, x, every=2), 0.0)
    assert seen == ["0/4", "step 0", "step 1", "2/4", "step 2", "step 3", "4/4"]


def test_derivatives_are_those_of_jaxs_loops():
    """Backward through a scan and a loop whose bounds are known, and forward."""

    def power(loop):
        return lambda x: loop(0, 5, lambda _, y: y * x, 1.0)

    def total(scan):
        return lambda x: scan(lambda c, y: (c * x + y, c), 0.5, jnp.arange(5.0))[0]

    ours = (
        power(lambda *of: fx.fori_loop_with_progress(*of, every=2)),
        total(lambda *of: fx.scan_with_progress(*of, every=2)),
    )
    for mine, jaxs in zip(ours, (power(jax.lax.fori_loop), total(jax.lax.scan)), strict=True):
        (value, slope), records = run(jax.value_and_grad(mine), 1.5)
        assert_same((value, slope), jax.jit(jax.value_and_grad(jaxs))(1.5))
        assert said(records) == [0, 2, 4, 5]
        (_, forward), _ = run(lambda x, mine=mine: jax.jvp(mine, (x,), (1.0,)), 1.5)
        np.testing.assert_allclose(forward, slope, rtol=1e-6)


def test_lanes_of_loops():
    """Under `vmap` each lane says how far it is, as long as it goes on."""

    def loop(n):
        return fx.fori_loop_with_progress(0, n, lambda _, x: x + 1, 0, every=1)

    out, records = run(jax.vmap(loop), jnp.array([1, 3]))
    assert out.tolist() == [1, 3]
    by_lane = {lane: said([record for record in records if record.lane == (lane,)]) for lane in (0, 1)}
    assert by_lane == {0: [0, 1], 1: [0, 1, 2, 3]}


def test_loops_outside_of_fx_jit():
    """Under plain `jax.jit` and outside of programs they are the same loops."""
    with fx.capture(suppress=True) as records:
        for jit in (jax.jit, lambda function: function):
            assert int(jit(lambda x: fx.fori_loop_with_progress(0, 3, lambda i, x: x + i, x))(1)) == 4
    assert said(records) == [0, 1, 2, 3] * 2


DEVICES = """
import os, threading
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, jax.numpy as jnp
import effects as fx
mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
def shard(x):
    return fx.fori_loop_with_progress(0, 3, lambda i, x: x + 1, x, description="shard")
x = jax.device_put(jnp.arange(4.0), jax.NamedSharding(mesh, jax.P("i")))
shards = fx.jit(jax.shard_map(shard, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P("i")))
whole = fx.jit(lambda x: fx.fori_loop_with_progress(0, 3, lambda i, x: x + 1, x, description="whole"))
gate = threading.Event()
waits = fx.jit(lambda x: fx.callback(lambda x: gate.wait(60), None, x))
gate.set()
shards(x), whole(x), waits(1)
fx.effects_barrier()
gate.clear()
print("again", flush=True)
waits(1)  # all steps of the others come together
print(shards(x))
print(whole(x))
gate.set()
fx.effects_barrier()
"""


def test_each_device_of_a_shard_map_has_a_bar():
    """And a program that XLA cuts up has one."""
    lines = run_forked(DEVICES).stdout.split("again\n")[1].splitlines()
    assert [line for line in lines if "[" in line] == ["[3. 4. 5. 6.]"] * 2
    ends = sorted(line.split(" in ")[0] for line in lines if "100%" in line)
    assert ends == [*(f"shard, device {i}: 100% 3/3" for i in range(4)), "whole: 100% 3/3"]
