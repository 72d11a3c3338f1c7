"""Libraries that call `jax.jit` themselves work below `fx.jit`, and effects work in what they compile."""

import blackjax
import diffrax
import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import effects as fx

X = jnp.linspace(-1.0, 1.0, 6).reshape(3, 2)
Y = X.sum(1, keepdims=True)


def _both(label, value):
    """A line of ours and one of JAX's."""
    fx.print(label + " {:.4f}", value)
    jax.debug.print(label + " {:.4f} again", value, ordered=True)


def _check(lines, f, *args):
    """Below `fx.jit` lines and results are those of `jax.jit`, where ours and JAX's are each in order. Returns them."""
    results = {}

    def call(jit):
        results[jit] = jax.tree.map(np.asarray, jit(f)(*args))
        jax.effects_barrier()

    ours, jaxs = lines(call, fx.jit), lines(call, jax.jit)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), results[fx.jit], results[jax.jit])
    assert ours[::2] == [line for line in jaxs if not line.endswith("again")]
    assert ours[1::2] == [line for line in jaxs if line.endswith("again")]
    assert [f"{line} again" for line in ours[::2]] == ours[1::2]
    return ours[::2]


class _Dense(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(4)(x)
        _both("hidden", x.sum())
        return nn.Dense(1)(nn.relu(x))


def test_flax_linen_training_with_optax(lines):
    """A training loop: a model, its gradient, and an optimizer in a scan."""
    model, optimizer = _Dense(), optax.adam(1e-2)
    params = model.init(jax.random.key(0), X)  # eagerly

    def train(params):
        def loss(params):
            return jnp.mean((jax.jit(model.apply)(params, X) - Y) ** 2)

        def step(state, _):
            params, moments = state
            value, gradient = jax.value_and_grad(loss)(params)
            _both("loss", value)
            updates, moments = optimizer.update(gradient, moments)
            return (optax.apply_updates(params, updates), moments), value

        return jax.lax.scan(step, (params, optimizer.init(params)), None, 3)

    fx.effects_barrier()
    shown = _check(lines, train, params)
    assert [line.split()[0] for line in shown] == ["hidden", "loss"] * 3


def test_flax_lifted_transformations(lines):
    """`nn.jit`, `nn.remat` and `nn.vmap` carry effects."""

    class Lane(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.tanh(nn.Dense(2)(x))
            _both("lane", x.sum())
            return x

    model = nn.jit(nn.vmap(nn.remat(Lane), variable_axes={"params": 0}, split_rngs={"params": True}))()
    params = model.init(jax.random.key(0), X)
    jax.effects_barrier()
    results = []
    for jit in (fx.jit, jax.jit):
        shown = lines(lambda jit=jit: results.append(jit(model.apply)(params, X)))
        assert len(shown) == 6 and sum(line.endswith("again") for line in shown) == 3
    np.testing.assert_allclose(*results, rtol=1e-6)


def test_flax_nnx(lines):
    """`nnx.jit` below `fx.jit`, and gradients of a model that prints."""

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(2, 1, rngs=rngs)

        def __call__(self, x):
            x = self.linear(x)
            _both("out", x.sum())
            return x

    graph, state = nnx.split(Model(nnx.Rngs(0)))

    def program(state):
        model = nnx.merge(graph, state)
        loss = nnx.jit(lambda model: jnp.mean((model(X) - Y) ** 2))
        return loss(model), nnx.to_pure_dict(nnx.grad(loss)(model))

    assert len(_check(lines, program, state)) == 2


@pytest.mark.slow
def test_equinox(lines):
    """`eqx.filter_jit`, `filter_grad` and `filter_checkpoint` below `fx.jit`."""
    model = eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_array)

    @eqx.filter_jit
    def loss(model):
        value = jnp.mean((eqx.filter_checkpoint(eqx.filter_vmap(model))(X) - Y) ** 2)
        _both("loss", value)
        return value

    def program(params):
        model = eqx.combine(params, static)
        return loss(model), eqx.filter(eqx.filter_grad(loss)(model), eqx.is_array)

    assert len(_check(lines, program, params)) == 2


def test_equinox_checks_at_run_time(lines):
    """`eqx.error_if` stays Equinox's, beside effects of ours."""

    def program(x):
        fx.print("before")
        x = eqx.error_if(x, x < 0, "negative")
        return x + 1

    f = fx.jit(program)
    assert lines(f, jnp.float32(1)) == ["before"]
    with pytest.raises(Exception, match="negative"):
        jax.block_until_ready(f(jnp.float32(-1)))
    lines(fx.effects_barrier)


def test_optax_line_search_says_what_it_does(capsys):
    """Optax's own `jax.debug.print` is ours below `fx.jit`: the same lines."""
    optimizer = optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(1, verbose=True))

    def program(x):
        def loss(x):
            return jnp.sum(x**4)

        value, gradient = jax.value_and_grad(loss)(x)
        updates, _ = optimizer.update(gradient, optimizer.init(x), x, value=value, grad=gradient, value_fn=loss)
        return optax.apply_updates(x, updates)

    texts = []
    for jit in (jax.jit, fx.jit):
        jit(lambda x: program(x))(jnp.arange(3.0))
        jax.effects_barrier()
        texts.append(sorted(capsys.readouterr().out.splitlines()))
    assert texts[0] == texts[1] and texts[0]


@pytest.mark.slow
def test_diffrax(lines):
    """A solver that compiles itself, with a vector field that prints, forward and under `grad`."""

    def field(t, y, args):
        _both("t =", t)
        return -y * args

    def solve(rate):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(field), diffrax.Euler(), 0.0, 1.0, 0.25, jnp.float32(1), rate, max_steps=8
        )
        return solution.ys[0]

    assert _check(lines, solve, jnp.float32(0.5)) == [f"t = {t:.4f}" for t in (0, 0.25, 0.5, 0.75)]


@pytest.mark.slow
def test_diffrax_progress_meter(capsys):
    """Diffrax's progress meter, which calls back."""

    def solve(y):
        term = diffrax.ODETerm(lambda t, y, args: -y)
        meter = diffrax.TextProgressMeter(minimum_increase=0.25)
        return diffrax.diffeqsolve(term, diffrax.Euler(), 0.0, 1.0, 0.125, y, progress_meter=meter).ys

    texts = []
    for jit in (jax.jit, fx.jit):
        jit(lambda y: solve(y))(jnp.float32(1))
        jax.effects_barrier()
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and "100.00%" in texts[1]


def test_blackjax(lines):
    """A sampler's loop, whose log-density prints."""

    def density(x):
        _both("at", x)
        return -0.5 * x**2

    sampler = blackjax.hmc(density, step_size=0.3, inverse_mass_matrix=jnp.ones(1), num_integration_steps=3)

    def sample(key):
        state = sampler.init(jnp.float32(0.1))
        states = jax.lax.scan(lambda state, key: (sampler.step(key, state)[0],) * 2, state, jax.random.split(key, 3))[1]
        return states.position

    assert len(_check(lines, sample, jax.random.key(1))) >= 1 + 3 * 3
