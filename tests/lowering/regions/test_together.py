"""Devices that all come to a callback go on from it together, or fail together: see `lowering/regions.py`."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.experimental import pallas as pl

import effects as fx
from tests.lowering.regions.meshes import by_device, in_parts, in_process_of_its_own, mesh_of

P = jax.P
ONE = jax.ShapeDtypeStruct((1,), jnp.float32)
X = np.zeros(4, np.float32)


def _same(x):
    return x


def _call(x, **options):
    return fx.callback(_same, ONE, x, **options)


def _in_cond(x):
    return lax.cond(x[0] > 0, _call, _same, x)


def _in_while(x):
    return lax.while_loop(lambda x: x[0] < 0, _call, x)


def _behind_branch_on_a_returned_value(x):
    predicate = io_callback(lambda: np.bool_(True), jax.ShapeDtypeStruct((), bool))
    return _call(lax.cond(predicate, lambda x: (fx.print("there"), x)[1], _same, x))


def _in_while_of_lane(x):
    return lax.while_loop(lambda x: x < 5, lambda x: (fx.print("{}", x), x + 1)[1], x)


def _kernel(source, out):
    out[...] = _call(source[...])


def _looping_kernel(source, out):
    out[...] = _in_while(source[...])


def _together(f, x):
    """How many devices go on together, for each call of a program from which they do."""
    return [int(devices) for devices in re.findall(r"together = (\d+)", f.lower(x).as_text())]


BODIES = {
    "alone": (_call, 1),
    "unordered": (lambda x: _call(x, ordered=False), 1),
    "in a function": (lambda x: jax.jit(_call)(x), 1),
    "in a loop": (lambda x: lax.fori_loop(0, 3, lambda _, x: jax.jit(_call)(x), x), 1),
    "behind a branch without effects": (lambda x: _call(lax.cond(x[0] > 0, lambda x: x + 1, _same, x)), 1),
    "in a branch": (_in_cond, 0),
    "in a loop that may end": (_in_while, 0),
    "in a function in a branch": (lambda x: lax.cond(x[0] > 0, jax.jit(_call), _same, x), 0),
    "behind a branch with effects": (lambda x: _call(_in_cond(x)), 1),
    "behind one on what may be another value on each device": (_behind_branch_on_a_returned_value, 2),
    "behind a loop with effects": (lambda x: _call(_in_while(x)), 0),
    "behind a loop of lanes": (lambda x: _call(jax.vmap(_in_while_of_lane)(x)), 0),
    "in a kernel": (lambda x: pl.pallas_call(_kernel, ONE, interpret=True)(x), 1),
    "in a loop in a kernel": (lambda x: pl.pallas_call(_looping_kernel, ONE, interpret=True)(x), 0),
    "without results": (lambda x: (fx.callback(_same, None, x), x)[1], 0),
}


# JAX checks no region around a kernel.
CHECKED = [(name, check) for name in BODIES for check in (True, False) if "kernel" not in name or not check]


@pytest.mark.parametrize(("name", "check_vma"), CHECKED)
def test_devices_go_on_together_where_all_come(name, check_vma):
    body, calls = BODIES[name]
    assert _together(fx.jit(by_device(body, check_vma=check_vma)), X) == [4] * calls


def check_devices_of_different_counts(lines):
    """None waits for others whose effects come after its own next one."""
    tossed = iter(range(100))

    def toss():
        return np.bool_(next(tossed) % 4 < 2)

    def prints(x):
        for i in range(3):
            fx.print("print {}", i)
        return x

    def by_toss(x):
        p = io_callback(toss, jax.ShapeDtypeStruct((), bool))
        return fx.callback(lambda x: x + 1, ONE, lax.cond(p, prints, _same, x))

    def by_lanes(x):
        x = jax.vmap(_in_while_of_lane)(x)
        return fx.callback(lambda x: x + 1, jax.ShapeDtypeStruct((2,), jnp.float32), x)

    outs = []
    f = fx.jit(by_device(by_toss))
    assert len(lines(lambda: outs.append(f(jnp.arange(4.0))))) == 6
    g = fx.jit(by_device(by_lanes))
    assert len(lines(lambda: outs.append(g(jnp.arange(8.0))))) == 15
    assert [out.tolist() for out in outs] == [[1, 2, 3, 4], [6, 6, 6, 6, 6, 6, 7, 8]]


def test_devices_of_different_counts():
    in_process_of_its_own(__file__, "check_devices_of_different_counts")


def test_a_function_is_threaded_for_where_it_is_called():
    """One function, which all devices call, and some of them in a branch."""
    call = jax.jit(_call)
    by_all = by_device(lambda x: call(x) + lax.scan(lambda x, _: (call(x), None), x, length=2)[0])
    by_some = by_device(lambda x: lax.cond(x[0] > 0, call, _same, x))
    for region, calls in [(by_all, [4]), (by_some, []), (by_all, [4])]:
        assert _together(fx.jit(region), X) == calls


SCANNED = lambda x: lax.scan(lambda x, _: (_shown(x), None), x, length=3)[0]  # noqa: E731


def _shown(x):
    fx.print("{}", x[0])
    return x


BRANCHES = {
    "nothing": (_same, []),
    "unordered": (lambda x: (fx.print("{}", x[0], ordered=False), x)[1], []),
    "a record": (_shown, [1]),
    "two": (lambda x: _shown(_shown(x)), [2]),
    "a callback": (_call, [1]),
    "a loop": (SCANNED, [3]),
    "a loop in a function": (lambda x: _shown(jax.jit(SCANNED)(x)), [4]),
    "a branch": (lambda x: lax.cond(x[0] > 1, SCANNED, _shown, x), [2, 3]),
    "a check": (lambda x: (fx.check(x[0] > 0, "no"), x)[1], [1, 1]),
    "a check of lanes": (jax.vmap(lambda x: (fx.check(x > 0, "no"), x)[1]), [1, 1]),
    "a program that ends": (lambda x: fx.error_if(x, x[0] < 0, "no"), []),
    "a rematerialized block": (jax.checkpoint(_shown), [1]),
    "lanes": (jax.vmap(lambda x: lax.cond(x > 0, lambda: (fx.print("{}", x), 1.0)[1], lambda: 0.0)), [1]),
}


@pytest.mark.parametrize("awaited", [True, False])
@pytest.mark.parametrize("name", BRANCHES)
def test_devices_skip_as_many_as_other_branches_have(name, awaited):
    """If it is of use: where they wait for callbacks."""
    branch, skips = BRANCHES[name]
    after = _call if awaited else _same
    f = fx.jit(by_device(lambda x: after(lax.cond(x[0] > 0, branch, _same, x))))
    found = [int(count) for count in re.findall(r"@effects_skip.*count = (\d+)", f.lower(X).as_text())]
    assert sorted(found) == (skips if awaited or name == "a callback" else [])


@pytest.mark.parametrize("check_vma", [True, False])
def test_switches_skip(check_vma):
    body = lambda x: _call(lax.switch(x[0].astype(int), [_same, _shown, SCANNED], x))  # noqa: E731
    text = fx.jit(by_device(body, check_vma=check_vma)).lower(X).as_text()
    assert sorted(re.findall(r"@effects_skip.*count = (\d+)", text)) == ["2", "3"]


def test_one_device_waits_for_nobody():
    in_branch = fx.jit(by_device(lambda x: _call(lax.cond(x[0] > 0, _shown, _same, x)), mesh=mesh_of(1)))
    assert "effects_skip" not in in_branch.lower(X[:1]).as_text()
    assert not _together(fx.jit(by_device(_call, mesh=mesh_of(1))), X[:1])
    assert not _together(fx.jit(_call), X[:1])


def test_regions_inside_others():
    """The devices are those of the whole mesh, replicas too."""

    def region(axis, body):
        return jax.shard_map(body, in_specs=P(axis), out_specs=P(axis), axis_names={axis})

    inner = region("y", _call)
    with jax.set_mesh(mesh_of(2, 2)):
        for body in (inner, lambda x: lax.cond(x[0] > 0, inner, _same, x)):
            with pytest.raises(fx.MissingTokenRule, match="inside another one, over other axes"):
                fx.jit(region("x", body)).lower(X)
    assert _together(fx.jit(in_parts(_call, mesh_of(2, 2))), X[:2]) == [4]


def _check_failures(lines, region, ordered):
    """What a callback raises in the second of three turns, on each of the devices."""
    fails = None

    def call(i, n, x):
        if (i, n) == (1, fails):
            raise ValueError("as asked")
        return x

    def turn(x, i):
        fx.print("turn {}", i)
        x = fx.callback(call, ONE, i, lax.axis_index("x"), x, ordered=ordered)
        return x + lax.psum(x, "x"), None

    f = fx.jit(region(lambda x: lax.scan(turn, x, jnp.arange(3))[0]))
    devices = 4 if region is by_device else 2
    x = jnp.ones(devices, jnp.float32)
    for fails in range(devices):  # noqa: B007 - `call` reads it
        with pytest.raises(fx.EffectError, match=r"raised ValueError\('as asked'\)"):
            f(x).block_until_ready()
            fx.effects_barrier()
    fails, outs = None, []
    assert lines(lambda: outs.append(f(x))) == [f"turn {i}" for i in range(3) for _ in range(devices)]
    assert outs[0].tolist() == [(devices + 1) ** 3] * devices


def check_failure_of_one_is_of_all(lines):
    """The others do not go on to where they would wait for it, and XLA end the process."""
    for region in (by_device, lambda body: in_parts(body, mesh_of(2, 2))):
        for ordered in (True, False):
            _check_failures(lines, region, ordered)


def test_failure_of_one_is_of_all():
    in_process_of_its_own(__file__, "check_failure_of_one_is_of_all")


def check_failure_behind_a_branch(lines):
    """One that only some devices take, of which the callback may be."""
    fails = None

    def call(n, x):
        if n == fails:
            raise ValueError("as asked")
        return x

    def body(x):
        n = lax.axis_index("x")
        x = lax.cond(n % 2 == 0, lambda x: (fx.print("even {}", n), _call(x))[1], _same, x)
        fx.print("all {}", n)
        x = fx.callback(call, ONE, n, x)
        return x + lax.psum(x, "x")

    f = fx.jit(by_device(body))
    before = ["even 0", "even 2", *(f"all {n}" for n in range(4))]

    def fail():
        with pytest.raises(fx.EffectError, match=r"raised ValueError\('as asked'\)") as ended:
            f(jnp.ones(4)).block_until_ready()
        assert ended.value.device == fails
        fx.effects_barrier()

    for fails, after_error in itertools.product(range(4), ["stop", "go_on"]):  # noqa: B007 - `call` reads it
        with fx.config.override(after_error=after_error):
            assert lines(fail) == before
    fails, outs = None, []
    assert lines(lambda: outs.append(f(jnp.ones(4)))) == before
    assert outs[0].tolist() == [5] * 4


def test_failure_behind_a_branch():
    in_process_of_its_own(__file__, "check_failure_behind_a_branch")


def check_failure_ahead_of_what_xla_gathers():
    """Behind the region, in which devices do not wait for each other."""
    fails = None

    def call(n, x):
        if n == fails:
            raise ValueError("as asked")
        return x

    region = by_device(lambda x: fx.callback(call, ONE, lax.axis_index("x"), x))
    f = fx.jit(lambda x: region(x).sum())
    x = jax.device_put(X, jax.NamedSharding(mesh_of(4), P("x")))
    for fails in range(4):  # noqa: B007 - `call` reads it
        with pytest.raises(fx.EffectError, match="as asked"):
            f(x).block_until_ready()
            fx.effects_barrier()
    fails = None
    assert f(x + 1) == 4


def test_failure_ahead_of_what_xla_gathers():
    in_process_of_its_own(__file__, "check_failure_ahead_of_what_xla_gathers")


def check_callback_runs_a_program_on_a_device_that_waits(lines):
    """It does not stand behind where the device waits for the one whose callback it is."""
    inner = jax.jit(lambda x: x + 1)
    other = {n: jax.device_put(jnp.float32(10 * n), device) for n, device in enumerate(jax.devices()[:4])}

    def call(n, x):
        return np.asarray(inner(other[(int(n) + 1) % 4])).reshape(1) + x

    def body(beside, x):
        n = lax.axis_index("x")
        beside(n)
        return lax.psum(fx.callback(call, ONE, n, x), "x") + x

    def in_branch(n):
        lax.cond(n == 2, lambda: [fx.print("only {}", n) for _ in range(3)] and None, lambda: None)

    outs = []
    for beside, shown in [(lambda n: None, []), (in_branch, ["only 2"] * 3)]:
        f = fx.jit(by_device(functools.partial(body, beside)))
        for _ in range(20):
            assert lines(lambda f=f: outs.append(f(jnp.arange(4.0)))) == shown
            assert outs.pop().tolist() == [70, 71, 72, 73]


def test_callback_runs_a_program_on_a_device_that_waits():
    in_process_of_its_own(__file__, "check_callback_runs_a_program_on_a_device_that_waits")
