"""Callbacks that raise on several devices, what is refused there, and who sees the runtime token."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType

import effects as fx
from tests.dispatch.devices.meshes import by_device, mesh_over, rows_of

P = jax.P
F32, I32 = jnp.float32, jnp.int32
ONE = jax.ShapeDtypeStruct((1,), I32)
X = np.arange(16, dtype=np.float32).reshape(4, 4)


# Callbacks that raise, and what is refused


def _raising(where, awaited, calls):
    """A function of a region: a callback that raises on these devices, between two prints."""

    def raises(n):
        calls.append(int(n))
        if int(n) in where:
            raise ValueError(f"device {n}")
        return np.ones(1, np.int32)

    def body(x):
        n = lax.axis_index("x")
        fx.print("before {}", n)
        y = fx.callback(raises, ONE if awaited else None, n)
        fx.print("after {}", n)
        return x + (0 if y is None else y)

    return body


def test_queued_callback_that_raises_on_one_device(lines):
    """It is the barrier's, once. What comes after it on all devices stops, or all else goes on."""
    calls = []
    f = fx.jit(by_device(_raising({2}, False, calls)))
    before, after = ([f"{word} {n}" for n in range(4)] for word in ("before", "after"))
    left_out = {}

    def call():
        f(jnp.arange(4, dtype=I32))
        with pytest.raises(fx.EffectError) as caught:
            fx.effects_barrier(timeout=120)
        assert str(caught.value.__cause__) == "device 2"
        assert caught.value.not_carried_out == left_out

    with fx.config.override(after_error="go_on"):
        assert lines(call) == before + after
    left_out = {"callback": 1, "print": 4}
    assert lines(call) == before
    assert calls == [0, 1, 2, 3, 0, 1, 2]


def test_callback_that_raises_on_every_device(lines):
    """The call raises it, for the first device in the order; the next programs know nothing of any."""
    calls = []
    fails = fx.jit(by_device(_raising({0, 1, 2, 3}, True, calls)))
    goes_on = fx.jit(by_device(_raising(set(), True, calls)))
    x = jax.device_put(jnp.arange(4, dtype=I32), rows_of())
    shown = [f"{word} {n}" for word in ("before", "after") for n in range(4)]

    def call():
        with pytest.raises(fx.EffectError) as caught:
            fails(x)
        assert str(caught.value.__cause__) == "device 0"
        try:
            fx.effects_barrier(timeout=120)
        except fx.EffectError as error:  # the other devices' functions ran before the program had ended
            others = [str(failure.__cause__) for failure in error.failures]
            assert others == [f"device {n}" for n in calls[1:]]

    for _ in range(2):
        assert lines(call)[:4] == shown[:4]
        assert calls[0] == 0
        calls.clear()
        assert lines(goes_on, x) == shown
        assert calls == [0, 1, 2, 3]
        calls.clear()


def _shows(x, scale):
    fx.print("{} {}", x[0], scale)
    return fx.callback(lambda x: 2 * x, jax.ShapeDtypeStruct((1,), F32), x) + scale


@pytest.mark.slow
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("region", ["shard_map", "mesh of two axes", "devices in another order", "pmap"])
def test_regions_outside_of_jit(region, check_vma, lines):
    """Devices have their effects one by one, each its own, as inside of jit."""
    if region == "pmap":
        f = jax.pmap(_shows, in_axes=(0, None))
    else:
        axes, shape = (("x", "y"), (2, 2)) if region == "mesh of two axes" else ("x", (4,))
        devices = [jax.devices()[number] for number in (2, 0, 3, 1)] if "order" in region else jax.devices()[:4]
        mesh = jax.sharding.Mesh(np.array(devices).reshape(shape), axes)
        f = jax.shard_map(_shows, mesh=mesh, in_specs=(P(axes), P()), out_specs=P(axes), check_vma=check_vma)
    x = jnp.arange(4, dtype=F32).reshape((4, 1) if region == "pmap" else (4,))
    results = []
    text = [f"{i}.0 10.0" for i in ([1, 3, 0, 2] if "order" in region else range(4))]
    assert lines(lambda: results.append(fx.jit(f)(x, 10.0))) == text
    with fx.capture() as records, jax.disable_jit():
        results.append(fx.jit(f)(x, 10.0))
    shown = [(record.effect, record.device) for record in records]
    assert shown == [*zip(4 * ["print"], range(4), strict=True), *zip(4 * ["callback"], range(4), strict=True)]
    assert [record.text for record in records][:4] == text
    assert [result.reshape(-1).tolist() for result in results] == 2 * [[10, 12, 14, 16]]


@pytest.mark.parametrize("kind", ["print", "callback"])
def test_region_over_one_axis_outside_of_jit(kind):
    """Each replica group has one effect, from its replica 0, on the whole of the group."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))

    def body(x):
        if kind == "print":
            return (fx.print("{}", x), x)[1]
        return fx.callback(lambda x: 2 * x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    f = jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    x = jax.device_put(jnp.arange(8, dtype=F32), jax.NamedSharding(mesh, P(("x", "y"))))
    shown = []
    for context in (contextlib.nullcontext(), jax.disable_jit()):
        with fx.capture() as records, context:
            result = fx.jit(f)(x)
        shown.append((result.tolist(), [(record.device, record.text) for record in records]))
    assert shown[0] == shown[1]
    assert [device for device, _ in shown[0][1]] == [0, 2]


def test_nan_that_a_region_makes(lines):
    """With `jax_debug_nans` the error is JAX's own, whatever the function shows, and whether it has been called."""

    @fx.jit
    def f(x):
        fx.print("whole")
        return by_device(lambda x: (fx.print("{}", x[0]), jnp.log(x))[1])(x)

    def call():
        with jax.debug_nans(True):
            f(jnp.arange(4, dtype=F32) + 1)
            with pytest.raises(FloatingPointError):
                f(jnp.arange(4, dtype=F32) - 2)

    good, bad = ["whole", "1.0", "2.0", "3.0", "4.0"], ["whole", "-2.0", "-1.0", "0.0", "1.0"]
    shown = lines(call)  # JAX says so, and runs the function again by hand
    assert [line for line in shown if line in good + bad] == good + 2 * bad


def test_program_that_a_call_needs_for_its_arguments(lines):
    """Though it is traced inside of that call, which is not to be begun anew for it."""

    class Static:
        def __init__(self, function):
            self.function = function

        def __hash__(self):
            function, self.function = self.function, int
            function()
            return 1

        def __eq__(self, other):
            return type(self) is type(other)

    around = fx.jit(lambda x, static: (fx.print("around"), x)[1], static_argnums=1)
    inside = fx.jit(lambda: fx.print("inside"))
    x = jax.device_put(jnp.zeros(2), jax.NamedSharding(mesh_over(0, 1), P("x")))
    assert lines(lambda: around(x, Static(int))) == ["around"]
    assert lines(lambda: around(x, Static(inside))) == ["around", "inside"]


# The runtime token is nobody's argument


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_transfer_guards_do_not_see_the_token(kind, lines):
    mesh = jax.make_mesh((4,), ("x",), axis_types=(kind,))
    x = jax.device_put(jnp.arange(4), jax.NamedSharding(mesh, P("x")))
    f = fx.jit(lambda x: fx.print("{}", x))

    def guarded(x):
        with jax.transfer_guard("disallow"):
            for _ in range(8):
                f(x)

    assert lines(guarded, x) == ["[0 1 2 3]"] * 8


def test_eager_effects_say_the_device():
    """As the program that would be called with these values does."""

    def body(x):
        fx.print("{} {device}", x)

    rows = jax.device_put(jnp.arange(2.0), jax.NamedSharding(mesh_over(2, 3), P("x")))
    xs = [jax.device_put(1, jax.devices()[2]), rows, jnp.zeros(()), 1, np.ones(1)]
    with fx.capture(suppress=True) as records:
        for x in xs:
            fx.jit(body)(x)
            body(x)
    assert [record.device for record in records] == [2, 2, -1, -1, 0, 0, 0, 0, 0, 0]
    assert [record.text for record in records][::2] == [record.text for record in records][1::2]
    with fx.capture(suppress=True) as records, jax.default_device(jax.devices()[3]):
        for x in xs[0], xs[2], 1:
            fx.jit(body)(x)
            body(x)
    assert [record.device for record in records] == [2, 2, 3, 3, 3, 3]


def test_arguments_on_devices_that_do_not_belong_together():
    """JAX speaks of the user's arguments."""
    x = jax.device_put(jnp.arange(4), jax.NamedSharding(jax.make_mesh((4,), ("x",)), P("x")))
    y = jax.device_put(jnp.arange(4), jax.devices()[1])
    with pytest.raises(ValueError, match=r"argument x of .* and argument y of ") as raised:
        fx.jit(lambda x, y: fx.print("{} {}", x, y))(x, y)
    assert "_runtime_token" not in str(raised.value)
    fx.effects_barrier()


@pytest.mark.parametrize("devices", [1, 2])
def test_mesh_of_devices_that_the_program_is_not_called_for(devices):
    """An abstract mesh has those of the program. If they are not as many, JAX refuses it, with effects or without."""
    mesh = mesh_over()

    def region(x, body=_shows_first):
        return jax.shard_map(body, mesh=mesh.abstract_mesh, in_specs=P("x"), out_specs=P("x"))(x)

    x = jnp.arange(4.0)
    given = x if devices == 1 else jax.device_put(x, jax.NamedSharding(mesh_over(0, 1), P("x")))
    with pytest.raises(Exception) as without:
        jax.jit(lambda x: region(x, lambda x: x))(given)
    for program in (region, lambda x: lax.fori_loop(0, 2, lambda i, x: region(x), x)):
        with pytest.raises(without.type) as refused:
            fx.jit(program)(given)
        assert str(refused.value)[:40] == str(without.value)[:40]
    fx.effects_barrier(timeout=60)


def _shows_first(x):
    fx.print("{}", x[0])
    return x


@pytest.mark.parametrize("how", ["an argument", "jax.set_mesh"])
def test_abstract_mesh_has_the_devices_of_the_program(how, lines):
    region = fx.jit(jax.shard_map(_shows_first, mesh=mesh_over().abstract_mesh, in_specs=P("x"), out_specs=P("x")))
    x = np.arange(4.0, dtype=np.float32)
    if how == "an argument":
        shown = lines(region, jax.device_put(x, jax.NamedSharding(mesh_over(), P("x"))))
    else:
        with jax.set_mesh(mesh_over()):
            shown = lines(region, x)
    assert shown == ["0.0", "1.0", "2.0", "3.0"]
