"""`fx.error_if` where devices wait for each other: all end the program, or none. See `lowering/control_flow.py`."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

import effects as fx
from tests.lowering.regions.meshes import by_device, in_parts, in_process_of_its_own, mesh_of
from tests.processes import run_processes

ONE = jax.ShapeDtypeStruct((1,), jnp.float32)
X = np.zeros(4, np.float32)


def _same(x):
    return x


def _ends(x, wrong):
    return fx.error_if(x, wrong, "x = {}", x[0])


def _prints_in_branch(x):
    return lax.cond(x[0] == 0, lambda x: (fx.print("only {}", x[0]), x)[1], _same, x)


def _in_loop_in_kernel(x):
    def kernel(source, out):
        out[...] = lax.while_loop(lambda x: x[0] > 1, lambda x: _ends(x, x[0] > 2), source[...])

    return pl.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


def _reductions(body, **options):
    """How many collectives a region has that JAX was not asked for."""
    text = fx.jit(by_device(body, **options)).lower(X).as_text()
    return text.count("stablehlo.all_reduce") - 1


@pytest.mark.parametrize("check_vma", [True, False])
def test_devices_ask_each_other_whether_one_ends_the_program(check_vma):
    def count(ends):
        return _reductions(lambda x: lax.psum(ends(x), "x") + x, check_vma=check_vma)

    def in_loop(x):
        return lax.scan(lambda x, _: (jax.jit(_ends)(x, x[0] < 0), None), x, length=3)[0]

    assert count(_same) == 0
    assert count(lambda x: _ends(x, x[0] < 0)) == 1
    assert count(in_loop) == 1
    assert count(jax.vmap(lambda x: _ends(x[None], x < 0)[0])) == 1
    assert count(lambda x: _ends(_prints_in_branch(x), x[0] < 0)) == 1
    # Where not all devices come they cannot, nor is a branch with other effects theirs.
    assert count(lambda x: lax.cond(x[0] > 1, lambda x: (fx.print("ends"), _ends(x, True))[1], _same, x)) == 0
    assert count(lambda x: lax.cond(x[0] > 1, lambda x: _ends(x, x[0] > 2), _same, x)) == 0
    assert count(lambda x: lax.while_loop(lambda x: x[0] > 1, lambda x: _ends(x, x[0] > 2), x)) == 0
    assert check_vma or count(_in_loop_in_kernel) == 0
    # Nor need they without a collective: none waits for another.
    assert _reductions(lambda x: _ends(x, x[0] < 0), check_vma=check_vma) == -1


def _check_ends(lines, region, devices):
    """`devices`: their numbers, or those of the first in each replica group."""

    @fx.jit
    def f(x):
        def turn(x, i):
            fx.print("turn {} of {}", i, x[0])
            x = fx.error_if(x, x < i, "x = {} in turn {}", x[0], i)
            x = fx.callback(_same, ONE, x)
            fx.print("then {}", x[0])
            return x + 0 * lax.psum(x, "x"), None

        return region(lambda x: lax.scan(turn, x, jnp.arange(3.0))[0])(x)

    def shown(x, last):
        for i in range(last + 1):
            yield from (f"turn {float(i)} of {float(n)}" for n in x)
            if i < last:
                yield from (f"then {float(n)}" for n in x)

    def call(x):
        try:
            ended.append(f(jnp.array(x, jnp.float32)).tolist() and None)
        except fx.CheckError as error:
            ended.append((error.message, error.device, error.lane))

    for x in itertools.product((0, 1, 9), repeat=len(devices)):
        ended = []
        last = min(2, min(x) + 1)
        seen = lines(call, x)
        wrong = devices[x.index(min(x))]
        if min(x) == 9:
            assert ended == [None] and seen == [*shown(x, 2), *(f"then {float(n)}" for n in x)]
        else:
            assert ended == [(f"x = {float(min(x))} in turn {float(last)}", wrong, ())]
            assert seen == [*shown(x, last)]


def check_error_if(lines):
    """A program ends on all devices, with the first one that is wrong."""
    _check_ends(lines, lambda body: by_device(body, mesh_of(2), check_vma=False), [0, 1])
    _check_ends(lines, lambda body: by_device(body, mesh_of(3, devices=jax.devices()[:3])), [0, 1, 2])
    _check_ends(lines, lambda body: in_parts(body, mesh_of(2, 2)), [0, 2])


def test_error_if():
    in_process_of_its_own(__file__, "check_error_if")


def check_beside_a_branch(lines):
    """Devices have had other counts of effects when they come to it."""
    wrong = -1

    def turn(x, i):
        n = lax.axis_index("x")
        for _ in range(3):
            _prints_in_branch(n[None])
        fx.print("turn {} of {}", i, n)
        x = fx.error_if(x, (x[0] == n) & (i == 1), "{} is wrong", n)
        return x + 0 * lax.psum(x, "x"), fx.print("then {} of {}", i, n)

    f = fx.jit(by_device(lambda x: lax.scan(turn, x, jnp.arange(3))[0]))

    def call(wrong):
        x = np.full(4, -1, np.float32)
        x[wrong] = wrong
        with pytest.raises(fx.CheckError) as ended:
            f(x).block_until_ready()
        assert (ended.value.message, ended.value.device) == (f"{wrong} is wrong", wrong)
        fx.effects_barrier()

    for wrong, after_error in itertools.product(range(4), ["stop", "go_on"]):
        with fx.config.override(after_error=after_error):
            seen = lines(call, wrong)
        own = {n: [line for line in seen if line.endswith(f"{n}")] for n in range(4)}
        came = {n: [*["only 0"] * (3 * (n == 0)), f"turn 0 of {n}", f"then 0 of {n}"] for n in range(4)}
        came = {n: [*came[n], *["only 0"] * (3 * (n == 0)), f"turn 1 of {n}"] for n in range(4)}
        if after_error == "go_on" or wrong == 0:
            assert own == came
        else:  # what comes behind it in the order of all devices is left out
            assert {n: own[n] for n in (1, 2, 3)} == {n: came[n] for n in (1, 2, 3)}
            assert own[0] == came[0][: len(own[0])]
    assert f(np.full(4, -1, np.float32)).tolist() == [-1] * 4


def test_beside_a_branch():
    in_process_of_its_own(__file__, "check_beside_a_branch")


def _guarded(x):
    """The predicate holds in lanes that do not get there."""
    return lax.cond(x > 0, lambda x: fx.error_if(jnp.log(x), jnp.isnan(jnp.log(x)), "log of {}", x), lambda x: x * 0, x)


def _in_scan(x):
    return lax.scan(lambda x, _: (x + 0 * jax.vmap(_guarded)(x), None), x, length=2)[0]


def check_lanes_that_are_not_there(lines):
    x = np.array([1, 2, 3, 4, 5, 6, -7, -8], np.float32)
    logs = np.where(x > 0, np.log(np.abs(x)), 0)
    for check_vma in (True, False):
        talks = fx.jit(by_device(lambda x: jax.vmap(_guarded)(x) + 0 * lax.psum(x, "x"), check_vma=check_vma))
        np.testing.assert_allclose(talks(x), logs, rtol=1e-6)
        scans = fx.jit(by_device(lambda x: _in_scan(x) + 0 * lax.psum(x, "x"), check_vma=check_vma))
        assert scans(x).tolist() == x.tolist()

        def waits(x):
            jax.vmap(_guarded)(x)
            fx.print("ahead {}", x[0])
            x = fx.callback(_same, jax.ShapeDtypeStruct((2,), jnp.float32), x)
            fx.print("behind {}", x[0])
            return x

        shown = [f"{word} {x[n]}" for word in ("ahead", "behind") for n in (0, 2, 4, 6)]
        assert lines(fx.jit(by_device(waits, check_vma=check_vma)), x) == shown


def test_lanes_that_are_not_there():
    in_process_of_its_own(__file__, "check_lanes_that_are_not_there")


def _in_kernel(x):
    def kernel(source, out):
        out[...] = fx.error_if(source[...], source[0] > 5, "{} is large", source[0])

    return pl.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


def _large(x):
    return fx.error_if(x, x > 5, "{} is large", x)


HOLDERS = {
    "lanes": lambda x: jax.vmap(_large)(x),
    "lanes of lanes": lambda x: jax.vmap(jax.vmap(_large))(x[None])[0],
    "a branch of lanes": lambda x: jax.vmap(
        lambda x: lax.cond(x > 5, lambda x: fx.error_if(x, True, "{} is large", x), _same, x)
    )(x),
    "a branch in one": lambda x: jax.vmap(
        lambda x: lax.cond(x > 4, lambda x: lax.cond(x > 0, _large, _same, x), _same, x)
    )(x),
    "a branch of lanes of lanes": lambda x: jax.vmap(jax.vmap(lambda x: lax.cond(x > 4, _large, _same, x)), in_axes=0)(
        x[None]
    )[0],
    "a kernel": _in_kernel,
}


def check_holders():
    def body(x, holder):
        x = holder(x)
        return x + 0 * lax.psum(x, "x")

    for holder in HOLDERS.values():
        f = fx.jit(by_device(functools.partial(body, holder=holder), check_vma=False))
        for wrong in (None, 0, 3):
            x = np.arange(4, dtype=np.float32)
            if wrong is None:
                assert f(x).tolist() == x.tolist()
                continue
            x[wrong] += 6
            with pytest.raises(fx.CheckError, match="is large") as ended:
                f(x).block_until_ready()
            assert (ended.value.message, ended.value.device) == (f"{x[wrong]} is large", wrong)


def test_holders():
    """Whatever holds it, no device waits for one that has ended."""
    in_process_of_its_own(__file__, "check_holders")


OF_PROCESSES = """
start()
import effects as fx, jax.numpy as jnp, numpy as np
from jax import lax, P
from tests.lowering.regions.meshes import by_device, mesh_of

def body(x):
    n = lax.axis_index("x")
    fx.print("{} of {}", x[0], n)
    x = fx.error_if(x, x[0] == n, "{} is wrong", n)
    return x + lax.psum(x, "x")

f = fx.jit(by_device(body))
whole = jax.NamedSharding(mesh_of(4), P("x"))
report["ended"] = []
for wrong in [None, 0, 3, None]:
    x = np.full(4, -1 if wrong is None else wrong, np.float32)
    x = jax.make_array_from_callback((4,), whole, lambda index: x[index])
    try:
        f(x).block_until_ready()
        fx.effects_barrier()
        report["ended"].append(None)
    except fx.CheckError as error:
        report["ended"].append([error.message, error.where != "", str(error)])
"""


@pytest.mark.slow
def test_all_processes_end():
    """Those without a device that is wrong too: theirs would wait in the collective."""
    first, second = (process.report["ended"] for process in run_processes(OF_PROCESSES, 2, devices=2))
    assert first[0] is first[3] is second[0] is second[3] is None
    assert [first[1][:2], second[2][:2]] == [["0 is wrong", True], ["3 is wrong", True]]
    for message, has_place, text in (first[2], second[1]):
        assert (message, has_place) == ("{} is wrong", True)
        assert "predicate is true on another device, whose error has the values of '{} is wrong'" in text


def test_lane_that_is_not_there_ends_no_program():
    """Nor does a device for its sake, in a branch that only some lanes take."""

    def lane(x, n):
        return lax.cond(n > 0, lambda x: fx.error_if(x, x < 0, "{} is wrong", x), _same, x)

    f = fx.jit(by_device(lambda x: jax.vmap(lane)(x, jnp.arange(2))[None][0] + 0 * lax.psum(x, "x")))
    x = np.ones(8, np.float32)
    x[4] = -1  # the lane of device 2 that does not come there
    np.testing.assert_array_equal(f(x), x)
    x[5] = -2
    with pytest.raises(fx.CheckError, match=r"-2\.0 is wrong .*lane 1, device 2"):
        f(x)
