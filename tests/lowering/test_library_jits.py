"""Libraries' own `jit` at the top: their calling conventions, with effects in order."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import effects as fx

pytestmark = pytest.mark.slow

MESH = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
X = jnp.arange(8.0).reshape(4, 2)


def sharded(x):
    return jax.device_put(x, jax.NamedSharding(MESH, jax.P("i")))


# Equinox


class Scale(eqx.Module):
    by: jax.Array
    name: str

    def __call__(self, x):
        fx.print("{name} {}", self.by, name=self.name)
        return x * self.by


FILTER_JITS = {"fx.filter_jit": fx.filter_jit, "fx.jit of it": lambda f: fx.jit(eqx.filter_jit(f))}


@pytest.mark.parametrize("jit", FILTER_JITS)
def test_equinox_sorts_arguments_and_results(jit, lines):
    """Modules, strings and functions go in and out, positional and by name, as with `eqx.filter_jit`."""

    @FILTER_JITS[jit]
    def step(model, x, *, then, label="x"):
        fx.print("begin {label}", label=label)
        y = then(model(x))
        fx.print("end {}", y.sum())
        return y, eqx.tree_at(lambda model: model.by, model, y[0]), label, then

    model = Scale(jnp.float32(2), "scale")
    results = []
    expected = ["begin x", "scale 2.0", "end 12.0", "begin z", "scale 4.0", "end 24.0"]

    def call():
        results.append(step(model, jnp.arange(4.0), then=jnp.abs))
        results.append(step(Scale(jnp.float32(4), "scale"), np.arange(4.0), then=jnp.abs, label="z"))

    assert lines(call) == expected
    (y, changed, label, then), _ = results
    assert (y.tolist(), changed.by, changed.name, label, then) == ([0, 2, 4, 6], 0.0, "scale", "x", jnp.abs)


def test_equinox_over_several_devices(lines):
    step = fx.filter_jit(lambda model, x: model(x).sum())
    assert lines(step, Scale(jnp.float32(2), "scale"), sharded(X)) == ["scale 2.0"]
    assert lines(lambda: [step(Scale(jnp.float32(n), "n"), sharded(X)) for n in range(20)]) == [
        f"n {float(n)}" for n in range(20)
    ]


def test_equinox_error_is_raised_as_itself(lines):
    """With Equinox's message, and effects before it."""

    @fx.filter_jit
    def check(x):
        fx.print("before {}", x)
        return eqx.error_if(x, x < 0, "x must not be negative")

    assert lines(check, jnp.float32(1)) == ["before 1.0"]

    def fails():
        with pytest.raises(eqx.EquinoxRuntimeError, match="x must not be negative"):
            check(jnp.float32(-1))

    assert lines(fails) == ["before -1.0"]
    assert lines(check, jnp.float32(2)) == ["before 2.0"]


def test_equinox_methods_donation_and_lowering(lines):
    class Model(eqx.Module):
        w: jax.Array

        @fx.filter_jit
        def __call__(self, x):
            fx.print("called {}", x)
            return self.w @ x

    model = Model(jnp.eye(2))
    assert lines(lambda: model(jnp.ones(2))) == ["called [1. 1.]"]
    x = jnp.ones(4)
    donates = fx.filter_jit(donate="all")(lambda x: (fx.print("{}", x[0]), x + 1)[1])
    assert lines(donates, x) == ["1.0"] and x.is_deleted()
    compiled = fx.filter_jit(lambda x, s: (fx.print("{} {s}", x, s=s), x)[1]).lower(jnp.float32(1), "a").compile()
    assert lines(compiled, jnp.float32(3), "a") == ["3.0 a"]


# Flax


class Counter(nnx.Module):
    def __init__(self):
        self.count = nnx.Variable(jnp.array(0))


NNX_JITS = {"fx.nnx_jit": fx.nnx_jit, "fx.jit of it": lambda f: fx.jit(nnx.jit(f))}


@pytest.mark.parametrize("jit", NNX_JITS)
def test_nnx_keeps_updates(jit, lines):
    """Of variables, and of attributes that are new; a module that is given twice is one."""

    @NNX_JITS[jit]
    def step(counter, same):
        counter.count[...] += 1
        fx.print("count {}", same.count[...])
        if not hasattr(counter, "seen"):
            counter.seen = nnx.Variable(jnp.array(7))
        return counter

    counter = Counter()
    returned = []
    assert lines(lambda: returned.extend(step(counter, counter) for _ in range(3))) == ["count 1", "count 2", "count 3"]
    assert int(counter.count[...]) == 3 and int(counter.seen[...]) == 7
    assert all(each is counter for each in returned)


def test_nnx_trains_with_an_optimizer(lines):
    """A model with batch statistics and an optimizer: the same as without effects under `nnx.jit`."""

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(2, 3, rngs=rngs)
            self.norm = nnx.BatchNorm(3, rngs=rngs)

        def __call__(self, x):
            return self.norm(self.linear(x)).sum(1)

    def train(jit, show):
        model = Model(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

        @jit
        def step(model, optimizer, x):
            loss, gradients = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
            optimizer.update(model, gradients)
            show(loss, optimizer.step[...])
            return loss

        losses = [float(step(model, optimizer, sharded(X))) for _ in range(3)]
        return losses, nnx.state(model)

    shown = []
    plain = train(nnx.jit, lambda loss, step: None)
    written = lines(lambda: shown.append(train(fx.nnx_jit, lambda loss, step: fx.print("{} {:.4f}", step, loss))))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), shown[0], plain)
    assert written == [f"{step} {loss:.4f}" for step, loss in enumerate(plain[0], start=1)]


def test_nnx_static_arguments_and_failures(lines):
    @fx.nnx_jit(static_argnames="n")
    def step(counter, n):
        counter.count[...] += n
        fx.callback(fail, None, counter.count[...])

    def fail(x):
        if x > 1:
            raise ValueError("too many")

    counter = Counter()
    step(counter, n=1)
    fx.effects_barrier(timeout=60)
    step(counter, n=1)
    with pytest.raises(fx.EffectError, match="too many"):
        fx.effects_barrier(timeout=60)
    assert int(counter.count[...]) == 2


# jax.jit


def test_function_of_jax_jit_keeps_its_options(lines):
    """What `jax.jit` was told is not lost: static arguments, donation, shardings."""
    x = jnp.ones(4)
    compiled = jax.jit(lambda x, n: (fx.print("{n} {}", x[0], n=n), x * n)[1], static_argnums=1, donate_argnums=0)
    assert lines(fx.jit(compiled), x, 3) == ["3 1.0"] and x.is_deleted()
    spec = jax.NamedSharding(MESH, jax.P("i"))
    placed = fx.jit(jax.jit(lambda x: (fx.print("{}", x), x)[1], in_shardings=(spec,), out_shardings=spec))
    results = []
    assert lines(lambda: results.append(placed(jnp.arange(4)))) == ["[0 1 2 3]"]
    assert results[0].sharding.is_equivalent_to(spec, 1)


def test_options_around_a_function_of_jax_jit(lines):
    """As with `jax.jit`, they are those of a jit around it: many functions of `jax.numpy` are compiled already."""
    x = jnp.ones(4)
    assert float(fx.jit(jnp.dot, static_argnames="precision")(x, x, precision="highest")) == 4
    assert float(fx.jit(jnp.sum, static_argnames="axis")(x, axis=0)) == 4
    compiled = jax.jit(lambda x, n: (fx.print("{n} {}", x[0], n=n), x * n)[1], static_argnums=1, donate_argnums=0)
    assert lines(fx.jit(compiled, static_argnums=1), x, 3) == ["3 1.0"] and not x.is_deleted()


def test_function_of_pjit_for_the_mesh_of_its_call(lines):
    """Whose partition specs say nothing without one."""
    with warnings.catch_warnings(action="ignore"):  # JAX has deprecated it
        from jax.experimental.pjit import pjit
    of_context = pjit(lambda x: (fx.print("{}", x), x + 1)[1], in_shardings=(jax.P("i"),), out_shardings=jax.P("i"))
    with warnings.catch_warnings(action="ignore"), MESH:
        assert lines(fx.jit(of_context), jnp.arange(4)) == ["[0 1 2 3]"]


def test_options_for_what_a_library_has_compiled():
    for compiled in eqx.filter_jit(lambda x: x), nnx.jit(lambda x: x):
        with pytest.raises(TypeError, match="has been compiled already, and the options `static_argnums`"):
            fx.jit(compiled, static_argnums=0)
