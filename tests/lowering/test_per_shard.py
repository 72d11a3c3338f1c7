"""`per_shard=True`: each shard by itself, where XLA decides how arrays lie; and `{device}` in formats."""

import logging
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType

import effects as fx
from tests.forks import run_forked

P = jax.P


def _mesh(*sizes, kind=AxisType.Auto, devices=None):
    return jax.make_mesh(sizes, ("x", "y")[: len(sizes)], axis_types=(kind,) * len(sizes), devices=devices)


def _put(x, mesh, *spec):
    return jax.device_put(x, jax.NamedSharding(mesh, P(*spec)))


def _shows(x):
    fx.print("{}", x.ravel(), per_shard=True)


def _expected(x):
    """A line for each shard that lies somewhere, on the first device that has it."""
    lines = []
    for shard in sorted(x.addressable_shards, key=lambda shard: shard.device.id):
        if shard.replica_id == 0:
            bounds = [part.indices(n) for part, n in zip(shard.index, x.shape, strict=True)]
            index = ", ".join(f"{start}:{stop}" for start, stop, _ in bounds)
            lines.append(f"device {shard.device.id} [{index}]: {np.asarray(shard.data).tolist()}")
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("spec", [("x", "y"), ("y", "x"), ("x",), (None, "y"), (("x", "y"),), ()])
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("order", [1, -1])
def test_each_shard_is_printed_once(spec, eager, order, lines):
    x = _put(jnp.arange(16.0).reshape(4, 4), _mesh(2, 2, devices=jax.devices()[:4][::order]), *spec)

    def f(x):
        fx.callback(lambda x, record: shown.append(_line(record, x)), None, x, per_shard=True, pass_record=True)

    shown = []
    f = f if eager else fx.jit(f)
    lines(f, x)
    assert shown == _expected(x)


def _line(record, x):
    index = ", ".join(f"{part.start}:{part.stop}" for part in record.index)
    return f"device {record.device} [{index}]: {x.tolist()}"


def test_order_with_other_effects(lines):
    """Shards come by device, between what stands before and after; in loops and branches too."""

    def f(x):
        fx.print("before {}", x.sum())

        def turn(i, x):
            fx.print("{} {}", i, x, per_shard=True)
            return lax.cond(i == 1, lambda x: (fx.print("once {}", x, per_shard=True), x)[1], lambda x: x, x + 1)

        x = lax.fori_loop(0, 2, turn, x)
        fx.print("after {}", x)
        return x

    x = _put(jnp.arange(4), _mesh(2, devices=jax.devices()[1:3]), "x")
    expected = ["before 6"]
    expected += ["device 1 [0:2]: 0 [0 1]", "device 2 [2:4]: 0 [2 3]"]
    expected += ["device 1 [0:2]: 1 [1 2]", "device 2 [2:4]: 1 [3 4]"]
    expected += ["device 1 [0:2]: once [2 3]", "device 2 [2:4]: once [4 5]", "after [2 3 4 5]"]
    f = fx.jit(f)
    for _ in range(3):
        assert lines(f, x) == expected


def test_what_is_last_closes_the_program(lines):
    x = _put(jnp.arange(4), _mesh(4), "x")
    f = fx.jit(lambda x: fx.print("{}", x, per_shard=True))
    assert [lines(f, x) for _ in range(2)] == [[f"device {n} [{n}:{n + 1}]: [{n}]" for n in range(4)]] * 2


def test_shards_of_unequal_size(lines):
    """The last along an axis may be smaller, or there may be none."""
    mesh = _mesh(4)

    def f(x):
        x = lax.with_sharding_constraint(x, jax.NamedSharding(mesh, P("x")))
        fx.print("{}", x, per_shard=True)

    shown = [(0, 3, "[0 1 2]"), (3, 6, "[3 4 5]"), (6, 9, "[6 7 8]"), (9, 10, "[9]")]
    shown = [f"device {n} [{start}:{stop}]: {text}" for n, (start, stop, text) in enumerate(shown)]
    assert lines(fx.jit(f), jnp.arange(10)) == shown
    assert lines(fx.jit(f), jnp.arange(2)) == ["device 0 [0:1]: [0]", "device 1 [1:2]: [1]"]


@pytest.mark.parametrize("dtype", ["bool", "int4", "uint8", "bfloat16", "float32", "complex64", "int64"])
def test_types(dtype, lines):
    with jax.enable_x64(dtype == "int64"):
        x = _put(jnp.array([0, 1, 1, 0]).astype(dtype), _mesh(2), "x")
        both = [str(np.asarray(x)[part]) for part in (slice(0, 2), slice(2, 4))]
        shown = lines(fx.jit(lambda x: fx.print("{}", x, per_shard=True)), x)
    assert shown == [f"device 0 [0:2]: {both[0]}", f"device 1 [2:4]: {both[1]}"]


def test_index_is_of_what_is_cut(lines):
    """Of several arrays, the first that is cut says where the record is."""
    mesh = _mesh(2)
    x, whole = _put(jnp.arange(4), mesh, "x"), _put(jnp.arange(3), mesh)
    f = fx.jit(lambda a, b, c: fx.print("{} {} {c}", a, b, c=c, per_shard=True))
    assert lines(f, whole, 7, x) == ["device 0 [0:2]: [0 1 2] 7 [0 1]", "device 1 [2:4]: [0 1 2] 7 [2 3]"]


def test_nothing_is_gathered():
    x = _put(jnp.arange(16.0).reshape(4, 4), _mesh(2, 2), "x", "y")

    def f(x):
        fx.print("{}", x, per_shard=True)
        fx.log("event", x=x, per_shard=True)
        return x * 2

    text = fx.jit(f).lower(x).compile().as_text()
    assert re.findall(r"all-gather|all-reduce|all-to-all|collective-permute", text) == []
    assert fx.jit(f)(x).sharding == x.sharding
    fx.effects_barrier()


def test_explicit_axes(lines):
    mesh = _mesh(2, kind=AxisType.Explicit)
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.arange(4), P("x"))
        f = fx.jit(lambda x: fx.print("{}", x * 2, per_shard=True))
        assert lines(f, x) == ["device 0 [0:2]: [0 2]", "device 1 [2:4]: [4 6]"]


def test_arrays_without_elements():
    """To JAX they are whole on all devices, and so they are to us."""
    mesh = _mesh(4)
    x = _put(jnp.zeros((4, 0)), mesh, "x")
    y = _put(jnp.arange(4), mesh, "x")

    def f(x, y):
        fx.log("one", x=x, per_shard=True)
        fx.log("two", x=x, y=y, per_shard=True)
        return x

    with fx.capture() as records:
        assert fx.jit(f)(x, y).sharding.is_fully_replicated
    whole, *each = [(record.device, record.index, record.fields["x"].shape) for record in records]
    assert whole == (0, (slice(0, 4), slice(0, 0)), (4, 0))
    assert each == [(n, (slice(n, n + 1),), (4, 0)) for n in range(4)]


def test_events_and_records(caplog):
    x = _put(jnp.arange(4), _mesh(2), "x")
    with caplog.at_level(logging.INFO, "effects"), fx.capture() as records:
        fx.jit(lambda x: fx.log("step", x=x, per_shard=True))(x)
    shown = [(record.device, record.index, record.fields["x"].tolist()) for record in records]
    assert shown == [(0, (slice(0, 2),), [0, 1]), (1, (slice(2, 4),), [2, 3])]
    assert caplog.messages == ["device 0 [0:2]: step x=[0 1]", "device 1 [2:4]: step x=[2 3]"]


def test_unordered(lines):
    x = _put(jnp.arange(4), _mesh(4), "x")

    def f(x):
        lax.fori_loop(0, 20, lambda i, _: fx.print("{} {}", i, x, per_shard=True, ordered=False), None)

    expected = sorted(f"device {n} [{n}:{n + 1}]: {i} [{n}]" for n in range(4) for i in range(20))
    assert sorted(lines(fx.jit(f), x)) == expected


def test_lanes_stay_together(lines):
    """Under `vmap`, shards are those of what one lane sees."""
    x = jnp.arange(8).reshape(2, 4)
    f = fx.jit(jax.vmap(lambda x: fx.print("{}", x, per_shard=True)))
    shown = ["device 0 [0:2]: [0 1]", "device 0 [0:2]: [4 5]", "device 1 [2:4]: [2 3]", "device 1 [2:4]: [6 7]"]
    assert lines(f, _put(x, _mesh(2), None, "x")) == shown
    assert lines(f, _put(x, _mesh(2), "x")) == ["device 0 [0:4]: [0 1 2 3]", "device 0 [0:4]: [4 5 6 7]"]


def test_one_device_and_regions(lines):
    """What lies on one device is one shard; in a region each device has what it has."""
    f = lambda x: fx.print("{}", x, per_shard=True)  # noqa: E731
    one = ["device 0 [0:3]: [0 1 2]"]
    assert lines(fx.jit(f), jnp.arange(3)) == lines(jax.jit(f), jnp.arange(3)) == lines(f, jnp.arange(3)) == one
    region = jax.shard_map(lambda x: (f(x), x)[1], mesh=_mesh(2), in_specs=P("x"), out_specs=P("x"))
    assert lines(fx.jit(region), jnp.arange(4)) == ["device 0 [0:2]: [0 1]", "device 1 [0:2]: [2 3]"]


def test_device_and_index_in_a_format(lines):
    """On request, for every print; an argument of that name is an argument."""
    x = _put(jnp.arange(4), _mesh(2), "x")
    f = fx.jit(lambda x: fx.print("{} on {device} at {index}", x, per_shard=True))
    assert lines(f, x) == ["[0 1] on 0 at [0:2]", "[2 3] on 1 at [2:4]"]

    def body(x):
        fx.print("{device}: {}", x[0])
        fx.print("{device}", device="mine")
        return x

    region = jax.shard_map(body, mesh=_mesh(2), in_specs=P("x"), out_specs=P("x"))
    assert lines(fx.jit(region), x) == ["0: 0", "1: 2", "mine", "mine"]
    with pytest.raises(fx.FormatError, match="index"):
        fx.jit(lambda x: fx.print("{index} {}", x))(x)


def test_whole_program_from_the_cache_of_another_process(tmp_path):
    code = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, jax.numpy as jnp, effects as fx
jax.config.update("jax_compilation_cache_dir", {path!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.device_put(jnp.arange(4), jax.NamedSharding(mesh, jax.P("x")))
fx.jit(lambda x: fx.print("{{}}", x, per_shard=True))(x)
"""
    code = code.format(path=str(tmp_path))
    for _ in range(2):
        done = run_forked(code)
        assert done.stdout == "device 0 [0:2]: [0 1]\ndevice 1 [2:4]: [2 3]\n", done.stderr


# What is refused


def test_refused():
    x = _put(jnp.arange(4), _mesh(2, 2), "x")
    one = jax.ShapeDtypeStruct((4,), x.dtype)
    with pytest.raises(ValueError, match=r"<lambda>` at .*per_shard=True.* whole array.*shard_map"):
        fx.jit(lambda x: fx.callback(lambda x: x, one, x, per_shard=True))(x)
    region = jax.shard_map(
        lambda x: (_shows(x), x)[1], mesh=_mesh(2, 2), in_specs=P("x"), out_specs=P("x"), axis_names={"x"}
    )
    with pytest.raises(NotImplementedError, match=r"`print` at .*over some axes.* `axis_names`"):
        fx.jit(region)(x)
    with fx.config.override(native=False), pytest.raises(NotImplementedError, match="without native code"):
        fx.jit(_shows)(x)
