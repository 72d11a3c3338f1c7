"""A callback that raises ends its program on one device; the others go on without it, in their order, to the end."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import effects as fx
from tests.dispatch.devices.meshes import by_device

P = jax.P
LOST = 2
ONE = jax.ShapeDtypeStruct((), jnp.int32)


def _raise_on_lost(device):
    if device == LOST:
        raise ValueError(f"device {device}")
    return np.int32(1)


def _say(*words):
    print(*words)
    return np.int32(1)


def _fail_on_one(x):
    device = lax.axis_index("x")
    fx.print("before {}", device)
    return x + fx.callback(_raise_on_lost, ONE, device)


def _go_on(x):
    device = lax.axis_index("x")
    fx.print("after {}", device)
    x = x + fx.callback(lambda device: _say("called", device), ONE, device)
    fx.print("end {}", device)
    return x


def _whole(n):
    """Effects of all devices together, of which the one that is lost may have been the first."""
    fx.print("whole {}", n)
    return n + fx.callback(lambda n: _say("called with", n), ONE, n)


BEFORE = [f"before {n}" for n in range(4)]
OTHERS = [f"{word} {n}" for word in ("after", "called", "end") for n in (0, 1, 3)]
PROGRAMS = {
    "in one region": (lambda x, n: (by_device(lambda x: _go_on(_fail_on_one(x)))(x), n), OTHERS),
    "in the next region": (lambda x, n: (by_device(_go_on)(by_device(_fail_on_one)(x)), n), OTHERS),
    "around regions": (
        lambda x, n: (by_device(_go_on)(by_device(_fail_on_one)(x)), _whole(_whole(n))),
        [*OTHERS, "whole 0", "called with 0", "whole 1", "called with 1"],
    ),
    "between regions": (
        lambda x, n: (lambda x, n: (by_device(_go_on)(x), n))(by_device(_fail_on_one)(x), _whole(n)),
        ["whole 0", "called with 0", *OTHERS],
    ),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("after_error", ["stop", "go_on"])
def test_others_go_on(after_error, program, lines):
    function, after = PROGRAMS[program]
    f = fx.jit(function)
    x = jnp.arange(4, dtype=jnp.int32)

    def call():
        with fx.config.override(after_error=after_error):
            with pytest.raises(fx.EffectError) as caught:
                f(x, np.int32(0))
            fx.effects_barrier(timeout=120)
        assert str(caught.value.__cause__) == f"device {LOST}"

    for _ in range(3):
        assert lines(call) == (BEFORE + after if after_error == "go_on" else BEFORE)


@pytest.mark.parametrize("after_error", ["stop", "go_on"])
def test_exchanges_that_begin_later_fail(after_error, lines):
    """When the device fails, the others may have started no exchange yet, and so there is none that could fail."""
    rounds = [(device, (device + 1) % 4) for device in range(4)]

    def region(x):
        device = lax.axis_index("x")
        x = _fail_on_one(x)
        for _ in range(3):  # until the drain has seen that one has failed
            x = x + fx.callback(lambda device: _say("called", device), ONE, device)
        return fx.async_done(fx.ppermute_start(x, "x", rounds))

    f = fx.jit(by_device(region))
    x = jnp.arange(4, dtype=jnp.int32)

    def call():
        with fx.config.override(after_error=after_error):
            with pytest.raises(fx.EffectError) as caught:
                f(x)
            fx.effects_barrier(timeout=120)
        assert str(caught.value.__cause__) == f"device {LOST}"

    called = [f"called {n}" for n in (0, 1, 3)] * 3
    for _ in range(3):
        assert lines(call) == (BEFORE + called if after_error == "go_on" else BEFORE)


@pytest.mark.parametrize("after_error", ["stop", "go_on"])
def test_groups_of_replicas_do_not_wait(after_error, lines):
    """In a region over some axes one device publishes on behalf of its group, not known which: all groups end."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))

    def raises(device):
        if device == 1:
            raise ValueError("group 1")
        return np.int32(1)

    def first(x):
        return x + fx.callback(raises, ONE, lax.axis_index("x"))

    def region(body):
        return jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"}, check_vma=False)

    f = fx.jit(lambda x: region(_go_on)(region(first)(x)))
    x = jax.device_put(jnp.arange(4, dtype=jnp.int32), jax.NamedSharding(mesh, P(("x", "y"))))

    def call():
        with fx.config.override(after_error=after_error):
            with pytest.raises(fx.EffectError) as caught:
                f(x)
            fx.effects_barrier(timeout=120)
        assert str(caught.value.__cause__) == "group 1"

    shown = lines(call)
    assert shown == (["after 0", "called 0", "end 0"][: len(shown)] if after_error == "go_on" else [])
