"""Programs that are exported for platforms without native handlers, where JAX's Python callbacks publish their records.

This machine need not have such a platform: without the setting `native` a CPU is one.
"""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.extensions.export.common import again, run_with, total

X = jnp.arange(3.0)
FLOAT = jax.ShapeDtypeStruct((), "float32")


@pytest.fixture
def without_handlers():
    """Programs that are lowered find no native handlers."""
    fx.config.native = False
    jax.clear_caches()
    yield
    fx.config.native = True
    jax.clear_caches()


def _effects(x):
    def body(i, y):
        fx.print("{}: {}", i, y)
        return y + 1

    fx.print("x {}", x)
    y = fx.callback(total, FLOAT, x)
    y = jax.lax.fori_loop(0, 2, body, y)
    jax.vmap(lambda x: jax.lax.cond(x > 0, lambda: fx.print("lane {}", x), lambda: None))(x)
    fx.print("unordered", ordered=False)
    return x + y


SHOWN = ["x [0. 1. 2.]", "0: 3.0", "1: 4.0", "lane 1.0", "lane 2.0"]


def _shown(lines, call):
    results = []
    shown = lines(lambda: results.append(call(X)))
    assert results[0].tolist() == [5, 6, 7]
    assert shown.count("unordered") == 1
    return [line for line in shown if line != "unordered"]


@pytest.mark.parametrize("platforms", [None, ("cpu", "tpu"), ("cuda", "cpu")])
def test_exported_program_without_handlers(lines, without_handlers, platforms):
    """Effects are those of a platform with handlers, in their order, also among the effects around them."""
    program = again(fx.export(_effects, platforms=platforms)(X))

    def around(x):
        fx.print("before")
        y = program.call(x)
        fx.print("after")
        return y

    assert _shown(lines, program.call) == SHOWN
    assert _shown(lines, fx.jit(around)) == ["before", *SHOWN, "after"]


@pytest.mark.parametrize("platforms", [("cpu", "tpu"), ("tpu", "cuda", "cpu")])
def test_exported_for_several_platforms(lines, platforms):
    """One program for several platforms, some of which have no native handlers, runs where there are some."""
    program = again(fx.export(_effects, platforms=platforms)(X))
    assert program.platforms == platforms
    assert _shown(lines, program.call) == SHOWN
    fx.export(_effects, platforms=("tpu",))(X)


def test_exported_here_and_called_where_there_are_no_handlers():
    """A process without handlers calls what one with handlers has exported."""
    data = fx.export(_effects)(X).serialize()
    code = """
import sys
import effects as fx
fx.register_callback("tests.total")(lambda x: x.sum())
fx.config.native = False
fx.deserialize(open(sys.argv[1], "rb").read()).call(__import__("numpy").arange(3, dtype="float32"))
fx.effects_barrier()
"""
    done = run_with(code, data)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line != "unordered"] == SHOWN


def test_a_callback_that_raises_without_handlers(without_handlers):
    """What a callback raises is raised by the call."""

    @fx.register_callback("tests.raises_without_handlers")
    def raises(x):
        raise ValueError("as asked")

    program = again(fx.export(lambda x: fx.callback(raises, FLOAT, x))(np.float32(1)))
    with pytest.raises(fx.EffectError, match="as asked"):
        program.call(np.float32(1))


def test_symbolic_shapes_without_handlers_are_refused(without_handlers):
    """JAX's Python callbacks have known shapes: an error says so where the program is called."""
    (n,) = jax.export.symbolic_shape("n")
    program = fx.export(lambda x: fx.print("{}", x))(jax.ShapeDtypeStruct((n,), "float32"))
    with pytest.raises(NotImplementedError, match="symbolic shapes is called on a platform without native handlers"):
        program.call(X)


def test_several_devices_without_handlers_are_refused():
    """Over several devices an error says so, where the program is exported or called."""
    mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.NamedSharding(mesh, jax.P("i"))
    x = jax.device_put(jnp.arange(4.0), sharding)

    def whole(x):
        fx.print("{}", x)

    region = jax.shard_map(whole, mesh=mesh, in_specs=jax.P("i"), out_specs=None)
    with pytest.raises(fx.MissingTokenRule, match="without the native module"):
        fx.export(region, platforms=("cpu", "tpu"))(x)
    programs = [fx.export(fx.jit(f, in_shardings=sharding))(x) for f in (whole, region)]
    fx.config.native = False
    try:
        for program in programs:
            with pytest.raises(
                (NotImplementedError, fx.MissingTokenRule), match="without (native handlers|the native)"
            ):
                program.call(x)
    finally:
        fx.config.native = True
