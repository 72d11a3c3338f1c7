"""A record's device is right or unknown, whichever jit makes the program, and wherever it runs."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import effects as fx

P = jax.P
DEVICES = jax.local_device_count()
ORDER = [*range(1, DEVICES, 2), *range(0, DEVICES, 2)]
"""A mesh's devices, in another order than in `jax.devices()`."""


def _mesh(devices, shape, names):
    devices = np.array([jax.devices()[i] for i in devices]).reshape(shape)
    return jax.sharding.Mesh(devices, names, axis_types=(jax.sharding.AxisType.Auto,) * len(names))


ALL = _mesh(ORDER, (DEVICES,), ("d",))
HALF = _mesh(ORDER[: DEVICES // 2], (DEVICES // 2,), ("d",))
GRID = _mesh(ORDER, (DEVICES // 2, 2), ("d", "e"))


def _own_numbers(mesh):
    """An array of which each device of a mesh has the number of its own place."""
    parts = [jax.device_put(jnp.full((1,), device.id, jnp.int32), device) for device in mesh.devices.flat]
    sharding = jax.NamedSharding(mesh, P(mesh.axis_names))
    return jax.make_array_from_single_device_arrays((mesh.size,), sharding, parts)


def _over(mesh, **options):
    spec = P(mesh.axis_names) if not options else P(*options["axis_names"])
    return lambda f: jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec, **options)


def _pmap(order):
    return lambda f: lambda _: jax.pmap(f, devices=[jax.devices()[i] for i in order])(np.array(order)[:, None])


def _nested(f):
    inner = jax.shard_map(f, in_specs=P("e"), out_specs=P("e"), axis_names={"e"})
    return jax.shard_map(inner, mesh=GRID, in_specs=P("d"), out_specs=P("d"), axis_names={"d"})


def _in_scan(f):
    return _over(ALL)(lambda x: jax.lax.scan(lambda x, _: (f(x), None), x, None, length=2)[0])


def _in_branch(f):
    return _over(ALL)(lambda x: jax.lax.cond(x[0] > 1, f, lambda x: x, x))


def _around_shard_map(f):
    return lambda x: jax.vmap(_over(ALL)(f))(x[None])[0]


def _in_shard_map(f):
    return _over(ALL)(lambda x: jax.vmap(f)(x.reshape(1, 1)).reshape(1))


WHERE = {
    "first device": (lambda f: f, lambda: jax.device_put(jnp.array([0]), jax.devices()[0])),
    "last device": (lambda f: f, lambda: jax.device_put(jnp.array([DEVICES - 1]), jax.devices()[-1])),
    "shard_map": (_over(ALL), lambda: _own_numbers(ALL)),
    "shard_map on half": (_over(HALF), lambda: _own_numbers(HALF)),
    "two axes": (_over(GRID), lambda: _own_numbers(GRID)),
    "one of two axes": (_over(GRID, axis_names={"d"}), lambda: _own_numbers(GRID)),
    "nested": (_nested, lambda: _own_numbers(GRID)),
    "scan": (_in_scan, lambda: _own_numbers(ALL)),
    "branch": (_in_branch, lambda: _own_numbers(ALL)),
    "vmap inside": (_in_shard_map, lambda: _own_numbers(ALL)),
    "vmap around": (_around_shard_map, lambda: _own_numbers(ALL)),
    "sharded automatically": (lambda f: f, lambda: _own_numbers(ALL)),
    "pmap": (_pmap(ORDER), lambda: None),
    "pmap on half": (_pmap(ORDER[: DEVICES // 2]), lambda: None),
}
JITS = {"fx.jit": fx.jit, "jax.jit": jax.jit, "filter_jit": eqx.filter_jit, "nnx.jit": nnx.jit, "eager": lambda f: f}


def _bind(kind, ordered, x, seen):
    """An effect with the number of its device, or -1 of what several devices have."""
    value = x.reshape(-1)[0] if x.size == 1 else jnp.max(x) * 0 - 1

    def see(value, record):
        seen.append((int(value), record.device))
        return value

    if kind == "print":
        fx.print("{} {device}", value, ordered=ordered)
    elif kind == "log":
        fx.log("event", value=value, ordered=ordered)
    elif kind == "check":
        fx.check(value > DEVICES, "{}", value)
    elif kind == "callback":
        fx.callback(see, None, value, pass_record=True, ordered=ordered)
    else:
        value = fx.callback(see, jax.ShapeDtypeStruct((), "int32"), value, pass_record=True, ordered=ordered)
        return x + 0 * value
    return x


def _devices_seen(jit, where, kind, ordered):
    """(own number, device that the record has) of each effect of a program."""
    around, operand = WHERE[where]
    seen = []
    with fx.capture(suppress=True) as records:
        jax.block_until_ready(jit(around(lambda x: _bind(kind, ordered, x, seen)))(operand()))
        try:
            fx.effects_barrier(timeout=120)
        except* fx.CheckError as errors:
            seen += [(int(error.message), error.device) for error in errors.exceptions]
    if kind == "print":
        return [tuple(map(int, record.text.split())) for record in records]
    if kind == "log":
        return [(int(record.fields["value"]), record.device) for record in records]
    return seen


KINDS = ["print", "log", "check", "callback", "results"]
OF_LIBRARIES = ["last device", "shard_map", "one of two axes", "sharded automatically"]
PROGRAMS = [
    *(("eager", where) for where in WHERE),
    *((jit, where) for jit in ("fx.jit", "jax.jit") for where in WHERE if "pmap" not in where),
    *((jit, where) for jit in ("filter_jit", "nnx.jit") for where in OF_LIBRARIES),
]


@pytest.mark.parametrize(("kind", "ordered"), [*((kind, True) for kind in KINDS), ("print", False), ("results", False)])
@pytest.mark.parametrize(("jit", "where"), PROGRAMS)
def test_device_is_the_one_that_had_the_effect(jit, where, kind, ordered):
    """Where one device has the effect its records name that one; else one of those that have it, or none."""
    some_axes = (where == "one of two axes" and jit != "fx.jit") or (where == "nested" and jit == "jax.jit")
    if some_axes and jax.__version_info__ < (0, 12):
        pytest.skip("XLA of JAX before 0.12 ends the process: docs/sharp-bits.md")
    if kind == "results" and where == "one of two axes" and jit not in ("fx.jit", "eager"):
        with pytest.raises(Exception, match="has results, in a `jax.shard_map` over some axes"):
            _devices_seen(JITS[jit], where, kind, ordered)
        return
    if where == "nested" and jit == "fx.jit":
        with pytest.raises(fx.MissingTokenRule, match="inside another one, over other axes"):
            _devices_seen(JITS[jit], where, kind, ordered)
        return
    pairs = _devices_seen(JITS[jit], where, kind, ordered)
    assert pairs
    assert [pair for pair in pairs if pair[0] != -1 and pair[0] != pair[1]] == []
    if where == "sharded automatically":
        assert {device for _, device in pairs} == {-1}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("jit", "where"),
    [
        *(("fx.jit", where) for where in ("last device", "sharded automatically")),
        *(("jax.jit", where) for where in ("last device", "shard_map", "sharded automatically")),
        ("eager", "pmap"),
    ],
)
def test_device_without_handlers_is_unknown(jit, where, kind):
    """JAX's callbacks do not say which device calls them, and JAX lowers a program for whatever devices."""
    with fx.config.override(native=False):
        pairs = _devices_seen(JITS[jit], where, kind, True)
    assert {device for _, device in pairs} == {-1}
