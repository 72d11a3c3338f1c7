"""Regions over some axes of a mesh: devices that differ along the others only are replicas of each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType

import effects as fx
from effects._model.dependency import add_dependency
from effects._model.wire import TOKEN_LENGTH
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


def _regions(outer, inner, reach=lambda f, x: f(x)):
    """A region over `y` inside of one over `x`. `reach`: how devices come to the inner one."""

    def both(x):
        return reach(jax.shard_map(inner, in_specs=P("y"), out_specs=P("y"), axis_names={"y"}), outer(x))

    return fx.jit(in_parts(both, mesh_of(2, 2)))


def _shows(text, **kwargs):
    return lambda x: (fx.print(text, lax.axis_index("x"), **kwargs), x + 1)[1]


def _waits(x):
    return fx.callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def _in_a_branch(f, x):
    return lax.cond(lax.axis_index("x") == 0, f, lambda x: x, x)


def test_effects_of_the_outer_region_alone(lines):
    """Those of each replica group, also in a branch that not all devices take."""
    f = _regions(_shows("outer {}"), lambda x: lax.psum(x, "y") + x)
    assert lines(f, jnp.arange(4)) == ["outer 0", "outer 1"]
    f = _regions(lambda x: _in_a_branch(_shows("outer {}"), x), lambda x: x * 2)
    assert lines(f, jnp.arange(4)) == ["outer 0"]


@pytest.mark.parametrize(
    ("outer", "inner", "reach"),
    [
        (_shows("{}"), _shows("{}"), lambda f, x: f(x)),
        (_shows("{}"), _shows("{}", ordered=False), lambda f, x: f(x)),
        (_shows("{}", ordered=False), _shows("{}", ordered=False), lambda f, x: f(x)),
        (_shows("{}"), _waits, lambda f, x: f(x)),
        (lambda x: x, _shows("{}"), _in_a_branch),
        (lambda x: x, _shows("{}"), lambda f, x: f(x)),
    ],
    ids=["both", "inner unordered", "both unordered", "callback", "branch", "inner alone"],
)
def test_effects_of_regions_in_regions_are_refused(outer, inner, reach):
    """While the program is lowered, with the line of the inner one's effect."""
    with pytest.raises(fx.MissingTokenRule, match=r"at .*test_parts.py:\d+ .* inside another one.*over all"):
        _regions(outer, inner, reach).lower(jnp.arange(4))


def test_callback_of_jax_in_regions_in_regions_is_given_back(capfd):
    """It is carried out as JAX does, without an order."""

    def shows(x):
        jax.debug.print("{}", x[0])
        return x

    jax.block_until_ready(_regions(shows, shows)(jnp.arange(4)))
    jax.effects_barrier()
    fx.effects_barrier()
    assert set(capfd.readouterr().out.split()) == {"0", "1", "2", "3"}


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


@pytest.mark.parametrize("part", [in_parts, None], ids=["a replica group", "all devices"])
def test_nothing_depends_on_the_tangent_of_an_integer(part):
    """It has no value, and stays what it is."""
    tangent = np.zeros(3, jax.dtypes.float0)

    def body(x):
        y, same = add_dependency([tangent, jnp.zeros(TOKEN_LENGTH, jnp.uint32)], [x + 1, tangent])
        assert same is tangent
        return y

    program = body if part is None else part(body, mesh_of(2, 2))
    np.testing.assert_array_equal(fx.jit(program)(jnp.arange(4)), [1, 2, 3, 4])
