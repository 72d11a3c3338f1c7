"""Equations without effects stay as they are, wherever they may."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

import effects as fx
from effects import lowering


def _show(label, x):
    fx.print(label + " {}", x)
    return x


def test_equations_in_functions_that_are_inlined_keep_their_names():
    """What the pass evaluates in place has the names around it, and the lines of its own."""

    @jax.custom_jvp
    def f(x):
        with jax.named_scope("inner"):
            return _show("inside", jnp.sin(x)) * 2

    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * 2))

    def program(x):
        with jax.named_scope("outer"):
            return jnp.cos(f(x))

    text = fx.jit(program).lower(1.0).as_text(debug_info=True)
    assert "outer/inner/sin" in text and "outer/cos" in text


def _counting_primitive():
    """The primitive x -> x + 1, and a list to which each of its binds adds one."""
    primitive, binds = Primitive("successor"), []
    primitive.def_abstract_eval(lambda x: x)
    mlir.register_lowering(primitive, mlir.lower_fun(lambda x: x + 1, multiple_results=False))
    bind = primitive.bind
    primitive.bind = lambda *args, **params: binds.append(None) or bind(*args, **params)
    return primitive, binds


def test_equations_without_effects_are_not_bound_again(lines):
    """Those among effects, in loops and branches with effects, and in those without."""
    successor_p, binds = _counting_primitive()

    def program(x):
        x = _show("x", successor_p.bind(x))
        x = jax.lax.fori_loop(0, 2, lambda i, x: _show("body", successor_p.bind(x)), successor_p.bind(x))
        return jax.lax.cond(x > 0, successor_p.bind, lambda x: x, x)

    assert lines(fx.jit(program), jnp.float32(0)) == ["x 1.0", "body 3.0", "body 4.0"]
    assert len(binds) == 4


def test_equations_behind_a_rule_that_gives_another_type_are_bound_again(lines):
    """A rule of the user's may return an array of another type than the equation had. What comes behind has that."""
    successor_p, binds = _counting_primitive()
    wide_p = Primitive("wide")
    wide_p.def_effectful_abstract_eval(lambda x: (x, {fx.registered_effects()["print"]}))

    @lowering.register_token_rule(wide_p)
    def _wide_token_rule(ctx, tokens, x):
        return tokens, [jnp.stack([x, x])]

    def program(x):
        return successor_p.bind(wide_p.bind(successor_p.bind(x)))

    assert fx.jit(program)(jnp.float32(0)).tolist() == [2.0, 2.0]
    assert len(binds) == 3


def test_bodies_that_are_evaluated_twice_stay_apart(lines):
    """What a primitive evaluates in place, and more than once, has results of its own each time."""
    twice_p = Primitive("evaluated_twice")
    twice_p.multiple_results = True
    twice_p.def_effectful_abstract_eval(lambda x, body: ([x, x], set(body.effects)))

    @lowering.holds(twice_p)
    def _twice(extra, x, body):
        return [*extra.run(body, [x]), *extra.run(body, [x + 1])]

    def program(x):
        body = jax.make_jaxpr(lambda x: jnp.sin(_show("body", x) * 0) + x * 2)(x)
        return twice_p.bind(x, body=body)

    outs = []
    assert lines(lambda: outs.extend(fx.jit(program)(jnp.float32(1)))) == ["body 1.0", "body 2.0"]
    assert outs == [2.0, 4.0]
