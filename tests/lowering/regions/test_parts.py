"""Regions over some axes of a mesh: devices that differ along the others only are replicas of each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType

import effects as fx
from tests.lowering.regions.meshes import collectives, in_parts, mesh_of

P = jax.P


def test_replica_group_calls_a_jitted_function_with_a_constant(lines):
    """A jaxpr inside of the region's has constants."""
    constant = np.arange(3)

    @jax.jit
    def shows(x):
        fx.print("{}", x[0] + constant)
        return x + constant[1]

    program = fx.jit(in_parts(shows, mesh_of(2, 2)))
    assert lines(program, jnp.arange(4)) == ["[0 1 2]", "[2 3 4]"]


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("check_vma", [True, False])
def test_replica_groups_have_effects_of_their_own(kind, check_vma, lines):
    """Replica groups may diverge, and each has each of its effects once; so for what is unordered or waited for."""

    def body(x):
        n = lax.axis_index("x")
        fx.print("{} {}", n, x)

        def odd(x):
            fx.print("{} odd", n)
            fx.print("{} unordered", n, ordered=False)
            return fx.callback(lambda x: (print("called", x), x + 1)[1], jax.ShapeDtypeStruct(x.shape, x.dtype), x)

        x = lax.cond(n == 1, odd, lambda x: x, x)
        return lax.fori_loop(0, n + 1, lambda turn, x: (fx.print("{} turn {}", n, turn), x * 2)[1], x)

    mesh = mesh_of(2, 2, kind=kind)
    f = in_parts(body, mesh, check_vma=check_vma)

    def whole(x):
        fx.print("before {}", x)
        x = f(x)
        fx.print("after {}", x)
        return f(x)

    x = jax.device_put(jnp.arange(4), jax.NamedSharding(mesh, P("x" if kind is AxisType.Explicit else "y")))
    own = lambda a, b, called: [  # noqa: E731
        *(f"0 {a}", f"1 {b}", "0 turn 0", "1 odd", f"called {called}", "1 turn 0", "1 turn 1")
    ]
    expected = ["before [0 1 2 3]", *own("[0 1]", "[2 3]", "[2 3]")]
    expected += ["after [ 0  2 12 16]", *own("[0 2]", "[12 16]", "[12 16]")]
    with jax.set_mesh(mesh):
        whole = fx.jit(whole)
        for _ in range(2):
            shown = lines(whole, x)
            assert shown.count("1 unordered") == 2
            assert [line for line in shown if "unordered" not in line] == expected
        assert whole(x).tolist() == [0, 4, 52, 68]


def test_parts_keep_what_is_sharded_along_the_other_axes(lines):
    """What is printed whole is gathered; a print of something else adds nothing, and devices say who they are."""
    mesh = mesh_of(2, 2)

    def program(shows):
        def body(x):
            x = lax.with_sharding_constraint(x * 2, jax.NamedSharding(jax.sharding.get_abstract_mesh(), P(None, "y")))
            if shows:
                fx.print("{}", lax.axis_index("x"))
            x = lax.psum(x, "x")
            if shows:
                fx.print("summed")
            return x

        return jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P(), axis_names={"x"})

    x = jax.device_put(jnp.arange(16.0).reshape(2, 8), jax.NamedSharding(mesh, P("x", "y")))
    assert collectives(fx.jit(program(shows=True)), x) == collectives(jax.jit(program(shows=False)), x)
    f = fx.jit(program(shows=True))
    with fx.capture(suppress=True) as records:
        f(x)
    assert [(record.device, record.text) for record in records] == [(0, "0"), (2, "1"), (0, "summed"), (2, "summed")]
    assert f(x).tolist() == jax.jit(program(shows=False))(x).tolist()


def test_parts_around_other_regions(lines):
    """An inner region over the other axes has the effects, or the outer one, under transformations too."""
    mesh = mesh_of(2, 2)

    def shows(x):
        fx.print("{}", x.sum())
        return x * 2

    f = in_parts(shows, mesh)
    x = jnp.arange(8.0).reshape(2, 4)
    assert lines(fx.jit(f), x) == ["6.0", "22.0"]
    assert lines(fx.jit(jax.grad(lambda x: f(x).sum())), x) == ["6.0", "22.0"]
    assert lines(fx.jit(jax.vmap(f)), jnp.stack([x, x + 1])) == ["6.0", "10.0", "22.0", "26.0"]
    twice = lambda x: lax.scan(lambda x, _: (f(x), None), x, length=2)[0]  # noqa: E731
    assert lines(fx.jit(twice), x) == ["6.0", "22.0", "12.0", "44.0"]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("calls", [False, True])
def test_replicas_may_have_effects_of_their_own(calls, check_vma, lines):
    """A region inside one that has effects too: each has its place in its device's own order."""

    def inner(x):
        n, m = lax.axis_index("x"), lax.axis_index("y")
        fx.print("inner {} {} {}", n, m, x.sum())
        if calls:
            one = jax.ShapeDtypeStruct(x.shape, x.dtype)
            return fx.callback(lambda n, m, x: (print("called", n, m), x + 1)[1], one, n, m, x)
        lax.cond(m == 1, lambda: fx.print("extra {} {}", n, m), lambda: None)
        return x + 1

    def outer(x):
        n = lax.axis_index("x")
        fx.print("outer {}", n)
        x = jax.shard_map(inner, in_specs=P(None, "y"), out_specs=P(None, "y"), axis_names={"y"}, check_vma=check_vma)(
            x
        )
        if calls:
            x = fx.callback(lambda n, x: (print("both", n), x)[1], jax.ShapeDtypeStruct(x.shape, x.dtype), n, x)
        fx.print("after {} {}", n, x[0])
        return x

    f = fx.jit(in_parts(outer, mesh_of(2, 2), check_vma=check_vma))
    pairs = [(n, m) for n in (0, 1) for m in (0, 1)]
    sums = {(0, 0): "1.0", (0, 1): "5.0", (1, 0): "9.0", (1, 1): "13.0"}
    expected = ["outer 0", "outer 1", *(f"inner {n} {m} {sums[n, m]}" for n, m in pairs)]
    after = ["after 0 [1. 2. 3. 4.]", "after 1 [5. 6. 7. 8.]"]
    if calls:
        expected += [*(f"called {n} {m}" for n, m in pairs), "both 0", "both 1", *after]
    else:  # what follows is at the same place of other devices
        expected += [after[0], "extra 0 1", after[1], "extra 1 1"]
    for _ in range(5):
        assert lines(f, jnp.arange(8.0).reshape(2, 4)) == expected


def test_error_in_a_part():
    def body(x):
        return fx.callback(lambda x: 1 / 0, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    f = fx.jit(in_parts(body, mesh_of(2, 2)))
    for _ in range(3):
        with pytest.raises(fx.EffectError, match="ZeroDivisionError") as caught:
            f(jnp.arange(4))
        assert caught.value.not_carried_out == {"callback": 1}  # the other group's
        fx.effects_barrier()
    with fx.config.override(after_error="go_on"):
        with pytest.raises(fx.EffectError, match="ZeroDivisionError"):
            f(jnp.arange(4))
        with pytest.raises(fx.EffectError, match="ZeroDivisionError"):  # the other group's
            fx.effects_barrier()
    fx.effects_barrier()


def test_older_partitioner_is_refused():
    """It does not say which devices are replicas of each other."""
    f = fx.jit(in_parts(lambda x: (fx.print("{}", x[0]), x)[1], mesh_of(2, 2)))
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        with pytest.raises(
            fx.MissingTokenRule, match=r"over some axes of its mesh.*`jax_use_shardy_partitioner` is off"
        ):
            f.lower(jnp.arange(4))
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)
