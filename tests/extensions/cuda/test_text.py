"""What programs for CUDA call, and that they count by themselves. No GPU is needed for that, and none has run them."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import effects as fx
from tests.extensions.cuda.calls import LEAVE, Call, calls_in, lowered

FLOAT = jax.ShapeDtypeStruct((), "float32")
P = jax.P


def _kinds(calls):
    return [call.target.removeprefix("effects_") for call in calls]


def test_records_are_chained():
    """The token of a record is what the one before it gave back, and it says how many are ahead. The last one ends the
    program, whose output token the host does not read, so that no memory is shared with it."""

    def f(x):
        fx.print("a {}", x)
        fx.log("b", x=x)
        x = fx.callback(lambda x: x + 1, FLOAT, x)
        fx.callback(lambda x: None, None, x)
        return x

    calls = calls_in(lowered(f, 1.0, jit=fx.jit))
    assert calls == [
        Call("effects_record", "argument", [0, 0, 0, 0], True),
        Call("effects_record", 0, [0, 0, 0, 0], True, ahead=1),
        Call("effects_call", 1, [0, 0, 0, 0], True, ahead=2),
        Call("effects_record", 2, [0, 0, 0, 0], False, ahead=3),
    ]


def test_loops_and_branches():
    """A loop's body and a branch take the token of the record before, and count on by themselves."""

    def f(x, n):
        def step(x, i):
            fx.print("step {}", i)
            x = fx.callback(lambda x: x + 1, FLOAT, x)
            return x, None

        x, _ = jax.lax.scan(step, x, jnp.arange(3))
        x = jax.lax.while_loop(lambda x: x < 9, lambda x: (fx.print("turn {}", x), x + 1)[1], x)
        x = jax.lax.cond(n > 0, lambda x: (fx.print("yes"), x)[1], lambda x: (fx.log("no"), x)[1], x)
        fx.print("end")
        return x

    module = lowered(f, 1.0, 2, jit=fx.jit)
    calls = calls_in(module)
    assert sorted(_kinds(calls)) == ["call", *("record" for _ in range(5))]  # bodies may stand behind the program's own
    assert sum(not call.is_in_place for call in calls) == 1  # which ends the program
    [awaited] = [call for call in calls if call.target == "effects_call"]
    assert calls[awaited.before].before == "argument" and awaited.ahead == 1
    assert sum(call.before == "argument" for call in calls) >= 2  # the first in each loop's body


def test_lanes():
    """Lanes are in one record, under a mask too."""

    def f(x):
        return jax.lax.cond(x > 0, lambda: (fx.print("{}", x), fx.callback(lambda x: x, FLOAT, x))[1], lambda: x)

    calls = calls_in(lowered(jax.vmap(f), jnp.arange(4.0), jit=fx.jit))
    assert set(_kinds(calls)) <= {"record", "call", "close"} and all(call.is_in_place for call in calls)
    assert {"record", "call"} <= set(_kinds(calls))


def test_unordered_effects_count_nothing():
    """They are joined at the end, which a call of its own says."""
    calls = calls_in(lowered(lambda x: fx.print("{}", x, ordered=False), 1.0, jit=fx.jit))
    assert calls == [
        Call("effects_record", "argument", [1, 0, 0, 0], True),  # the number of what has no order
        Call("effects_close", "stablehlo.maximum", [0, 0, 0, 0], True),
    ]


def _region(body, **options):
    mesh = AbstractMesh((4,), ("i",))
    region = jax.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P("i"), **options)
    return region, jax.ShapeDtypeStruct((8,), "float32", sharding=jax.NamedSharding(mesh, P("i")))


def test_region_without_order_is_left_behind_its_effects():
    """A call takes the tokens of the effects: without it the program could end before them."""

    def several(x):
        jax.lax.fori_loop(0, 3, lambda i, _: fx.print("{}", i, ordered=False), None)
        return x

    region, x = _region(several)
    assert _kinds(calls_in(lowered(region, x, jit=fx.jit))).count("leave") == 1


def test_regions():
    """Devices enter and leave with their records, or by calls of their own, and the program advances the phase."""

    def one(x):
        fx.print("{}", x)
        return x

    def two(x):
        fx.print("{}", x)
        x = jax.lax.psum(x, "i")
        fx.print("{}", x)
        return jnp.broadcast_to(x, (2,))

    def between(x):
        x = x + 1
        y = jax.lax.cond(x.sum() > 0, lambda: (fx.print("{}", x), x)[1], lambda: x)
        return y * 2

    region, x = _region(one)
    calls = calls_in(lowered(region, x, jit=fx.jit))
    assert calls[0] == Call("effects_record", "argument", [0, 0, 0, 0], False)

    region, x = _region(two, check_vma=False)
    calls = calls_in(lowered(region, x, jit=fx.jit))
    assert _kinds(calls) == ["record", "record"]
    assert calls[1].before == 0 and calls[1].added == [0, 0, 1, 0] and calls[1].ahead == 1  # entered, and one effect on

    region, x = _region(between, check_vma=False)

    def program(x):
        x = region(x)
        fx.print("after")
        return x

    module = lowered(program, x, jit=fx.jit)
    calls = calls_in(module)
    assert _kinds(calls) == ["enter", "record", "leave", "record"]
    assert [call.is_in_place for call in calls] == [True, True, True, False]
    assert f"dense<{LEAVE}>" in str(module)


def test_sharded_programs():
    """With several devices, what XLA's partitioner writes for each of them also counts on."""
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(jnp.arange(8.0), jax.NamedSharding(mesh, P("i")))

    def f(x):
        fx.print("{}", x)
        fx.print("{}", x, per_shard=True)
        return fx.callback(lambda x: x, jax.ShapeDtypeStruct((8,), "float32"), x)

    module = lowered(f, x, jit=fx.jit)
    said = re.findall(r'custom_call @effects_shards.*?backend_config = "(.*?)"[,}]', str(module))
    assert len(said) == 2
    assert r"\22steps\22: [[true, 0, 1]]" in said[0] and r"\22steps\22: [[true, 2, 0]]" in said[1]
    assert _kinds(calls_in(module)) == ["shards", "shards", "call", "close"]


def test_programs_that_jax_dispatches():
    """JAX's own tokens keep their order. They have no memory, so that none is an alias, which XLA could not compile."""
    effect = _register_nothing()

    def f(x):
        fx.print("a {}", x)
        x = fx.callback(lambda x: x + 1, FLOAT, x)
        fx.print("b {}", x, ordered=False)
        return fx.custom_call("tests.cuda.nothing", FLOAT, x, effect=effect)

    calls = calls_in(lowered(f, 1.0, jit=jax.jit))
    assert _kinds(calls) == ["plain", "plain_call", "plain", "custom_call"]
    assert not any(call.is_in_place for call in calls)


def test_custom_calls_need_no_gate():
    """A GPU runs programs in the order in which it gets them."""
    effect = _register_nothing()

    def f(x):
        return fx.custom_call("tests.cuda.nothing", FLOAT, x, effect=effect)

    assert _kinds(calls_in(lowered(f, 1.0, jit=fx.jit))) == ["custom_call", "close"]


def _register_nothing():
    """A handler that no program here runs, and an effect for it."""
    fx.register_custom_call("tests.cuda.nothing", lambda: _capsule(), platform="cuda")
    return fx.register_effect(fx.Effect("tests.cuda", kind="device"))


def _capsule():
    from jaxlib.cpu import _lapack

    _lapack.initialize()
    return _lapack.registrations()["lapack_spotrf_ffi"]


@pytest.mark.parametrize("jit", [fx.jit, jax.jit])
def test_parts_that_are_left_to_the_host(jit):
    """XLA has no handlers there, and ends the process when it compiles such a program. For CPUs it compiles it."""
    from jax.experimental import compute_on

    def body(x):
        fx.print("{}", x)
        return x + 1

    call = getattr(compute_on, "compute_on2", compute_on.compute_on)
    f = call(body, compute_type="device_host", out_memory_spaces=jax.memory.Space.Device)
    with pytest.raises(NotImplementedError, match=r"test_text.py:\d+.* for cuda that .compute_on"):
        lowered(f, 1.0, jit=jit)
    assert "effects_" in jit(f).lower(1.0).as_text()


def test_without_handlers():
    """With the setting off, JAX's callbacks are asked for, which it makes only for devices that are here."""
    with (
        fx.config.override(native=False),
        pytest.raises(NotImplementedError, match="lowered for cuda.*callbacks of JAX's"),
    ):
        lowered(lambda x: fx.print("{}", x), 1.0, jit=fx.jit)


@pytest.mark.parametrize("platforms", [("cuda",), ("cuda", "cpu"), ("cuda", "cpu", "tpu")])
def test_exported_programs_count_by_themselves(platforms, lines):
    """One text serves all platforms: it counts by itself if one of them needs that, and runs so on the others."""

    def f(x):
        def step(x, i):
            fx.print("step {}: {}", i, x)
            return x + 1, None

        fx.print("begin")
        return jax.lax.scan(step, x, jnp.arange(3))[0]

    exported = fx.export(fx.jit(f), platforms=platforms)(np.float32(1))
    text = exported.mlir_module()
    assert text.count("custom_call @effects_record") == 2 and text.count("output_operand_aliases") == 2
    if "cpu" in platforms:
        again = fx.deserialize(exported.serialize())
        assert lines(again.call, np.float32(1)) == ["begin", "step 0: 1.0", "step 1: 2.0", "step 2: 3.0"]
        with fx.config.override(native=False):
            assert lines(again.call, np.float32(1)) == ["begin", "step 0: 1.0", "step 1: 2.0", "step 2: 3.0"]
