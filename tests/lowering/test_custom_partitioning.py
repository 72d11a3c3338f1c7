"""`custom_partitioning`: what a partition rule returns has the effects of each shard, as a `shard_map` does."""

from __future__ import annotations

import gc
import itertools
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule, custom_partitioning
from jax.sharding import AxisType

import effects as fx
from tests.helpers import let_go, run_python

P = jax.P
X = np.arange(64.0, dtype=np.float32).reshape(8, 8)

RULES = {
    "text": "i j -> i j",
    "object": SdyShardingRule((ArrayMapping("i", "j"),), (ArrayMapping("i", "j"),)),
    "function": lambda mesh, operands, results: "i j -> i j",
}


def partitioned(function, of_shard=None, sharding_rule="i j -> i j", **options):
    """The function, of which each shard does the same, or `of_shard`."""

    def partition(mesh, args, results):
        sharding = args[0].sharding
        return mesh, of_shard or function, jax.tree.map(lambda _: sharding, results), (sharding,) * len(args)

    made = custom_partitioning(function)
    made.def_partition(
        partition,
        infer_sharding_from_operands=lambda mesh, args, results: jax.tree.map(lambda _: args[0].sharding, results),
        propagate_user_sharding=lambda mesh, results: jax.tree.map(lambda x: x.sharding, results),
        sharding_rule=sharding_rule,
        **options,
    )
    return made


def sharded(spec, devices=4, kind=AxisType.Auto, x=X):
    mesh = jax.make_mesh((devices,), ("d",), axis_types=(kind,), devices=jax.devices()[:devices])
    return jax.device_put(jnp.asarray(x), jax.NamedSharding(mesh, spec))


def show(x):
    fx.print("sum {}", x.sum())
    y = x * 2
    fx.print("first {}", y[0, 0])
    return y


def show_in_kernel(x):
    def kernel(x_ref, o_ref):
        fx.print("program {} {}", pl.program_id(0), x_ref[0, 0])
        o_ref[...] = x_ref[...] * 2

    return pl.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype), grid=(2,), interpret=True)(x)


def lines_of(f, *args, jit=fx.jit):
    """The records of a call as text, and its results."""
    with fx.capture() as records:
        results = jax.tree.map(np.asarray, jit(f)(*args))
    return [record.text for record in records], results


def shards_of(x, spec, devices):
    """The shards as NumPy has them, in the order of the devices."""
    if spec == P():
        return [x] * devices
    return np.split(x, devices, axis=0 if spec == P("d") else 1)


def lines_of_shards(x, spec, devices, in_kernel):
    shards = shards_of(x, spec, devices)
    if in_kernel:
        return [f"program {program} {shard[0, 0]}" for program in range(2) for shard in shards]
    return [f"sum {shard.sum()}" for shard in shards] + [f"first {shard[0, 0] * 2}" for shard in shards]


def check_everywhere(devices):
    """On each axis and replicated, by itself and in a loop, in plain functions and in kernels."""
    for in_kernel, function in enumerate([show, show_in_kernel]):
        f = partitioned(function)
        for spec in [P("d"), P(None, "d"), P()]:
            x = sharded(spec, devices)

            def program(x, f=f):
                fx.print("before")
                x = f(x)
                x = lax.scan(lambda x, _: (f(x), None), x, length=2)[0]
                fx.print("after {}", x[0, 1])
                return x

            lines, y = lines_of(program, x)
            by_turn = (lines_of_shards(X * 2**turn, spec, devices, in_kernel) for turn in range(3))
            assert lines == ["before", *itertools.chain(*by_turn), "after 8.0"], (devices, in_kernel, spec)
            np.testing.assert_array_equal(y, X * 8)


@pytest.mark.parametrize("devices", [1, 4])
def test_effects_are_each_shards_own(devices):
    """The order is that of the program, and then of the devices."""
    check_everywhere(devices)


def test_effects_are_each_shards_own_on_eight_devices():
    """The same on more devices."""
    code = "from tests.lowering.test_custom_partitioning import check_everywhere\ncheck_everywhere(8)"
    done = run_python(code, env={"XLA_FLAGS": "--xla_force_host_platform_device_count=8"})
    assert done.returncode == 0, done.stderr[-3000:]


def test_two_axes_of_a_mesh():
    """Devices come in their order in the mesh, whichever axes the array is sharded along."""
    mesh = jax.make_mesh((2, 2), ("d", "e"), axis_types=(AxisType.Auto,) * 2)
    x = jax.device_put(X, jax.NamedSharding(mesh, P("d", "e")))
    lines, _ = lines_of(partitioned(show), x)
    firsts = [X[i, j] * 2 for i in (0, 4) for j in (0, 4)]
    assert lines[4:] == [f"first {first}" for first in firsts]


def test_sharding_rule_with_factors_of_a_kind():
    """The kinds and sizes of its factors stay as they are."""

    def function(x, y):
        fx.print("{}", y.sum())
        return x.reshape(-1) + y

    made = custom_partitioning(function)
    options = {"i": 2, "k": 2, "need_replication_factors": ("k",)}
    made.def_partition(
        lambda mesh, args, result: (mesh, function, result.sharding, tuple(x.sharding for x in args)),
        sharding_rule="(i k) j, (i k j) -> (i k j)",
        **options,
    )
    x = jax.device_put(np.arange(8).reshape(4, 2), jax.NamedSharding(mesh := jax.make_mesh((2, 2), ("d", "e")), P("d")))
    y = jax.device_put(np.arange(8), jax.NamedSharding(mesh, P("d")))
    lines, z = lines_of(made, x, y)
    assert lines == ["6", "6", "22", "22"]
    np.testing.assert_array_equal(z, 2 * np.arange(8))


@pytest.mark.parametrize("name", RULES)
def test_sharding_rules_of_every_kind(name):
    """Tokens go beside the operands of whatever rule says how Shardy propagates shardings."""
    lines, y = lines_of(partitioned(show, sharding_rule=RULES[name]), sharded(P("d")))
    assert lines == lines_of_shards(X, P("d"), 4, False)
    np.testing.assert_array_equal(y, X * 2)


def test_older_partitioner():
    """Without Shardy, the user's functions say how shardings are propagated."""
    with jax.enable_x64(False):
        jax.config.update("jax_use_shardy_partitioner", False)
        try:
            lines, y = lines_of(partitioned(show), sharded(P("d")))
        finally:
            jax.config.update("jax_use_shardy_partitioner", True)
    assert lines == lines_of_shards(X, P("d"), 4, False)
    np.testing.assert_array_equal(y, X * 2)


def test_shardings_without_a_mesh():
    """With `decode_shardings=False`, JAX gives the rule no mesh, and the rule returns an empty one."""
    lines, _ = lines_of(partitioned(show, decode_shardings=False), sharded(P("d")))
    assert lines == lines_of_shards(X, P("d"), 4, False)


def test_explicit_axes():
    """Where types say how arrays are sharded."""

    def show_sum(x):
        fx.print("sum {}", x.sum())
        return x * 2

    x = sharded(P("d"), kind=AxisType.Explicit)
    with jax.set_mesh(x.sharding.mesh):
        lines, y = lines_of(partitioned(show_sum), x)
    assert lines == lines_of_shards(X, P("d"), 4, False)[:4]
    np.testing.assert_array_equal(y, X * 2)


def test_static_arguments_and_several_results():
    """The rule gets static arguments and the trees of the others as it does without effects."""

    def function(x, n, pair):
        fx.print("{} {}", n, x[0, 0])
        return {"a": x * n, "b": pair[0] + pair[1]}

    def partition(n, mesh, args, results):
        assert set(results) == {"a", "b"} and len(args[1]) == 2
        s = args[0].sharding
        return mesh, lambda x, pair: function(x, n, pair), {"a": s, "b": s}, (s, (s, s))

    made = custom_partitioning(function, static_argnums=(1,))
    made.def_partition(partition, sharding_rule="i j, i j, i j -> i j, i j")
    x = sharded(P("d"))
    lines, y = lines_of(lambda x: made(x, 3, (x, x)), x)
    assert lines == ["3 0.0", "3 16.0", "3 32.0", "3 48.0"]
    np.testing.assert_array_equal(y["a"], X * 3)
    np.testing.assert_array_equal(y["b"], X * 2)


def test_branches_loops_and_collectives_in_a_shard():
    """What a shard does may differ from what others do, and shards may talk to each other."""

    def of_shard(x):
        lax.cond(x[0, 0] > 20, lambda: fx.print("large {}", x[0, 0]), lambda: None)
        total = lax.psum(x.sum(), "d")
        fx.print("total {}", total)
        return x * 0 + total

    def function(x):
        fx.print("total {}", x.sum())
        return x * 0 + x.sum()

    lines, y = lines_of(partitioned(function, of_shard), sharded(P("d")))
    assert sorted(lines) == ["large 32.0", "large 48.0", *["total 2016.0"] * 4]
    assert lines.index("large 32.0") < lines.index("large 48.0")
    assert (y == X.sum()).all()


def test_error_ends_all_devices():
    """If a check ends the program on one device, those that wait for it in a collective end too."""

    def check(x):
        return fx.error_if(x, x.sum() > 800, "large {}", x.sum())

    f = partitioned(check, lambda x: check(x) + lax.psum(1.0, "d"))
    with pytest.raises(fx.CheckError, match=r"large 888\.0"):
        jax.block_until_ready(fx.jit(f)(sharded(P("d"))))
    assert len(lines_of(partitioned(show), sharded(P("d")))[0]) == 8


def test_callbacks_return_to_their_shard():
    """A callback with results is called for each shard, and its function lives as long as the program."""

    def function(x):
        y = fx.callback(lambda x: x.sum(), jax.ShapeDtypeStruct((), x.dtype), x)
        fx.print("got {}", y)
        return x + y

    f = fx.jit(partitioned(function))
    for _ in range(2):
        lines, y = lines_of(f, sharded(P("d")), jit=lambda f: f)
        sums = [part.sum() for part in np.split(X, 4)]
        assert lines[4:] == [f"got {total}" for total in sums]
        np.testing.assert_array_equal(y, X + np.repeat(sums, 2)[:, None])
        gc.collect()


def test_nothing_is_kept_of_programs_that_are_gone():
    """What is lowered for a shard lives as long as its program, and no longer."""

    def run():
        class Kept:
            def __call__(self, x):
                pass

        kept = Kept()

        def function(x):
            fx.callback(kept, None, x)
            return x

        assert len(lines_of(partitioned(function), sharded(P("d")))[0]) == 4
        return weakref.ref(kept)

    kept = run()
    let_go(lambda: kept() is not None)


def test_functions_of_a_rule_stay_with_the_program():
    """What the partition rule returned has callbacks that nothing else keeps but the compiled program."""
    seen = []

    def compiled():
        def of_shard(x):
            fx.callback(lambda value: seen.append(float(value)), None, x[0, 0])
            return x * 2

        def whole(x):
            fx.callback(lambda value: None, None, x[0, 0])
            return x * 2

        return fx.jit(partitioned(whole, of_shard)).lower(x).compile()

    x = sharded(P("d"))
    program = compiled()
    jax.clear_caches()
    gc.collect()
    fx.jit(lambda: fx.print("the drain forgets sites that are gone"))()
    fx.effects_barrier()
    jax.block_until_ready(program(x))
    fx.effects_barrier()
    assert seen == [0, 16, 32, 48]


def test_order_domains():
    """Each domain has a token of its own."""
    apart = fx.register_effect(fx.Effect("of_partitions"))

    def function(x):
        fx.print("A {}", x[0, 0])
        fx.print("B {}", x[0, 0], effect=apart)
        fx.print("C {}", x[0, 0])
        return x

    lines, _ = lines_of(partitioned(function), sharded(P("d")))
    of = {name: [line for line in lines if line[0] in name] for name in ("AC", "B")}
    firsts = [part[0, 0] for part in np.split(X, 4)]
    assert of == {"AC": [f"{name} {x}" for name in "AC" for x in firsts], "B": [f"B {x}" for x in firsts]}


@pytest.mark.parametrize("setting", ["program_order", "jax"])
@pytest.mark.parametrize("devices", [1, 4])
def test_callbacks_of_jax(setting, devices):
    """`jax.debug.print` goes the same way, and does not end the process."""

    def function(x):
        jax.debug.print("first {}", x[0, 0])
        return x * 2

    with fx.config.override(jax_effects=setting):
        lines, y = lines_of(partitioned(function), sharded(P("d"), devices))
    expected = [f"first {part[0, 0]}" for part in np.split(X, devices)]
    assert lines == expected if setting == "program_order" else sorted(lines) == sorted(expected)
    np.testing.assert_array_equal(y, X * 2)


def test_vmap():
    """Each lane of a `vmap` in a shard has its effects. Around a function without lanes, each lane calls it. JAX has no
    rule for one whose arguments have lanes."""

    def rows(x):
        return jax.vmap(lambda row: (fx.print("row {}", row[0]), row)[1])(x)

    x = sharded(P("d"))
    assert lines_of(partitioned(rows), x)[0] == [f"row {row[0]}" for row in X]
    f = partitioned(show)
    lines, y = lines_of(lambda x: jax.vmap(lambda i: f(x) + i)(jnp.arange(3)), x)
    assert lines == lines_of_shards(X, P("d"), 4, False) * 3
    np.testing.assert_array_equal(y, np.stack([X * 2 + i for i in range(3)]))
    lines, _ = lines_of(lambda x: jax.vmap(lambda i: lax.cond(i > 0, f, lambda x: x, x))(jnp.arange(3)), x)
    assert lines == lines_of_shards(X, P("d"), 4, False) * 2
    with pytest.raises(NotImplementedError, match="Batching rule for 'custom_partitioning'"):
        fx.jit(jax.vmap(f))(x[None])


def test_branches_around_it():
    """A branch or a loop of the program calls it as often as it says."""
    f = partitioned(show)
    lines, _ = lines_of(lambda x: lax.cond(x[0, 0] == 0, f, lambda x: x, x), sharded(P("d")))
    assert lines == lines_of_shards(X, P("d"), 4, False)
    lines, _ = lines_of(lambda x: (f(x), x)[1], sharded(P("d")))
    assert lines == lines_of_shards(X, P("d"), 4, False)


def test_inside_a_shard_map():
    """JAX calls the function itself there. In one over some axes, there is no telling whose effects these are."""
    f = partitioned(show)
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
    lines, _ = lines_of(jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d")), sharded(P("d")))
    assert lines == lines_of_shards(X, P("d"), 4, False)
    mesh = jax.make_mesh((2, 2), ("d", "e"), axis_types=(AxisType.Auto,) * 2)
    over_some = jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d"), axis_names={"d"}, check_vma=False)
    with pytest.raises(NotImplementedError, match=r"`show at .*replicas of each other.*Name all axes"):
        fx.jit(over_some)(jax.device_put(X, jax.NamedSharding(mesh, P("d"))))


def test_effects_in_one_of_the_two_functions():
    """What the rule returns may have less than the function, and nothing else."""

    def without(x):
        return x * 2

    def more(x):
        fx.callback(lambda x: None, None, x)
        return show(x)

    x = sharded(P("d"))
    assert lines_of(partitioned(show, without), x)[0] == []
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"`show at .*the effect `callback` and a callback, which"):
        fx.jit(partitioned(show, more))(x)
    for jit in (fx.jit, jax.jit):
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"`print` is in the .*`.*without at .*both functions"):
            jit(partitioned(without, show))(x)
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"is in the .*`.*without at .*both functions"):
            jit(partitioned(without, lambda x: (jax.debug.print("{}", x), x)[1]))(x)
    assert lines_of(partitioned(show), x)[0] == lines_of_shards(X, P("d"), 4, False)


def test_plain_jit():
    """On one device it goes as any effect. On several it is refused before XLA could end the process."""
    assert lines_of(partitioned(show), X, jit=jax.jit)[0] == ["sum 2016.0", "first 0.0"]
    for function in (show, show_in_kernel):
        with pytest.raises(NotImplementedError, match=r"`print` is in .*Write `fx.jit` in place of `jax.jit`"):
            jax.jit(partitioned(function))(sharded(P("d")))
    with pytest.raises(jax.errors.JaxRuntimeError, match="both functions, or use"):
        jax.jit(partitioned(lambda x: (jax.debug.print("{}", x), x)[1]))(sharded(P("d")))
    assert lines_of(partitioned(show), X, jit=lambda f: f)[0] == ["sum 2016.0", "first 0.0"]


def test_without_native_handlers():
    """A callback of JAX's own does not say for which device it is."""
    with fx.config.override(native=False):
        with pytest.raises(NotImplementedError, match="without native handlers"):
            fx.jit(partitioned(show))(sharded(P("d")))
        assert len(lines_of(partitioned(show), X)[0]) == 2


def test_rule_that_changes_the_number_of_results():
    """It is an error that names the function, and the next program goes on."""
    x = sharded(P("d"))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"`show at .* function with 2 results, and `show at .* has 1"):
        fx.jit(partitioned(show, lambda x: (x, show(x))))(x)
    f = custom_partitioning(show)
    f.def_partition(
        lambda mesh, args, result: (mesh, show, (result.sharding,) * 2, (args[0].sharding,)),
        sharding_rule="i j -> i j",
    )
    with pytest.raises(jax.errors.JaxRuntimeError, match="must return Sharding"):
        fx.jit(f)(x)
    assert len(lines_of(partitioned(show), x)[0]) == 8


def test_programs_without_effects_stay_as_they_are():
    """What the rule returns becomes the same program."""
    f = partitioned(lambda x: jnp.sin(x) * 2)
    x = sharded(P("d"))
    assert fx.jit(f).lower(x).compile().as_text().count("custom-call") == 0
    np.testing.assert_allclose(jax.jit(f)(x), np.sin(X) * 2, rtol=1e-6)
