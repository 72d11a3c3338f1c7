"""`fx.watch(f)` is `f`: values bit for bit, mutations, effects and errors, by transformations times programs."""

from __future__ import annotations

import contextlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

import effects as fx

X = np.float32([[0.5, -1.25, 3], [2, 0, 1e-30], [7, -0.0, 0.1], [1, 2, -3]])
W = np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3)
MESH = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
ROWS = PartitionSpec("d")


# Programs: functions of a row and of weights, with a row as their result.


def _masks(x, w):
    return jnp.where(x > 0, jnp.log(x), jnp.sqrt(x) * w[0])


def _attends(x, w):
    h = jax.nn.softmax(w @ x)
    return jnp.tanh(h / jnp.linalg.norm(h) + w.sum(0)) * x


def _scans(x, w):
    def step(h, row):
        h = jnp.tanh(row * h + x)
        return h, h / (h[0] - h[0])

    last, rows = lax.scan(step, x, w)
    return last + jnp.nansum(rows, 0)


def _loops(x, w):
    y = lax.fori_loop(0, 3, lambda i, y: jnp.exp(y * 0.1) - w[i], x)
    return lax.cond(y[0] > 0, jnp.log, lambda y: y * y, y)


def _rematerializes(x, w):
    return jax.checkpoint(lambda x: jnp.sin(jnp.sqrt(w @ x)))(x) * 3


@jax.custom_jvp
def _cubed(x):
    return x * x * x


@_cubed.defjvp
def _cubed_jvp(primals, tangents):
    return _cubed(*primals), tangents[0] * jnp.log(primals[0])


@jax.custom_vjp
def _halved(x):
    return x / 2


_halved.defvjp(lambda x: (x / 2, x), lambda x, slope: (slope / x,))


def _has_rules(x, w):
    return _halved(_cubed(x)) + w[1]


def _shows(x, w):
    fx.print("x = {}", x[0])
    fx.log("norm", norm=jnp.abs(x).max())
    fx.check(x[0] < 2, "{} is too large", x[0])
    return jnp.log(x) + w[0]


def _mutates(x, w):
    reference = jax.new_ref(x)
    reference[...] = jnp.sqrt(reference[...]) + w[0]
    reference[0] = x[1]
    return reference[...] * 2


def _is_mutated(x, w):
    """Does what `_mutates` does, without a reference."""
    return (jnp.sqrt(x) + w[0]).at[0].set(x[1]) * 2


PROGRAMS = [_masks, _attends, _scans, _loops, _rematerializes, _has_rules, _shows, _mutates]


# Transformations: of a program, to a function of all rows and of weights.


def _rows(f):
    return lambda xs, w: jax.vmap(f, (0, None))(xs, w)


def _summed(f):
    return lambda x, w: f(x, w).sum()


def _slopes(f):
    return jax.value_and_grad(_summed(f), (0, 1))


def _with_rule(f):
    inner = jax.custom_vjp(f)
    inner.defvjp(lambda x, w: (f(x, w), (x, w)), lambda xw, slope: jax.vjp(f, *xw)[1](slope))
    return lambda x, w: jax.grad(_summed(inner))(x, w)


def _with_tangents(f):
    inner = jax.custom_jvp(f)
    inner.defjvp(lambda primals, tangents: jax.jvp(f, primals, tangents))
    return lambda x, w: jax.jvp(inner, (x, w), (x, w))


TRANSFORMATIONS = {
    "itself": lambda f: lambda xs, w: f(xs[0], w),
    "jit": lambda f: lambda xs, w: jax.jit(f)(xs[0], w),
    "vmap": _rows,
    "grad": lambda f: lambda xs, w: _slopes(f)(xs[0], w),
    "vmap of grad": lambda f: _rows(_slopes(f)),
    "grad of vmap": lambda f: _slopes(_rows(f)),
    "jvp": lambda f: lambda xs, w: jax.jvp(f, (xs[0], w), (xs[1], w)),
    "jacfwd": lambda f: lambda xs, w: jax.jacfwd(f)(xs[0], w),
    "hessian": lambda f: lambda xs, w: jax.hessian(_summed(f))(xs[2], w),
    "remat": lambda f: lambda xs, w: _slopes(jax.checkpoint(f))(xs[0], w),
    "custom_vjp": lambda f: lambda xs, w: _with_rule(f)(xs[0], w),
    "custom_jvp": lambda f: lambda xs, w: _with_tangents(f)(xs[0], w),
    "scan": lambda f: lambda xs, w: lax.scan(lambda total, x: (total + f(x, w), x), xs[0], xs),
    "cond": lambda f: lambda xs, w: lax.cond(xs[0, 0] > 0, f, lambda x, w: x, xs[0], w),
    "region": lambda f: lambda xs, w: jax.shard_map(
        _rows(f), mesh=MESH, in_specs=(ROWS, PartitionSpec()), out_specs=ROWS, check_vma=False
    )(xs, w),
}  # fmt: skip


OF_DERIVATIVES = ("grad", "jvp", "jac", "hessian", "remat", "custom")
"""JAX adds up cotangents in another order if the function is one of its own, which may change the last bits."""


def _near(first, second):
    """True if two outcomes are equal but for the last bits."""
    for a, b in zip(first[1], second[1], strict=True):
        if a[:2] != b[:2]:  # type, and which are NaN
            return False
        if len(a) > 2 and not np.allclose(np.frombuffer(a[2], a[0]), np.frombuffer(b[2], b[0]), rtol=1e-4, atol=1e-6):
            return False
    return (first[0], *first[2:]) == (second[0], *second[2:])


def _bits(x):
    """Type and bits; of NaN only that it is one."""
    array = np.asarray(x)
    if not np.issubdtype(array.dtype, np.floating):
        return str(array.dtype), array.tolist()
    return str(array.dtype), np.isnan(array).tolist(), np.where(np.isnan(array), 0, array).tobytes()


def _seen(program, *args):
    """The results of a program, its lines, its errors, and the devices of its results."""
    errors = []
    with fx.capture(suppress=True) as records:
        try:
            outs = jax.block_until_ready(program(*args))
            fx.effects_barrier()
        except fx.CheckError as error:
            failures = [each for each in error.failures if not isinstance(each, fx.NonFinite)]
            errors = [(each.message, each.where, each.lane, each.device) for each in failures]
    shown = [record.text for record in records if record.effect in ("print", "log", "check", "print_grad")]
    shown = [text for text in shown if "made nan" not in text]
    leaves, structure = jax.tree.flatten(outs)
    places = [(leaf.sharding, leaf.committed, leaf.weak_type) for leaf in leaves]
    return structure, [*map(_bits, leaves)], places, shown, sorted(errors)


def _cells():
    """All programs under all transformations. Quick are those that have each transformation once."""
    for (i, f), (j, name) in itertools.product(enumerate(PROGRAMS), enumerate(TRANSFORMATIONS)):
        is_quick = i == j % len(PROGRAMS)
        yield pytest.param(f, name, id=f"{f.__name__}-{name}", marks=() if is_quick else pytest.mark.slow)


@pytest.mark.parametrize(("f", "name"), [*_cells()])
def test_watched_function_is_the_function(f, name):
    """A watched function has the outcome of the function, with each transformation around it or inside."""
    transform = TRANSFORMATIONS[name]
    try:
        expected = _seen(fx.jit(transform(f)), X, W)
    except TypeError:  # JAX refuses tangents of a function with a rule for cotangents
        assert f is _has_rules
        for refused in (fx.watch(transform(f)), transform(fx.watch(f))):
            with pytest.raises(TypeError, match="custom_vjp"):
                _seen(fx.jit(refused), X, W)
        return
    except ValueError:  # JAX refuses references in tangents that `vmap` maps; in a watched function they are values
        assert f is _mutates and name in ("jacfwd", "hessian")
        regular = abs(X) + 1
        expected = _seen(fx.jit(transform(_is_mutated)), regular, W)
        assert _near(_seen(fx.jit(transform(fx.watch(f))), regular, W), expected)
        return
    assert _seen(fx.jit(fx.watch(transform(f))), X, W) == expected
    inside = _seen(fx.jit(transform(fx.watch(f))), X, W)
    assert _near(inside, expected) if any(each in name for each in OF_DERIVATIVES) else inside == expected


@pytest.mark.slow
@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_sharding_and_donation_stay(f):
    """A program that is sharded and whose arguments are donated has the same results in the same places."""

    def place():
        return jax.device_put(X, NamedSharding(MESH, ROWS)), jax.device_put(W, NamedSharding(MESH, PartitionSpec()))

    seen, gone = [], []
    for g in (_rows(f), fx.watch(_rows(f)), _rows(fx.watch(f))):
        program = fx.jit(g, donate_argnums=0, out_shardings=NamedSharding(MESH, ROWS))
        xs, w = place()
        seen.append(_seen(program, xs, w))
        gone.append((xs.is_deleted(), w.is_deleted()))
    assert seen[0] == seen[1] == seen[2]
    assert gone[0] == gone[1] == gone[2] == (True, False)


@pytest.mark.parametrize("jit", [fx.jit, jax.jit, lambda f: f], ids=["fx.jit", "jax.jit", "eager"])
def test_references_of_others_are_changed(jit):
    """A reference that the function takes, or closes over, has afterwards what the function has written."""
    seen = []
    for watched in (lambda f: f, fx.watch):
        given, outside = jax.new_ref(jnp.array(X[0])), jax.new_ref(jnp.array(X[1]))

        def f(reference, x, outside=outside):
            reference[...] = jnp.sqrt(reference[...])
            outside[0] += x[0]
            return jnp.log(x) + outside[...]

        seen.append([*map(_bits, (jit(watched(f))(given, X[2]), given[...], outside[...]))])
        with pytest.raises(fx.NonFinite) if watched is fx.watch else contextlib.nullcontext():
            fx.effects_barrier()
    assert seen[0] == seen[1]


ERRORS = [
    lambda x: (_ for _ in ()).throw(KeyError("mine")),
    lambda x: x @ jnp.ones((7, 7)),
    lambda x: x if x[0] > 0 else -x,
    lambda x: x.no_such_attribute,
    lambda x: fx.print("{} {}", x),
]


@pytest.mark.parametrize("jit", [fx.jit, jax.jit, lambda f: f], ids=["fx.jit", "jax.jit", "eager"])
@pytest.mark.parametrize("f", ERRORS)
def test_errors_are_those_of_the_function(f, jit):
    """Errors that the function raises while it is traced are passed on unchanged."""
    with pytest.raises(Exception) as expected:
        jax.jit(f)(X[0])
    with pytest.raises(type(expected.value)) as caught:
        jit(fx.watch(f))(X[0])
    assert str(caught.value).splitlines()[0] == str(expected.value).splitlines()[0]


# Modules


def _nnx_steps(nnx):
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.first, self.norm = nnx.Linear(3, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)
            self.dropout, self.last = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(4, 1, rngs=rngs)
            self.tied, self.calls = self.first, nnx.Variable(jnp.int32(0))

        def __call__(self, x):
            self.calls[...] += 1
            return self.last(self.dropout(jnp.sqrt(self.norm(self.tied(x)))))

    def forward(model, x):
        return model(x), model

    def train(model, x):
        loss, slopes = nnx.value_and_grad(lambda model: (model(x) ** 2).sum())(model)
        nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(model, nnx.Param), slopes))
        return loss

    def lanes(model, x):
        return nnx.vmap(lambda model, x: model.first(x), in_axes=(None, 0))(model, x)

    return Model, {"forward": forward, "train": train, "lanes": lanes}


@pytest.mark.slow
@pytest.mark.parametrize("jit", ["nnx_jit", "nnx.jit", "eager"])
@pytest.mark.parametrize("name", ["forward", "train", "lanes"])
def test_modules_of_flax(name, jit):
    """States of parameters, statistics and random numbers are those of the function, and shared parts stay shared."""
    nnx = pytest.importorskip("flax.nnx")
    model_type, steps = _nnx_steps(nnx)
    wrap = {"nnx_jit": fx.nnx_jit, "nnx.jit": nnx.jit, "eager": lambda f: f}[jit]
    seen = []
    # By itself a watched function is compiled as `nnx.jit` compiles it.
    for f in ((nnx.jit if jit == "eager" else wrap)(steps[name]), wrap(fx.watch(steps[name]))):
        model = model_type(nnx.Rngs(0))
        outs = [f(model, X) for _ in range(2)]
        if name == "forward":
            assert all(returned is model for _, returned in outs)
            outs = [out for out, _ in outs]
        assert model.tied is model.first
        state = jax.tree.map(jax.random.key_data, nnx.to_pure_dict(nnx.state(model, nnx.RngKey)))
        rest = nnx.to_pure_dict(nnx.state(model, nnx.Not(nnx.RngKey)))
        seen.append([*map(_bits, jax.tree.leaves((outs, state, rest)))])
        _drain()
    assert seen[0] == seen[1]


def _drain():
    with contextlib.suppress(fx.NonFinite):
        fx.effects_barrier()


@pytest.mark.slow
@pytest.mark.parametrize("jit", [fx.filter_jit, lambda f: f], ids=["filter_jit", "eager"])
@pytest.mark.parametrize("name", ["forward", "gradient", "state"])
def test_modules_of_equinox(name, jit):
    """Modules with functions and numbers among their leaves come in and go out as they are."""
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(3, 1, 4, 2, activation=jnp.sqrt, key=jax.random.key(0))
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "lanes", mode="batch")

    def forward(model, x):
        return model, model(x)

    def gradient(model, x):
        return eqx.filter_value_and_grad(lambda model: model(x).sum())(model)

    def normed(norm, state, xs):
        return jax.vmap(norm, axis_name="lanes", in_axes=(0, None), out_axes=(0, None))(xs, state)

    f, args = {
        "forward": (forward, (model, X[2])), "gradient": (gradient, (model, X[2])), "state": (normed, (norm, state, X)),
    }[name]  # fmt: skip
    seen = []
    for g in (fx.filter_jit(f), jit(fx.watch(f))):  # by itself a watched function is compiled, too
        outs = g(*args)
        leaves, structure = jax.tree.flatten(outs)
        seen.append((structure, [_bits(leaf) if eqx.is_array(leaf) else leaf for leaf in leaves]))
        _drain()
    assert seen[0] == seen[1]
