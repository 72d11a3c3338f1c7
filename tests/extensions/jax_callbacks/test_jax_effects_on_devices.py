"""JAX's own callbacks over several devices: shards, `sharding=`, and regions."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import effects as fx
from tests.helpers import output_of

F32 = jax.ShapeDtypeStruct((), jnp.float32)
show = jax.debug.print


@pytest.fixture
def sharded():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("x")))


def test_transformations_around_several_devices(sharded):
    """On several devices, where JAX dispatches such a program, it has JAX's callbacks as JAX has them."""
    f = fx.jit(lambda x: (show("{}", x), 2 * x)[1])
    assert output_of(jax.vmap, f, sharded) == output_of(jax.vmap, jax.jit(lambda x: (show("{}", x), x)[1]), sharded)
    g = fx.jit(lambda x: io_callback(lambda x: x + 1, F32, x))
    assert jax.vmap(g)(sharded).tolist() == list(range(1, 9))


@pytest.mark.parametrize("ordered", [False, True])
def test_partitioned_shows_shards_in_order(ordered, sharded, lines):
    """`partitioned=True` shows each device's shard as JAX does, in the order of program and devices."""

    def f(x):
        show("a {}", x, partitioned=True, ordered=ordered)
        show("{!r} {x.shape}", 1.0, x=x, partitioned=True, ordered=ordered)
        jax.debug.callback(lambda x: print("f", x), x, partitioned=True, ordered=ordered)
        return x

    shards = ["[0. 1.]", "[2. 3.]", "[4. 5.]", "[6. 7.]"]
    got = lines(fx.jit(f), sharded)
    assert got == [
        *(f"a {shard}" for shard in shards),
        *["Array(1., dtype=float32) (2,)"] * 4,
        *(f"f {shard}" for shard in shards),
    ]
    if not ordered:  # JAX prints from a thread for each device: neither the lines nor the parts of one are in order
        assert sorted("".join(got)) == sorted("".join(lines(jax.jit(f), sharded)))


def test_partitioned_in_a_part_of_the_mesh(sharded, lines):
    """In a `shard_map` over some axes of its mesh `partitioned=True` shows what the replicas have together, as in JAX;
    where nobody knows the shards it is refused by its name."""
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    x = jax.device_put(jnp.arange(4.0), NamedSharding(mesh, P("x")))

    def region(x):
        show("{}", x, partitioned=True)
        return x

    f = jax.shard_map(region, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    assert lines(fx.jit(f), x) == ["[0. 1.]", "[2. 3.]"]
    with fx.config.override(native=False), pytest.raises(NotImplementedError, match="Leave out `partitioned=True`"):
        fx.jit(lambda x: show("{}", x, partitioned=True))(sharded)


def test_nothing_is_gathered_for_shards(sharded):
    """Shards are recorded where they lie."""
    text = fx.jit(lambda x: show("{}", x, partitioned=True)).lower(sharded).compile().as_text()
    assert "all-gather" not in text and "all-reduce" not in text


def test_sharding_of_io_callback_changes_nothing(sharded):
    """The host calls the function, for whichever device that is: what JAX takes as `sharding` is taken."""

    def f(x, device):
        return io_callback(lambda x: x.sum(), F32, x, sharding=SingleDeviceSharding(device))

    for device in jax.devices():
        assert fx.jit(lambda x, device=device: f(x, device))(sharded) == 28
    assert fx.jit(lambda x: f(x, jax.devices()[0]))(jnp.arange(8.0)) == 28


def test_sharding_is_refused_where_there_are_several_processes(monkeypatch):
    """Each process replays the effects of whole values, so that none can be chosen."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(NotImplementedError, match=r"there are several processes.*jax\.process_index"):
        jax.eval_shape(
            lambda x: fx.jit(
                lambda x: io_callback(print, None, x, sharding=SingleDeviceSharding(jax.devices()[0]))
            ).eval_shape(x),
            1.0,
        )


@pytest.mark.filterwarnings("ignore:.*(core_map|create_tensorcore_mesh) is deprecated:DeprecationWarning")
@pytest.mark.parametrize("on", [False, True])
def test_kernels_of_regions_know_the_axes(on):
    """A kernel over cores may ask for its device's index along the region's axis, also if JAX checks every jaxpr."""
    cores = pltpu.create_tensorcore_mesh("core", num_cores=1)

    def region(x):
        def inner(refs):
            @pl.core_map(cores, interpret=pltpu.InterpretParams())
            def _():
                def with_scratch(scratch, semaphore):
                    pltpu.async_copy(refs[0], scratch, semaphore).wait()
                    scratch[...] += jax.lax.axis_index("x")
                    pltpu.async_copy(scratch, refs[1], semaphore).wait()

                pl.run_scoped(with_scratch, pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA)

        return pl.run_state(inner)((x, jnp.zeros_like(x)))[1]

    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = P("x")
    with jax.enable_checks(on):
        sharded = jax.shard_map(fx.jit(region), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        assert fx.jit(sharded)(jnp.zeros((16, 128), jnp.int32))[::8, 0].tolist() == [0, 1]
