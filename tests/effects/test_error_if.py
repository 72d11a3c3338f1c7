"""`fx.error_if`: the call raises, at the point where the predicate is true; else it is as if nothing stood there."""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx

AUTO = (jax.sharding.AxisType.Auto,)


def positive(x):
    return fx.error_if(x, x < 0, "x = {} is negative", x)


@fx.jit
def between(x):
    fx.print("before {}", x)
    x = positive(x)
    fx.print("after {}", x)
    return x


def raised(f, *args):
    with pytest.raises(fx.CheckError) as caught:
        f(*args)
    return caught.value


def test_value_is_returned_or_the_call_raises(lines):
    assert lines(lambda: between(2)) == ["before 2", "after 2"]
    caught = []
    assert lines(lambda: caught.append(raised(between, -2))) == ["before -2"]
    (error,) = caught
    line, called = positive.__code__.co_firstlineno + 1, between.__wrapped__.__code__.co_firstlineno + 3
    assert error.message == "x = -2 is negative"
    assert (error.where, error.function, error.effect) == (f"{__file__}:{line}", "between", "check")
    assert error.token[-1] == 1
    ended = "`fx.error_if` ended the program there."
    place = f"{__file__}:{line}, in `positive`, called from {__file__}:{called}, device 0"
    assert str(error) == f"x = -2 is negative ({place}). {ended}"
    assert lines(lambda: between(3)) == ["before 3", "after 3"]  # nothing is left of the failure


def test_any_pytree_is_returned():
    tree = {"a": jnp.ones(2), "b": (1, np.float32(2), jax.random.key(3)), "c": None}
    got = fx.jit(lambda tree, x: fx.error_if(tree, x < 0, "wrong"))(tree, 1)
    assert jax.tree.structure(got) == jax.tree.structure(tree)
    assert got["a"].tolist() == [1, 1] and got["b"][:2] == (1, 2)
    assert jax.random.bits(got["b"][2]) == jax.random.bits(jax.random.key(3))


def test_what_uses_the_value_does_not_run():
    """A loop that would never end otherwise."""

    def count(x):
        return jax.lax.while_loop(lambda x: x != 7, lambda x: x + 2, fx.error_if(x, x % 2 == 0, "{} is even", x))

    assert fx.jit(count)(1) == 7
    assert raised(fx.jit(count), 2).message == "2 is even"


def test_effect_stays_where_the_value_is_not_used():
    def f(x):
        fx.error_if(x, x < 0, "unused {}", x)
        return x + 1

    assert raised(fx.jit(f), -1).message == "unused -1"


def test_each_turn_of_a_loop():
    f = fx.jit(lambda x: jax.lax.fori_loop(0, 9, lambda i, x: fx.error_if(x + i, x > 5, "{} at turn {}", x, i), x))
    assert raised(f, 0).message == "6 at turn 4"


def test_lanes_have_their_own():
    f = fx.jit(jax.vmap(lambda x: positive(x) + 1))
    assert f(jnp.arange(3)).tolist() == [1, 2, 3]
    error = raised(f, jnp.array([1, -2, 3, -4]))
    assert (error.message, error.lane) == ("x = -2 is negative", (1,))


def test_a_program_that_goes_on_does_not_wait():
    f = fx.jit(lambda x: (positive(x[0]), jax.vmap(positive)(x), jax.vmap(jax.vmap(positive))(x[None])))
    before = fx.stats()["published"]
    f(jnp.array([1, 2]))
    fx.effects_barrier()
    assert fx.stats()["published"] == before


def test_lanes_that_do_not_get_there_are_not_looked_at():
    f = fx.jit(jax.vmap(lambda x: jax.lax.cond(x > -5, positive, lambda x: x, x)))
    assert f(jnp.array([1, -9])).tolist() == [1, -9]
    assert raised(f, jnp.array([-9, -1])).lane == (1,)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint, fx.jit], ids=["straight", "remat", "nested"])
def test_derivatives_pass_through(wrap):
    def loss(x):
        return jnp.sin(wrap(positive)(x) * 2)

    for derivative in jax.grad, jax.jacfwd, lambda f: jax.grad(jax.grad(f)):
        plain = derivative(lambda x: jnp.sin(x * 2))
        np.testing.assert_allclose(fx.jit(derivative(loss))(0.3), jax.jit(plain)(0.3), rtol=1e-6)
        assert raised(fx.jit(derivative(loss)), -0.5).message == "x = -0.5 is negative"


def test_regions_and_shards():
    mesh = jax.make_mesh((4,), ("i",), axis_types=AUTO)

    def body(x, y):
        return positive(x), fx.error_if(y, x < 0, "of all")

    specs = jax.P("i"), jax.P()
    f = fx.jit(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=specs))  # types are checked: y stays the same
    x, y = f(jnp.arange(4), 5)
    assert (x.tolist(), int(y)) == ([0, 1, 2, 3], 5)
    error = raised(f, jnp.array([1, 2, -3, 4]), 5)
    assert (error.message, error.device) == ("x = [-3] is negative", 2)
    sharded = jax.device_put(jnp.arange(4) - 1, jax.NamedSharding(mesh, jax.P("i")))
    assert raised(fx.jit(positive), sharded).message == "x = [-1  0  1  2] is negative"


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32"])
def test_values_of_the_shape_of_a_token(dtype):
    """Four sharded numbers stay what they are, whatever their type: a token is four `uint32`."""
    mesh = jax.make_mesh((4,), ("i",), axis_types=AUTO)
    x = jax.device_put(np.arange(4).astype(dtype), jax.NamedSharding(mesh, jax.P("i")))
    y = fx.jit(lambda x: fx.error_if(x, x[0] > 5, "bad"))(x)
    assert y.dtype == dtype and y.tolist() == [0, 1, 2, 3]
    assert raised(fx.jit(lambda x: fx.error_if(x, x[3] > 2, "{}", x)), x).message in ("[0 1 2 3]", "[0. 1. 2. 3.]")


def test_outside_of_programs():
    assert positive(jnp.ones(2)).tolist() == [1, 1]
    assert raised(positive, jnp.float32(-1)).message == "x = -1.0 is negative"
    assert raised(jax.vmap(positive), jnp.array([1, -1])).lane == (1,)


def test_predicate_that_is_known():
    assert fx.jit(lambda x: fx.error_if(x, False, "never"))(1) == 1
    assert "effects" not in str(jax.make_jaxpr(lambda x: fx.error_if(x, False, "never"))(1))
    assert raised(fx.jit(lambda x: fx.error_if(x, True, "always {}", x)), 1).message == "always 1"


def test_in_a_program_of_jax():
    """There the call raises JAX's error, and the barrier ours."""
    with pytest.raises(jax.errors.JaxRuntimeError, match="x = -1 is negative"):
        jax.block_until_ready(jax.jit(positive)(-1))
    assert raised(fx.effects_barrier).message == "x = -1 is negative"
    assert jax.jit(positive)(1) == 1


def test_exported_program():
    loaded = fx.deserialize(fx.export(between)(1).serialize())
    assert loaded.call(1) == 1
    assert raised(loaded.call, -1).message == "x = -1 is negative"


def test_records_are_seen():
    with fx.capture() as records:
        raised(between, -1)
    assert [(record.effect, record.fmt, record.text) for record in records][1:] == [
        ("check", "x = {} is negative", "x = -1 is negative")
    ]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda x: fx.error_if(x, x, "wrong"),
            TypeError,
            "`fx.error_if` at .* was given an array of int32 as",
        ),
        (
            lambda x: fx.error_if(x, 1, "wrong"),
            TypeError,
            "none of which may hold. Write a comparison, say `x =",
        ),
        (lambda x: fx.error_if("x", x > 0, "wrong"), TypeError, "was given 'x' of type `str` as the value"),
        (lambda x: fx.error_if(x, x > 0, "{} {}", x), fx.FormatError, "fx.error_if"),
    ],
)
def test_bad_input(call, error, text):
    with pytest.raises(error, match=text) as caught:
        fx.jit(call)(1)
    assert __file__ in str(caught.value)


def test_failed_call_keeps_nothing():
    x = jnp.ones(1 << 16)
    f = fx.jit(lambda x: fx.error_if(x, x.sum() > 0, "sum = {}", x.sum()))
    for _ in range(3):
        raised(f, x)
    gc.collect()
    assert sum(each.size == x.size for each in jax.live_arrays()) <= 1
