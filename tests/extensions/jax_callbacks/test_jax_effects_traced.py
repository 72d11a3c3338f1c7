"""JAX's own callbacks are effects of ours from when they are traced inside `fx.jit`: where that differs from JAX."""

import logging

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback
from jax.extend.core import Primitive

import effects as fx

pytestmark = pytest.mark.slow

F32 = jax.ShapeDtypeStruct((), jnp.float32)
show = jax.debug.print


def _say(label):
    """A function that prints what it gets."""
    return lambda *values: print(label, *map(float, values))


EFFECTS = {
    "print": lambda label, x: show(label + " {}", x),
    "formatted by a function": lambda label, x: show(label + " {0:}", x),
    "callback": lambda label, x: jax.debug.callback(_say(label), x),
    "io_callback": lambda label, x: io_callback(_say(label), None, x),
    "io_callback with a result": lambda label, x: io_callback(lambda x: (_say(label)(x), x)[1], F32, x),
}
each_effect = pytest.mark.parametrize("do", EFFECTS.values(), ids=EFFECTS)


@each_effect
def test_vmap_is_not_unrolled(do):
    """The program for 2,000 lanes is as long as that for two."""

    def length(lanes):
        return len(fx.jit(jax.vmap(lambda x: do("lane", x))).lower(jnp.zeros(lanes)).as_text().splitlines())

    assert length(2000) == length(2)


def test_results_have_no_derivative():
    """A function's results have no derivative; where none is needed, the program has one."""

    def f(x):
        return jnp.sin(x) * io_callback(lambda x: 2 * x, F32, jax.lax.stop_gradient(x))

    assert fx.jit(jax.grad(f))(jnp.float32(1)) == 2 * jnp.cos(jnp.float32(1))
    with pytest.raises(fx.NotDifferentiable, match=r"derivative .* of the callback"):
        fx.jit(jax.grad(lambda x: io_callback(lambda x: 2 * x, F32, x)))(1.0)
    with fx.config.override(jax_effects="jax"), pytest.raises(ValueError, match="IO callbacks do not support JVP"):
        fx.jit(jax.grad(lambda x: (io_callback(_say(""), None, x), x)[1]))(1.0)


def test_tangents_are_left_out_as_in_jax(lines):
    """What a rule shows of a tangent, which has no value where the function is transposed, is left out as in JAX."""

    @jax.custom_jvp
    def f(x):
        return 2 * x

    @f.defjvp
    def _(primals, tangents):
        show("x {}", *primals)
        show("dx {}", *tangents)
        return f(*primals), 2 * tangents[0]

    assert fx.jit(jax.grad(f))(1.0) == 2
    assert lines(fx.jit(jax.grad(f)), 1.0) == lines(jax.jit(jax.grad(f)), 1.0) == ["x 1.0"]
    assert lines(fx.jit(lambda x: jax.jvp(f, (x,), (x,))), 1.0) == ["x 1.0", "dx 1.0"]


@each_effect
def test_no_order_if_asked(do):
    """With "jax" they have no order and disturb no other."""

    def body(i, x):
        do("a", x)
        fx.print("b {}", i)
        return x

    with fx.config.override(jax_effects="jax"), fx.capture(suppress=True) as records:
        fx.jit(lambda x: jax.lax.fori_loop(0, 20, body, x))(jnp.float32(0))
    assert [record.args[0] for record in records if record.effect == "print"] == list(range(20))
    others = [record for record in records if record.effect != "print"]
    assert len(others) == 20 and not any(record.ordered for record in others)


# JAX's caches, and jaxprs that were traced before


def _library():
    """Functions that JAX caches when they have been traced once, each with a print and a callback: as in a library,
    made once and called from everywhere."""

    def body(x):
        show("x {}", x)
        jax.debug.callback(_say("f"), x)
        return x + 1

    custom_jvp = jax.custom_jvp(lambda x: body(x))
    custom_jvp.defjvp(lambda primals, tangents: (custom_jvp(*primals), tangents[0]))
    custom_vjp = jax.custom_vjp(lambda x: body(x))
    custom_vjp.defvjp(lambda x: (body(x), None), lambda _, g: (g,))
    custom_vmap = jax.custom_batching.custom_vmap(lambda x: body(x))
    custom_vmap.def_vmap(lambda size, batched, x: (jax.lax.map(body, x), True))

    def step(c, _):
        return body(c), None

    def goes_on(x):
        return x < 2

    return {
        "jit": jax.jit(lambda x: body(x)),
        "jit in jit": jax.jit(jax.jit(lambda x: body(x))),
        "scan": lambda x: jax.lax.scan(step, x, length=1)[0],
        "while": lambda x: jax.lax.while_loop(goes_on, body, x),
        "cond": lambda x: jax.lax.cond(x > 0, body, body, x),
        "remat": jax.checkpoint(lambda x: body(x)),
        "custom_jvp": custom_jvp,
        "custom_vjp": custom_vjp,
        "custom_vmap": custom_vmap,
        "eval_shape": lambda x: (jax.eval_shape(body, x), body(x))[1],
    }


@pytest.mark.parametrize("name", _library())
def test_caches_tell_inside_from_outside(name, lines):
    """A function that JAX has traced outside is traced again inside, and the other way round."""
    f = _library()[name]
    inside, outside = fx.jit(lambda x: f(x)), jax.jit(lambda x: f(x))
    x = jnp.float32(1)
    for _ in range(2):
        assert "debug_print" in str(jax.make_jaxpr(lambda x: f(x))(x))
        assert sorted(lines(outside, x)) == ["f 1.0", "x 1.0"]
        assert lines(inside, x) == ["x 1.0", "f 1.0"]
        traced = str(fx.jit(lambda x: f(x)).trace(x).jaxpr)
        assert "debug_print" not in traced and "debug_callback" not in traced
        assert lines(fx.jit(jax.vmap(lambda x: f(x))), x[None]) == ["x 1.0", "f 1.0"]


@pytest.mark.parametrize("name", _library())
def test_jaxprs_of_outside(name, lines):
    """What was traced outside becomes ours where it is evaluated inside, nested functions included."""
    f = _library()[name]
    x = jnp.float32(1)
    jaxpr = jax.make_jaxpr(lambda x: f(x))(x)
    assert "debug_print" in str(jaxpr)
    inside = fx.jit(jax.extend.core.jaxpr_as_fun(jaxpr))
    assert lines(inside, x) == lines(inside, x) == ["x 1.0", "f 1.0"]
    with fx.config.override(jax_effects="jax"):
        assert sorted(lines(fx.jit(lambda x: jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, x)), x)) == [
            "f 1.0",
            "x 1.0",
        ]


def test_transformations_around(lines):
    """Where `vmap` and `grad` are around `fx.jit`, what is inside is ours too. Plain `jax.jit` around it has JAX's."""

    @fx.jit
    def f(x):
        show("x {}", x)
        jax.lax.cond(x > 1, lambda: show("large {}", x), lambda: None)
        io_callback(_say("io"), None, jax.lax.stop_gradient(x))
        return x * x

    assert lines(jax.vmap(f), jnp.arange(3.0)) == [
        *("x 0.0", "x 1.0", "x 2.0", "large 2.0"),
        *("io 0.0", "io 1.0", "io 2.0"),
    ]
    assert lines(jax.grad(f), 2.0) == ["x 2.0", "large 2.0", "io 2.0"]
    assert "debug_print" in str(jax.make_jaxpr(f)(2.0))
    assert sorted(lines(jax.jit(f), 2.0)) == ["io 2.0", "large 2.0", "x 2.0"]
    with jax.disable_jit():
        assert lines(f, 2.0) == ["x 2.0", "large 2.0", "io 2.0"]


# Where JAX stays in charge


def test_primitives_without_a_rule_are_left_to_jax(lines):
    """A library's primitive that no rule describes is lowered by JAX, with JAX's callbacks inside."""
    for shows_effects in (True, False):
        opaque_p = Primitive("opaque")
        opaque_p.multiple_results = True

        @opaque_p.def_effectful_abstract_eval
        def _(*avals, body, shows_effects=shows_effects):
            return body.out_avals, set(body.effects) if shows_effects else set()

        jax.interpreters.mlir.register_lowering(
            opaque_p,
            jax.interpreters.mlir.lower_fun(lambda *args, body: jax.core.eval_jaxpr(body.jaxpr, body.consts, *args)),
        )

        def f(x, opaque_p=opaque_p):
            def inner(x):
                show("a {} {k}", x, k=jnp.ones(2, jnp.int4))
                jax.vmap(lambda x: jax.debug.callback(_say("b"), x))(jnp.stack([x, x + 1]))
                return x + 1

            return opaque_p.bind(x, body=jax.make_jaxpr(jax.jit(inner))(x))[0]

        assert sorted(lines(fx.jit(f), jnp.float32(1))) == ["a 1.0 [1 1]", "b 1.0", "b 2.0"]


def test_log_below_vmap(caplog):
    """`jax.debug.log` has a log record for each lane."""
    with caplog.at_level(logging.INFO, logger="jax._src.debugging"):
        fx.jit(jax.vmap(lambda x: jax.debug.log("lane {}", x)))(jnp.arange(3))
        fx.effects_barrier()
    assert [record.getMessage() for record in caplog.records] == ["lane 0", "lane 1", "lane 2"]
