"""Tokens through every construct: effects come in the order of the program."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive

import effects as fx
from effects import lowering


def _show(label, x):
    fx.print(label + " {}", x)
    return x


def _custom_jvp(x):
    f = jax.custom_jvp(lambda x: _show("primal", x) * 2)
    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * 2))
    return f(x)


def _custom_vjp(x):
    f = jax.custom_vjp(lambda x: _show("primal", x) * 2)
    f.defvjp(lambda x: (_show("forward", x) * 2, None), lambda _, g: (_show("backward", g) * 2,))
    return f(x)


def _custom_vmap(x):
    f = jax.custom_batching.custom_vmap(lambda x: _show("inside", x) * 2)
    f.def_vmap(lambda size, batched, x: (f(x[0]) + x, True))
    return f(x)


def _linear_solve(x):
    return jax.lax.custom_linear_solve(lambda v: v * 2, x, lambda _, b: _show("solving", b) / 2, symmetric=True)


def _root(x):
    def solve(f, y):
        return jax.lax.fori_loop(0, 2, lambda i, y: y - f(_show("at", y)) / 4, y)

    return jax.lax.custom_root(lambda y: y * y - x * 4, x + 1, solve, lambda g, y: y / g(1.0))


def _references(x):
    ref = jax.new_ref(x)

    def body(i, _):
        ref[...] += 1
        _show("ref", ref[...])

    jax.lax.fori_loop(0, 2, body, None)
    return jax.freeze(ref)


def _scan(x, **options):
    carry, ys = jax.lax.scan(lambda c, y: (c + y, _show("y", y) + c), x, jnp.arange(1.0, 4.0), **options)
    return carry + ys.sum()


PROGRAMS = {  # name -> program of a float, the lines for 1.0
    "while": (
        lambda x: jax.lax.while_loop(lambda x: x < 3, lambda x: _show("body", x) + 1, x),
        ["body 1.0", "body 2.0"],
    ),
    "while with effects in its condition": (
        lambda x: jax.lax.while_loop(lambda x: _show("test", x) < 3, lambda x: _show("body", x) + 1, x),
        ["test 1.0", "body 1.0", "test 2.0", "body 2.0", "test 3.0"],
    ),
    "while that never runs": (
        lambda x: jax.lax.while_loop(lambda x: _show("test", x) < 0, lambda x: _show("body", x) + 1, x),
        ["test 1.0"],
    ),
    "while with constants": (
        lambda x: jax.lax.while_loop(lambda c: c < 2 * x, lambda c: _show("body", c + x), x),
        ["body 2.0"],
    ),
    "scan": (_scan, ["y 1.0", "y 2.0", "y 3.0"]),
    "scan reverse": (functools.partial(_scan, reverse=True), ["y 3.0", "y 2.0", "y 1.0"]),
    "scan unrolled": (functools.partial(_scan, unroll=2), ["y 1.0", "y 2.0", "y 3.0"]),
    "scan with constants": (
        lambda x: jax.lax.scan(lambda c, _: (c + _show("x", x), None), x * 2, None, length=2)[0],
        ["x 1.0", "x 1.0"],
    ),
    "cond": (lambda x: jax.lax.cond(x > 0, lambda x: _show("yes", x), lambda x: x, x), ["yes 1.0"]),
    "switch": (
        lambda x: jax.lax.switch(1, [lambda x: x, lambda x: _show("one", _show("first", x)), lambda x: x], x),
        ["first 1.0", "one 1.0"],
    ),
    "jit": (lambda x: jax.jit(lambda x: _show("inside", x))(x), ["inside 1.0"]),
    "remat": (lambda x: jax.checkpoint(lambda x: _show("inside", x))(x), ["inside 1.0"]),
    "grad of remat": (
        lambda x: jax.grad(lambda x: jnp.sin(jax.checkpoint(lambda x: jnp.sin(_show("inside", x)))(x)))(x),
        ["inside 1.0"],
    ),
    "custom_jvp": (_custom_jvp, ["primal 1.0"]),
    "custom_vjp": (_custom_vjp, ["primal 1.0"]),
    "grad of custom_vjp": (jax.grad(_custom_vjp), ["forward 1.0", "backward 1.0"]),
    "custom_vmap": (_custom_vmap, ["inside 1.0"]),
    "custom_linear_solve": (_linear_solve, ["solving 1.0"]),
    "custom_root": (_root, ["at 2.0", "at 2.0"]),
    "grad of custom_root": (jax.grad(_root), ["at 2.0", "at 2.0"]),
    "custom_root in lanes that differ": (
        lambda x: jax.vmap(lambda y: jax.lax.cond(y > x, _root, lambda y: y, y))(x + jnp.arange(2.0)).sum(),
        ["at 3.0", "at 2.75"],
    ),
    "references": (_references, ["ref 2.0", "ref 3.0"]),
    "optimization_barrier": (
        lambda x: _show("after", jax.lax.optimization_barrier(_show("before", x))),
        ["before 1.0", "after 1.0"],
    ),
    "named_call": (lambda x: jax.named_call(lambda x: _show("inside", x), name="f")(x), ["inside 1.0"]),
    "map": (lambda x: jax.lax.map(lambda y: _show("y", y), jnp.arange(2.0)).sum() + x, ["y 0.0", "y 1.0"]),
    "grad of scan": (
        jax.grad(lambda x: jax.lax.scan(lambda c, _: (jnp.sin(_show("c", c)), None), x, None, length=2)[0]),
        ["c 1.0", f"c {float(jnp.sin(jnp.float32(1)))}"],
    ),
    "everything nested": (
        lambda x: jax.lax.scan(
            lambda c, y: (
                jax.lax.cond(y > 0, jax.jit(jax.checkpoint(lambda c: _show("deep", c) + 1)), lambda c: c, c),
                None,
            ),
            x,
            jnp.arange(3.0),
        )[0],
        ["deep 1.0", "deep 2.0"],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_effects_come_in_program_order(lines, name):
    """Effects under every primitive come as often and in the order in which Python would reach them."""
    program, expected = PROGRAMS[name]
    out = []
    shown = lines(lambda: out.append(fx.jit(lambda x: (_show("begin", x), program(x), _show("end", x))[1])(1.0)))
    assert shown == ["begin 1.0", *expected, "end 1.0"]
    silent = []
    lines(lambda: silent.append(jax.jit(lambda x: program(x))(1.0)))
    np.testing.assert_allclose(out[0], silent[0], rtol=1e-6)


STABLEHLO = {  # name -> what carries the token, as text
    "while": r"stablehlo\.while\(.*\) : .*tensor<4xui32>",
    "while with effects in its condition": r"stablehlo\.while\(.*\) : tensor<4xui32>, tensor<i1>",
    "scan": r"stablehlo\.while\(.*\) : .*tensor<4xui32>",
    "scan reverse": r"stablehlo\.while\(.*\) : .*tensor<4xui32>",
    "cond": r'"stablehlo\.case"\(.*(?s:.*)\}\) : \(tensor<i32>\) -> \(?tensor<4xui32>',
    "switch": r'"stablehlo\.case"\(.*(?s:.*)\}\) : \(tensor<i32>\) -> \(?tensor<4xui32>',
    "jit": r"call @.*\(%.*\) : \(tensor<4xui32>.*\) -> \(tensor<4xui32>",
    "remat": r"tensor<4xui32>",
    "custom_vjp": r"tensor<4xui32>",
}


def _closes(text):
    """Whether each record of a program says that it is the last; see the traits in `lowering/effect.py`."""
    return [bool(int(traits) & 2) for traits in re.findall(r"traits = (\d+)", text)]


@pytest.mark.parametrize("name", STABLEHLO)
def test_stablehlo_carries_the_token(name):
    """In the program's text the token goes in and out of every kind of control flow, and nothing else orders it."""
    text = fx.jit(PROGRAMS[name][0]).lower(1.0).as_text()
    assert re.search(STABLEHLO[name], text), text
    assert "func.func public @main(%arg0: tensor<4xui32>" in text
    assert text.count("custom_call @effects_close") == 1
    assert not any(_closes(text))
    assert "!stablehlo.token" not in text


def test_ordered_records_are_chained_in_stablehlo():
    """Each record takes the token that the one before it returned."""
    text = fx.jit(lambda x: (_show("a", x), _show("b", x + 1))).lower(1.0).as_text()
    records = re.findall(r"(%\w+) = stablehlo\.custom_call @effects_record\((%\w+),", text)
    assert _closes(text) == [False, True] and "effects_close" not in text  # the last one says that it is
    assert len(records) == 2 and records[0][1] == "%arg0" and records[1][1] == records[0][0]


def test_unordered_print_takes_no_place_in_the_chain():
    """Unordered records all take the token that came in; what they return is joined for the program's end."""

    def program(x):
        for label in "abc":
            fx.print(label + " {}", x, ordered=False)
            x = x + 1

    text = fx.jit(program).lower(1.0).as_text()
    records = re.findall(r"(%\w+) = stablehlo\.custom_call @effects_record\((%\w+),", text)
    assert len(records) == 3 and len({token for _, token in records}) == 1
    assert text.count("stablehlo.maximum") == 3


def test_equal_unordered_records_are_all_there(lines):
    """Records that are alike in all, from one line of the source, are as many as were written."""

    def show(x):
        fx.print("same {}", x, ordered=False)

    assert lines(fx.jit(lambda x: [show(x) for _ in range(5)] and None), 1) == ["same 1"] * 5


def test_a_function_called_often_stays_one_function():
    """A thousand calls of one jitted function are one function in the program."""
    inner = jax.jit(lambda x: _show("inner", x) + 1)

    def program(x):
        for _ in range(1000):
            x = inner(x)
        return x

    text = fx.jit(program).lower(1.0).as_text()
    assert len(re.findall(r"func\.func private", text)) == 1
    assert text.count("custom_call @effects_record") == 1
    assert text.count("call @") >= 1000


def test_equations_keep_their_source_and_names():
    """What is rewritten keeps the user's line and name stack."""

    def program(x):
        with jax.named_scope("mine"):
            return _show("x", jnp.sin(x))

    text = fx.jit(program).lower(1.0).as_text(debug_info=True)
    assert "mine/sin" in text and "test_tokens.py" in text


def test_domains_of_one_program_are_apart(lines):
    """Effects of different order domains have tokens of their own; each domain keeps its order."""
    from tests.internals import Line, Site, effect_p, take_arguments, where_called

    other = fx.register_effect(fx.Effect("test-other"))

    def say(effect, fmt, x):
        where = where_called()
        values, leaves, tree = take_arguments((x,), {}, "say", where)
        effect_p.bind(*values, site=Site(effect, Line(fmt), leaves, tree, where))

    def program(n):
        def body(i, _):
            fx.print("p {}", i)
            say(other, "o {}", i)

        jax.lax.fori_loop(0, n, body, None)

    shown = lines(fx.jit(program), 5)
    assert [line for line in shown if line[0] == "p"] == [f"p {i}" for i in range(5)]
    assert [line for line in shown if line[0] == "o"] == [f"o {i}" for i in range(5)]
    text = fx.jit(program).lower(1).as_text()
    assert len(re.findall(r"stablehlo\.while\(.*\) : .*tensor<4xui32>, tensor<4xui32>", text)) == 1


def test_program_with_two_domains_does_not_end_with_the_last_record_of_one(lines):
    """The record of another domain may be published after it."""
    from tests.internals import Line, Site, effect_p, take_arguments, where_called

    other = fx.register_effect(fx.Effect("test-other-ends"))

    def program(x):
        slow = jax.lax.fori_loop(0, 10_000, lambda i, y: jnp.sin(y), x)
        fx.print("p {:.2f}", slow)
        where = where_called()
        values, leaves, tree = take_arguments((x,), {}, "say", where)
        effect_p.bind(*values, site=Site(other, Line("o {}"), leaves, tree, where))

    text = fx.jit(program).lower(1.0).as_text()
    assert (text.count("@effects_record"), text.count("@effects_close")) == (2, 1)
    assert sorted(lines(fx.jit(program), 1.0)) == ["o 1.0", "p 0.02"]


def test_register_token_rule_for_a_primitive_of_ones_own(lines):
    """A higher-order primitive of the user's carries tokens once it has a rule."""
    own_p = Primitive("own")
    own_p.multiple_results = True
    own_p.def_effectful_abstract_eval(lambda *avals, body: (list(avals), set(body.effects)))

    def program(x):
        return own_p.bind(x, body=jax.make_jaxpr(lambda x: _show("x", x) + 1)(x))[0]

    with pytest.raises(fx.MissingTokenRule, match="`own`"):
        fx.jit(program)(1)

    @lowering.register_token_rule(own_p)
    def _own_token_rule(ctx, tokens, *args, body):
        assert ctx.primitive is own_p and {e.name for e in ctx.effects} == {"print"}
        tokens, args = ctx.thread(body, tokens, args)
        return ctx.thread(body, tokens, args)

    assert lines(fx.jit(program), 1) == ["x 1", "x 2"]


def test_calls_with_notes_to_the_compiler(lines):
    """A call that carries a note to the compiler keeps it, and tokens go through; each in the versions that have it."""
    from jax.experimental import compute_on, xla_metadata

    def body(x):
        return _show("inside", x) + 1

    call = getattr(compute_on, "compute_on2", compute_on.compute_on)
    programs = [call(body, compute_type="device_host", out_memory_spaces=jax.memory.Space.Device)]
    if (call := getattr(xla_metadata, "xla_metadata_call2", None)) is not None:
        programs.append(call(body, {"note": "mine"}))
    try:
        from jax.experimental.overlap import program_order
    except ImportError:
        pass
    else:
        programs.append(program_order(body, enforce=False))
    for program in programs:
        assert lines(fx.jit(program), 1.0) == ["inside 1.0"]
