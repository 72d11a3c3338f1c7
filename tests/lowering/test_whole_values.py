"""Effects of sharded values show the whole, and no device gathers it: the host puts the shards together."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType

import effects as fx
from effects.lowering import shards
from tests.helpers import meet_barrier

P = jax.P


def _mesh(*sizes, kind=AxisType.Auto, devices=None):
    return jax.make_mesh(sizes, ("x", "y")[: len(sizes)], axis_types=(kind,) * len(sizes), devices=devices)


def _put(x, mesh, *spec):
    return jax.device_put(x, jax.NamedSharding(mesh, P(*spec)))


def _collectives(f, *args):
    return re.findall(r"all-gather|all-reduce|all-to-all|collective-permute", f.lower(*args).compile().as_text())


def _keep(shown):
    return lambda *arrays: shown.append([np.array(x) for x in arrays])


@pytest.mark.parametrize("spec", [("x", "y"), ("y", "x"), ("x",), (None, "y"), (("x", "y"),), ()])
@pytest.mark.parametrize("order", [1, -1])
def test_whole_is_shown_and_nothing_is_gathered(spec, order, lines):
    x = jnp.arange(16.0).reshape(4, 4)
    cut = _put(x, _mesh(2, 2, devices=jax.devices()[:4][::order]), *spec)

    def f(x):
        fx.print("{}", x)
        fx.log("event", x=x)
        fx.callback(_keep(shown), None, x)
        return x * 2

    shown = []
    f = fx.jit(f)
    with fx.capture() as records:
        printed = lines(f, cut)
    assert printed == str(np.asarray(x)).split("\n")
    assert [np.array_equal(a, x) for (a,) in shown] == [True]
    assert [np.array_equal(record.fields["x"], x) for record in records if record.effect == "log"] == [True]
    assert {record.device for record in records} == {-1}
    assert _collectives(f, cut) == []


def test_order_with_other_effects(lines):
    """A whole value has one place in the order, in loops and branches too."""

    def f(x):
        fx.print("before {}", x.sum())

        def turn(i, x):
            fx.print("{} {}", i, x)
            return lax.cond(i == 1, lambda x: (fx.print("once {}", x), x)[1], lambda x: x, x + 1)

        x = lax.fori_loop(0, 2, turn, x)
        fx.print("after {}", x)

    x = _put(jnp.arange(4), _mesh(2, devices=jax.devices()[1:3]), "x")
    expected = ["before 6", "0 [0 1 2 3]", "1 [1 2 3 4]", "once [2 3 4 5]", "after [2 3 4 5]"]
    f = fx.jit(f)
    for _ in range(3):
        assert lines(f, x) == expected


def test_place_in_the_order_is_that_of_one_device():
    """Records of values count alike, however the values lie."""

    def f(x):
        for i in range(3):
            fx.log("step", i=i, x=x)

    places = []
    for x in (jnp.arange(4), _put(jnp.arange(4), _mesh(4), "x")):
        with fx.capture() as records:
            fx.jit(f)(x)
        places.append([record.index for record in records])
    assert places[0] == places[1]


def test_sizes_that_do_not_divide(lines):
    mesh = _mesh(4)

    def f(x):
        x = lax.with_sharding_constraint(x, jax.NamedSharding(mesh, P("x")))
        fx.print("{}", x)

    for size in (1, 2, 5, 10):
        assert lines(fx.jit(f), jnp.arange(size)) == [str(np.arange(size))]


@pytest.mark.parametrize("shape", [(4,), (4, 3)])
def test_one_element_of_a_cut_axis(shape, lines):
    """It is shown as the device has it that owns it. The others have padding, as large as a shard."""
    whole = np.arange(1, 1 + np.prod(shape)).reshape(shape)
    f = fx.jit(lambda x: fx.print("{}", x[1:2]))
    x = _put(jnp.asarray(whole), _mesh(2), "x")
    printed = lines(lambda: [f(x) for _ in range(40)] and None)
    assert printed == [str(whole[1:2])] * 40


@pytest.mark.parametrize(
    "dtype", ["bool", "int4", "uint8", "bfloat16", "float32", "complex64", "int64", "float8_e4m3fn"]
)
def test_types(dtype, lines):
    with jax.enable_x64(dtype == "int64"):
        x = jnp.array([0, 1, 1, 0, 1, 0]).astype(dtype)
        f = fx.jit(lambda x: fx.print("{}", x))
        assert lines(f, _put(x, _mesh(2), "x")) == [str(np.asarray(x))]


def test_several_operands_that_lie_otherwise(lines):
    mesh = _mesh(2, 2)
    a, b = jnp.arange(8).reshape(4, 2), jnp.arange(6.0).reshape(2, 3)
    f = fx.jit(lambda a, b, c, d: fx.callback(_keep(shown), None, a, b, c, d))
    shown = []
    f(_put(a, mesh, "y", "x"), _put(b, mesh, None), _put(jnp.arange(4), mesh, "x"), 7)
    meet_barrier()
    assert [x.tolist() for x in shown[0]] == [a.tolist(), b.tolist(), [0, 1, 2, 3], 7]


def test_arrays_without_elements_beside_others(lines):
    f = fx.jit(lambda a, b: fx.print("{} {}", a, b))
    assert lines(f, jnp.zeros((0, 3)), _put(jnp.arange(4), _mesh(2), "x")) == ["[] [0 1 2 3]"]


def test_lanes_and_masks(lines):
    """The lanes of a `vmap`, and which of them have the effect, may be cut too."""

    def f(x):
        lax.cond(x[0] > 2, lambda x: fx.print("{}", x), lambda x: None, x)

    x = jnp.arange(8).reshape(4, 2)
    for spec in (("x",), (None, "x"), ()):
        assert lines(fx.jit(jax.vmap(f)), _put(x, _mesh(2), *spec)) == ["[4 5]", "[6 7]"]


def test_explicit_axes(lines):
    mesh = _mesh(2, kind=AxisType.Explicit)
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.arange(4), P("x"))
        f = fx.jit(lambda x: fx.print("{}", x * 2))
        assert lines(f, x) == ["[0 2 4 6]"]
        assert _collectives(f, x) == []


@pytest.mark.parametrize("when_full", ["wait", "drop"])
def test_loops_over_large_values(when_full):
    """What is not dropped is right and in order, and with `wait` nothing is dropped."""
    x = _put(jnp.zeros((64, 64), jnp.int32), _mesh(2, 2), "x", "y")

    def f(x):
        return lax.fori_loop(0, 300, lambda i, x: (fx.callback(_keep(shown), None, x), x + 1)[1], x)

    shown = []
    with fx.config.override(when_full=when_full, ring_bytes=1 << 16):
        jax.block_until_ready(fx.jit(f)(x))
        meet_barrier()
    counts = [int(a[0, 0]) for (a,) in shown]
    assert all((a == count).all() for (a,), count in zip(shown, counts, strict=True))
    assert counts == sorted(set(counts))
    if when_full == "wait":
        assert counts == list(range(300))


def test_exported_program(lines):
    x = _put(jnp.arange(4), _mesh(4), "x")
    exported = fx.deserialize(fx.export(fx.jit(lambda x: fx.print("{}", x)))(x).serialize())
    assert lines(exported.call, x) == ["[0 1 2 3]"]


def test_several_threads_and_devices_that_fail():
    """A callback that ends its program leaves the next programs whole."""
    x = _put(jnp.arange(8), _mesh(4), "x")
    one = jax.ShapeDtypeStruct((), jnp.int32)

    def fail(turn):
        if turn == 2:
            raise ValueError("it ends here")
        return np.int32(turn)

    def f(x):
        def body(i, x):
            fx.callback(_keep(shown), None, x)
            return x + fx.callback(fail, one, i)

        return lax.fori_loop(0, 4, body, x)

    shown = []
    f = fx.jit(f)
    for _ in range(3):
        with pytest.raises(fx.EffectError, match="it ends here"):
            f(x)
    meet_barrier()
    values = [a.tolist() for (a,) in shown]
    first = list(range(8))
    assert values[: len(values) // 3] * 3 == values
    assert values[0] == first


@pytest.mark.parametrize("spec", [("x", "y"), ("y", "x"), ("x",), (None, "y"), (("x", "y"),), (("y", "x"), None), ()])
def test_each_element_is_copied_by_one_device(spec):
    """The first device that has it, so that devices which have the same wait for nothing of each other."""
    shape, mesh = (3, 4), _mesh(2, 2)
    sharding = jax.NamedSharding(mesh, P(*spec))
    (rows,) = [shards._table_of_whole([shards._Tiles(shape, sharding._to_xla_hlo_sharding(2))], mesh.size)]
    times = np.zeros(shape, int)
    for _, copies, *axes in rows:
        (start, stop, rows_in_all), (left, right, columns) = axes[:3], axes[3:]
        assert (rows_in_all, columns) == shape
        times[start:stop, left:right] += copies
    assert (times == 1).all()
    assert {row[0] for row in rows} == {sum(row[1] for row in rows)}  # how many devices copy something
