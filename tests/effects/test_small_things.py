"""Arguments that are nearly what is expected: NumPy's numbers, bytes, and names that only look like JAX's."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx


def test_format_may_name_what_is_no_tracer(lines):
    """Only what JAX shows of values that are not known yet is refused."""
    fmt = "RayTracer(depth=3) MyTracer<x> {}"
    assert lines(fx.jit(lambda x: fx.print(fmt, x)), 1) == ["RayTracer(depth=3) MyTracer<x> 1"]


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad, lambda f: jax.jit(jax.grad(f))])
def test_format_with_a_tracer_is_refused(transform):
    """Whatever the transformation, a value that is not known yet is none to be part of a format."""

    def f(x):
        fx.print(f"{x}")
        return x.sum()

    with pytest.raises(fx.FormatError, match="text of a traced value"):
        transform(f)(jnp.ones(()) if transform is not jax.vmap else jnp.ones(2))


@pytest.mark.parametrize("timeout", [np.int64(10), np.float32(10.5), np.float64(10), np.uint8(3), 5])
def test_timeout_may_be_a_number_of_numpys(timeout):
    """A number of seconds is one, whatever its type."""
    fx.effects_barrier(timeout=timeout)


@pytest.mark.parametrize("timeout", [np.int64(-1), np.float32("nan"), np.bool_(True), "3", 1j])
def test_timeout_that_is_none_is_refused(timeout):
    """And everything else is not."""
    with pytest.raises(ValueError, match="A timeout is a number of seconds"):
        fx.effects_barrier(timeout=timeout)


def test_sizes_may_be_numbers_of_numpys():
    """Settings and levels take whole numbers of any type, and keep them as Python's."""
    with fx.config.override(ring_bytes=np.int64(1 << 16), exit_code=np.uint8(3)):
        assert (fx.config.ring_bytes, fx.config.exit_code) == (1 << 16, 3)
        assert type(fx.config.ring_bytes) is int
    with pytest.raises(ValueError, match="whole number of bytes"):
        fx.config.ring_bytes = np.float32(65536)
    with fx.capture(suppress=True) as records:
        fx.jit(lambda x: fx.log("event", x=x, level=np.int64(logging.WARNING)))(1)
    assert records[0].level == logging.WARNING and type(records[0].level) is int


@pytest.mark.parametrize("effects", [b"print", [b"print"], 3])
def test_effects_by_other_than_names_are_refused(effects):
    """The error shows what was given."""
    shown = repr(effects[0] if isinstance(effects, list) else effects)
    for call in (lambda: fx.effects_barrier(effects=effects), lambda: fx.add_handler(print, effects)):
        with pytest.raises(ValueError, match=f"{shown} is not a registered effect"):
            call()


@pytest.mark.parametrize("when_full", ["wait", "drop"])
def test_stats_add_up_after_a_barrier(when_full):
    """Every record that was published has been released, or dropped, or discarded."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = jax.device_put(jnp.arange(8), jax.NamedSharding(mesh, jax.P("x")))

    @fx.jit
    def f(x, n):
        fx.callback(lambda x: None, None, x)
        jax.lax.fori_loop(0, n, lambda i, _: fx.print("{}", i), None)
        fx.print("{}", x, ordered=False)
        show = jax.shard_map(lambda x: (fx.print("{}", x), x)[1], mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))
        return show(x)

    def run():
        with fx.capture(suppress=True):
            f(sharded, 3000)

    fx.effects_barrier(all_threads=True, timeout=60)
    before = fx.stats()
    with fx.config.override(ring_bytes=4096, when_full=when_full):
        run()
        fx.effects_barrier(all_threads=True, timeout=60)
    after = fx.stats()
    grown = {name: after[name] - before[name] for name in after}
    assert grown["published"] == grown["released"] + grown["dropped"] + grown["discarded"]
    assert grown["released"] > 0 and grown["discarded"] > 0
