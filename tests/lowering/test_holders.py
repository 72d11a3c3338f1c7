"""One description of a primitive gives effects inside it their tokens, masks and lanes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching

import effects as fx
from effects import lowering

X = jnp.arange(3)
_names = itertools.count()


def _primitive(**options):
    """A primitive of a user's that runs its body, `times` times."""
    primitive = Primitive(f"mine_{next(_names)}")
    primitive.multiple_results = True

    @primitive.def_effectful_abstract_eval
    def _abstract_eval(*avals, body, times):
        return body.out_avals, set(body.effects)

    def run(*args, body, times):
        for _ in range(times):
            args = jaxpr_as_fun(body)(*args)
        return args

    ad.primitive_jvps[primitive] = lambda primals, tangents, **params: jax.jvp(
        lambda *args: run(*args, **params), primals, tuple(map(ad.instantiate_zeros, tangents))
    )

    def call(fun, times, *args):
        return primitive.bind(*args, body=jax.make_jaxpr(fun)(*args), times=times)

    return primitive, call


def _held():
    """One that is described."""
    primitive, call = _primitive()

    @lowering.holds(primitive)
    def _repeat(extra, *args, body, times):
        for _ in range(times):
            args = extra.run(body, args)
        return args

    return primitive, call


def _step(x):
    fx.print("at {}", x)
    return (x + 1,)


def _twice(call, x):
    return call(_step, 2, x)[0]


PROGRAMS = {
    "straight line": lambda f: f(X[0]),
    "scan": lambda f: jax.lax.scan(lambda c, x: (f(c + x), None), 0, X)[0],
    "while": lambda f: jax.lax.while_loop(lambda x: x < 5, f, 0),
    "cond": lambda f: jax.lax.cond(X[1] > 0, f, lambda x: x, X[1]),
    "nested jit": lambda f: jax.jit(f)(jax.jit(f)(1)),
    "remat": lambda f: jax.checkpoint(f)(1),
    "vmap": lambda f: jax.vmap(f)(X),
    "vmap, nothing mapped": lambda f: jax.vmap(lambda _: f(7))(X),
    "vmap, in_axes=1": lambda f: jax.vmap(lambda row: f(row[0]), in_axes=1)(jnp.arange(6).reshape(2, 3)),
    "vmap of cond, lanes differ": lambda f: jax.vmap(lambda x: jax.lax.cond(x > 0, f, lambda x: x, x))(X),
    "vmap of while, lanes differ": lambda f: jax.vmap(lambda x: jax.lax.while_loop(lambda y: y < 2, f, x))(X),
    "vmap of vmap, lanes differ": lambda f: jax.vmap(
        lambda y: jax.vmap(lambda x: jax.lax.cond(x > y, f, lambda x: x, x))(X)
    )(X),
    "grad": lambda f: jax.grad(lambda x: 1.0 * f(x))(2.0),
    "grad of scan": lambda f: jax.grad(lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, X)[0])(2.0),
    "jacfwd": lambda f: jax.jacfwd(lambda x: jnp.stack([f(x[0]), f(x[1])]))(jnp.arange(2.0)),
    "vmap of grad, lanes differ": lambda f: jax.vmap(jax.grad(lambda x: jax.lax.cond(x > 0, f, lambda x: x, x)))(
        1.0 * X
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_described_primitive_is_as_its_body(lines, name):
    """A primitive with one description has the effects and results that the same calls without it have."""
    _, call = _held()
    program = PROGRAMS[name]
    plain = lines(fx.jit(lambda: program(lambda x: _step(_step(x)[0])[0])))
    held = lines(fx.jit(lambda: program(lambda x: _twice(call, x))))
    assert plain
    if "lanes" in name or "vmap" in name:  # a body runs for all lanes, then the next
        assert sorted(held) == sorted(plain)
    else:
        assert held == plain


def test_bound_with_extra_values():
    """A holder may bind its primitive with what a pass adds: tokens, predicates and lanes are operands like others."""
    primitive, call = _primitive()
    bound = []

    @lowering.holds(primitive)
    def _call(extra, *args, body, times):
        bound.append(len(extra.values))
        return extra.bind(*extra.values, *args, body=extra.rewrite(body), times=times)

    def lowered(*args, body, times):
        assert times == 1
        return jaxpr_as_fun(body)(*args)

    jax.interpreters.mlir.register_lowering(primitive, jax.interpreters.mlir.lower_fun(lowered))
    f = fx.jit(jax.vmap(lambda x: jax.lax.cond(x > 0, lambda x: call(_step, 1, x)[0], lambda x: x, x)))
    with fx.capture() as records:
        np.testing.assert_array_equal(f(X), [0, 2, 3])
    assert [record.text for record in records] == ["at 1", "at 2"]
    assert bound == [1, 0, 1]  # the predicate; lanes, which need no value; the token


def test_own_batching_rule_is_used(lines):
    """A description leaves a user's batching rule in force, but for effects in what is not mapped."""
    primitive, call = _primitive()
    sizes = []

    def batch(args, dims, **params):
        sizes.append(args[0].shape)
        outs = [primitive.bind(x, **params)[0] for x in args[0]]
        return [jnp.stack(outs)], [0]

    batching.primitive_batchers[primitive] = batch

    @lowering.holds(primitive)
    def _repeat(extra, *args, body, times):
        for _ in range(times):
            args = extra.run(body, args)
        return args

    assert lines(fx.jit(jax.vmap(lambda x: _twice(call, x))), X) == ["at 0", "at 1", "at 1", "at 2", "at 2", "at 3"]
    assert sizes == [(3,)]
    assert lines(fx.jit(jax.vmap(lambda _: call(_step, 1, 7)[0])), X) == ["at 7"] * 3


def test_lanes_without_effects():
    """A value that is the same in all lanes stays one value, and others are computed lane by lane."""
    _, call = _held()

    def twice(x):
        return call(lambda x: (x + 1,), 2, x)[0]

    assert fx.jit(jax.vmap(twice))(X).tolist() == [2, 3, 4]
    assert jax.eval_shape(jax.vmap(lambda _: twice(7), out_axes=None), X).shape == ()


def test_primitive_with_a_token_rule_alone_runs_lane_by_lane(lines):
    """Where only some lanes take a branch, what has a token rule and no description runs for one after the other."""
    primitive, call = _primitive()

    @lowering.register_token_rule(primitive)
    def _token_rule(ctx, tokens, *args, body, times):
        for _ in range(times):
            tokens, args = ctx.thread(body, tokens, args)
        return tokens, args

    f = fx.jit(jax.vmap(lambda x: jax.lax.cond(x > 0, lambda x: _twice(call, x), lambda x: x, x)))
    assert lines(f, X) == ["at 1", "at 2", "at 2", "at 3"]
    np.testing.assert_array_equal(f(X), [0, 3, 4])


def test_mask_rule_of_ones_own(lines):
    """A mask rule says how a primitive has effects in some lanes only; it comes before the description."""
    primitive, call = _held()
    predicates = []

    @lowering.register_mask_rule(primitive)
    def _mask_rule(ctx, active, *args, body, times):
        assert ctx.primitive is primitive and "test_holders.py" in ctx.where
        predicates.append(active.shape)
        for _ in range(times):
            args = ctx.mask(body, active, args)
        return args

    f = fx.jit(jax.vmap(lambda x: jax.lax.cond(x > 0, lambda x: _twice(call, x), lambda x: x, x)))
    assert lines(f, X) == ["at 1", "at 2", "at 2", "at 3"]
    assert predicates == [()]


def test_exported_program_in_a_branch_of_some_lanes(lines):
    """An exported program is called for the lanes that take its branch, one after the other."""

    def program(x):
        fx.print("in {}", x)
        fx.print("out {}", 2 * x)
        return 2 * x

    exported = fx.export(program)(jax.ShapeDtypeStruct((), X.dtype))

    @fx.jit
    def f(xs):
        fx.print("begin")
        ys = jax.vmap(lambda x: jax.lax.cond(x > 0, exported.call, lambda x: x, x))(xs)
        fx.print("end")
        return ys

    assert lines(f, X) == ["begin", "in 1", "out 2", "in 2", "out 4", "end"]
    np.testing.assert_array_equal(f(X), [0, 2, 4])


def test_axis_of_tangents_is_not_a_users_axis(lines):
    """`jacfwd` evaluates what is primal once, also where it was imported from JAX before this library; a user's own
    `vmap` of a pushforward has lanes."""

    def f(x):
        fx.print("x = {}", x)
        return x**2

    basis = jnp.eye(2)
    x = jnp.arange(2.0)
    assert lines(fx.jit(jax.jacfwd(f)), x) == ["x = [0. 1.]"]
    pushes = fx.jit(lambda x: jax.vmap(lambda t: jax.jvp(f, (x,), (t,))[1])(basis))
    assert lines(pushes, x) == ["x = [0. 1.]"] * 2


def test_body_is_traced_once(monkeypatch):
    """Whatever a pass sends through a loop, the body is traced once for it: nothing is traced again to reorder it."""
    traced = []
    trace = lowering.tokens._jax.trace_to_jaxpr
    for module in (lowering.tokens, lowering.masks):
        monkeypatch.setattr(
            module._jax, "trace_to_jaxpr", lambda *args, **kwargs: traced.append(1) or trace(*args, **kwargs)
        )

    def f(x, n):
        def step(carry, y):
            fx.print("{} {}", y, n)  # n is a constant of the loop
            return carry + y, None

        return jax.lax.scan(step, x, jnp.arange(3))[0]

    fx.jit(f).lower(0, 1)
    assert len(traced) == 1
