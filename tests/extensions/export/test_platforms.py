"""Programs that are exported for platforms without native handlers, which call them in vain.

This machine need not have such a platform: without the setting `native` a CPU is one.
"""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.extensions.export.common import again, total

pytestmark = pytest.mark.slow

X = jnp.arange(3.0)
FLOAT = jax.ShapeDtypeStruct((), "float32")


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


@pytest.mark.parametrize("platforms", [("cpu", "tpu"), ("tpu", "cuda", "cpu")])
def test_exported_for_several_platforms(lines, platforms):
    """One program for several platforms, some of which have no native handlers, runs where there are some."""
    program = again(fx.export(_effects, platforms=platforms)(X))
    assert program.platforms == platforms
    assert _shown(lines, program.call) == SHOWN
    fx.export(_effects, platforms=("tpu",))(X)


@pytest.mark.parametrize("platforms", [None, ("cpu", "tpu"), ("cuda", "cpu")])
@pytest.mark.parametrize("outer", [lambda f: f, fx.jit], ids=["by itself", "in a program"])
def test_call_without_handlers_is_refused(platforms, outer):
    """An exported program calls handlers: where there are none an error says so, and not XLA, before anything runs."""
    program = again(fx.export(_effects, platforms=platforms)(X))
    with (
        fx.config.override(native=False),
        fx.capture() as records,
        pytest.raises(NotImplementedError, match="`_effects` has effects, and is called where there are no native"),
    ):
        outer(lambda x: program.call(x))(X)
    assert not records


def test_program_without_effects_needs_no_handlers():
    program = again(fx.export(jnp.sin)(X))
    with fx.config.override(native=False):
        np.testing.assert_array_equal(program.call(X), jnp.sin(X))


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
    for program in programs:
        with fx.config.override(native=False), pytest.raises(NotImplementedError, match="there are no native handlers"):
            program.call(x)
