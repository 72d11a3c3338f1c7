"""Errors: three sentences, at the earliest stage that knows, pointing at the user's line."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from effects import lowering
from tests.helpers import run_python


def _here(offset=0):
    frame = inspect.currentframe().f_back
    return f"{__file__}:{frame.f_lineno + offset}"


X = jnp.arange(3.0)

WRONG_FORMATS = {
    "missing": (lambda x: fx.print("{} {}", x), "cannot be filled"),
    "missing name": (lambda x: fx.print("{a}"), "no argument 'a'.*Pass `a=...`"),
    "missing number": (lambda x: fx.print("{} {}", x), "no argument number 2.*Pass the missing argument"),
    "of a shard": (lambda x: fx.print("{index} {}", x), r"A record fills `\{index\}` with `per_shard=True`; elsewhere"),
    "of Python's print": (lambda x: fx.print("{}", x, end=""), "was given `end`, as Python's `print` takes it"),
    "as Python's print": (lambda x: fx.print("x =", x), "to the format, as in `fx.print\\('x = {}', x\\)`"),
    "f-string of a check": (lambda x: fx.check(x.sum() > 0, f"{x}"), "Write `fx.check\\(x > 0, 'x = {}', x\\)`"),
    "unused": (lambda x: fx.print("hi", x), "does not use: number 1.*Add {} to the format"),
    "unused name": (lambda x: fx.print("{}", x, k=x), "does not use: `k`.*Add {k} to the format"),
    "f-string": (lambda x: fx.print(f"{x}"), "holds the text of a traced value.*Write `fx.print"),
    "specification": (lambda x: fx.print("{:d}", x), "Unknown format code 'd'"),
    "unknown specification": (lambda x: fx.print("{:q}", x[0]), "Unknown format code"),
    "braces": (lambda x: fx.print('{"loss": {}}', x), "Write `{{` and `}}` for braces that are text"),
    "syntax": (lambda x: fx.print("{", x), "Single '{'"),
    "attribute": (lambda x: fx.print("{0.nothing}", x), "has no attribute 'nothing'"),
    "conversion": (lambda x: fx.print("{!z}", x), "conversion"),
    "mixed numbering": (lambda x: fx.print("{} {0}", x), "numbering|field"),
    "index": (lambda x: fx.print("{0[7]}", x), "out of bounds"),
}


@pytest.mark.parametrize("name", WRONG_FORMATS)
def test_wrong_format_is_reported_while_tracing(name):
    """What is wrong with a format is said while tracing, with the user's line; a run is not needed."""
    program, text = WRONG_FORMATS[name]
    with pytest.raises(fx.FormatError, match=text) as caught:
        jax.make_jaxpr(program)(X)
    assert f"{__file__}:{inspect.getsourcelines(program)[1]}" in str(caught.value)


def test_f_string_is_found_under_transformations():
    """A tracer in an f-string is recognized whatever the transformation."""
    for transform in (jax.jit, jax.grad, jax.vmap, lambda f: jax.jit(jax.grad(f))):
        with pytest.raises(fx.FormatError, match="traced value"):
            transform(lambda x: (fx.print(f"x = {x}"), x)[1])(jnp.ones(2) if transform is jax.vmap else 1.0)


TEXTS_OF_TRACERS = {
    "print": (lambda x: fx.print("{}", f"x = {x}"), "`fx.print` at .* as argument 1, which holds the text of"),
    "log": (lambda x: fx.log("step", loss=f"{x}"), "`fx.log` at .* as argument 'loss', which holds the text of"),
    "event": (lambda x: fx.log(f"loss {x}"), "`fx.log` at .* as its event, which holds the text of"),
    "callback": (lambda x: fx.callback(print, None, [f"{x}"]), "as argument 1, at \\[0\\], which holds the text of"),
    "check": (lambda x: fx.check(x.sum() > 0, "{a}", a=f"{x}"), "as argument 'a', which holds the text of"),
    "error_if": (lambda x: fx.error_if(x, x > 0, "{}", f"{x}"), "as argument 1, which holds the text of"),
}


@pytest.mark.parametrize("name", TEXTS_OF_TRACERS)
def test_f_string_in_arguments_is_found(name):
    """A traced value that has become text would be shown as such; the message says so at the user's line."""
    program, text = TEXTS_OF_TRACERS[name]
    with pytest.raises(TypeError, match=text) as caught:
        jax.make_jaxpr(program)(X)
    assert f"{__file__}:{inspect.getsourcelines(program)[1]}" in str(caught.value)


def test_callback_in_jaxs_order_of_arguments():
    """`jax.debug.callback` takes a function and its arguments; ours takes the results' types in between."""
    with pytest.raises(
        TypeError, match=r"Write `fx.callback\(len, None, x\)` for a function without results"
    ) as caught:
        fx.jit(lambda x: fx.callback(len, x))(X)
    assert _here(-1) in str(caught.value)
    like = fx.jit(lambda x: fx.callback(lambda x: x + 1, x, x))  # an array may say what a result is like
    assert like(X).tolist() == [1, 2, 3]
    with pytest.raises(TypeError, match="and one argument too few for it"):
        fx.jit(lambda x: fx.callback(lambda x, y: None, x, x))(X)
    with pytest.raises(fx.EffectError) as caught:
        fx.jit(lambda x: fx.callback(lambda *_: None, x, x))(X)
    assert "returned None, and its program expects one array" in str(caught.value)


def test_callback_that_closes_over_a_traced_value():
    """When it runs there is no value: what the function uses of the program, it must be given. What is in a container
    is seen when it runs."""
    with pytest.raises(TypeError, match=r"uses the traced value `x` without being given it"):
        fx.jit(lambda x: fx.callback(lambda: float(x), None))(1.0)

    def program(x):
        state = {"x": x}
        fx.callback(lambda: float(state["x"]), None)

    with pytest.raises(fx.EffectError, match=r"it must be given, as in `fx.callback\(.*<lambda>, None, x\)`"):
        fx.jit(program)(1.0)
        fx.effects_barrier(timeout=60)


def test_event_with_an_unnamed_value():
    with pytest.raises(
        TypeError, match=r"a value behind the event, without a name.*Write, say, `fx.log\('loss', x=x\)`"
    ):
        fx.jit(lambda x: fx.log("loss", x))(1.0)


@pytest.mark.parametrize("call", [lambda: fx.effects_barrier(), lambda: fx.capture().__enter__()])
@pytest.mark.parametrize("transform", [fx.jit, jax.jit, lambda f: fx.jit(jax.vmap(f))])
def test_barrier_and_capture_while_tracing(call, transform):
    """Nothing of the function has happened by then."""

    def program(x):
        fx.print("{}", x)
        call()
        return x

    with pytest.raises(RuntimeError, match="was called while a function is traced. .* Call it around the call"):
        transform(program)(X)
    jax.jit(lambda x: (jax.effects_barrier(), x)[1])(X)  # JAX's own waits for nothing


def test_barrier_under_transformations_outside_of_jit(lines):
    """Effects happen there at once, so that a barrier has something to wait for."""
    assert lines(lambda: jax.vmap(lambda x: (fx.print("{}", x), fx.effects_barrier(), x)[2])(X)) == [
        "0.0",
        "1.0",
        "2.0",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (object(), "of type `object` as argument 1.*str\\(x\\)"),
        ({"k": [1, {2}]}, "of type `set` as argument 1, at \\['k'\\]\\[1\\]"),
        (np.array(["a"]), "an array of numbers or booleans"),
        (len, "builtin_function_or_method"),
    ],
)
def test_argument_that_cannot_be_static(value, text):
    """An argument of a callback that is neither an array nor text, number or None is refused while tracing."""
    with pytest.raises(TypeError, match=text) as caught:
        fx.jit(lambda: fx.callback(print, None, value))()
    assert _here(-1) in str(caught.value)


def test_fmt_that_is_no_string():
    """The value itself in place of the format is a common slip, and is told apart."""
    with pytest.raises(TypeError, match="The format is a string"):
        fx.jit(lambda x: fx.print(x))(1.0)


def test_nothing_printed_is_lost_when_a_later_trace_fails(lines):
    """An error while tracing leaves what was printed before, and the next call works."""
    good, bad = fx.jit(lambda x: fx.print("good {}", x)), fx.jit(lambda x: fx.print("{} {}", x))

    def call():
        good(1)
        with pytest.raises(fx.FormatError):
            bad(2)
        good(3)

    assert lines(call) == ["good 1", "good 3"]


WITHOUT_RULE = {
    "reduce": lambda x: jax.lax.reduce(x, 0.0, lambda a, b: (fx.print("{}", a), a + b)[1], (0,)),
    "composite": lambda x: jax.lax.composite(lambda x: (fx.print("{}", x), x)[1], name="my.op")(x),
}


@pytest.mark.parametrize("name", WITHOUT_RULE)
def test_primitive_without_rule_is_named_with_line_and_remedy(name):
    """An effect where tokens cannot go raises, even if JAX does not show the effect on the equation."""
    with pytest.raises(fx.MissingTokenRule, match=rf"`{name}`.*lowering.holds") as caught:
        fx.jit(WITHOUT_RULE[name])(X)
    assert f"{__file__}:" in str(caught.value)


def test_primitive_without_mask_is_named_with_line_and_remedy():
    """Where some lanes have an effect and others do not, a primitive that cannot tell is refused."""

    inside = jax.lax.composite(lambda x: (fx.print("{}", x), x)[1], name="my.op")
    with pytest.raises(
        fx.MissingTokenRule, match=r"`print` reached the primitive `composite`.*lanes of a `vmap`.*jax.lax.map"
    ) as caught:
        fx.jit(jax.vmap(lambda x: jax.lax.cond(x > 1, lambda x: inside(x), lambda x: x, x)))(X)
    assert f"{__file__}:" in str(caught.value)


@pytest.mark.parametrize("fun", [3, staticmethod(len), classmethod(len), (x for x in ()), lambda: (yield)])
def test_jit_of_what_cannot_be_jitted(fun):
    """What `jax.jit` refuses `fx.jit` refuses at once, in the same words."""
    with pytest.raises(TypeError) as theirs:
        jax.jit(fun)
    with pytest.raises(TypeError, match=re.escape(str(theirs.value))):
        fx.jit(fun)


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True])
def test_barrier_timeout_must_be_a_duration(timeout):
    """A timeout is zero or more seconds."""
    with pytest.raises(ValueError, match="A timeout is a number of seconds"):
        fx.effects_barrier(timeout=timeout)


def test_barrier_unknown_effect_and_scope():
    """A barrier for what does not exist is refused, and says what does."""
    with pytest.raises(ValueError, match="'nothing' is not a registered effect.*known: .*print"):
        fx.effects_barrier(effects=["nothing"])
    with pytest.raises(ValueError, match="scope 'galaxy'"):
        fx.effects_barrier(scope="galaxy")


@pytest.mark.parametrize(
    ("name", "value"),
    [("order", "random"), ("ring_bytes", 10), ("ring_bytes", "many"), ("when_full", "explode"), ("sync", "perhaps")],
)
def test_setting_with_a_wrong_value(name, value):
    """A setting keeps its value when it is given a wrong one."""
    before = getattr(fx.config, name)
    with pytest.raises(ValueError, match=rf"`fx.config.{name}` was given .* It takes"):
        setattr(fx.config, name, value)
    assert getattr(fx.config, name) == before


def test_unknown_setting():
    """A misspelt setting is an error."""
    with pytest.raises(AttributeError, match="no setting 'ordr'"):
        fx.config.ordr = "process"


def test_settings_cannot_be_deleted():
    with pytest.raises(AttributeError, match=r"always has a value.*write `fx.config.sync = "):
        del fx.config.sync
    assert fx.config.sync is False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "value"), [("EFFECTS_ORDER", "x"), ("EFFECTS_RING_BYTES", "1"), ("EFFECTS_SYNC", "perhaps")]
)
def test_wrong_environment_variable_is_named_at_import(variable, value):
    """A wrong environment variable is said at import, by its name."""
    done = run_python("import effects", env={variable: value})
    assert done.returncode != 0
    assert f"The setting `{variable}` in the environment was given '{value}'. It takes" in done.stderr


def test_registered_rule_that_returns_nonsense():
    """A token rule that breaks its contract is told so."""
    from jax.extend.core import Primitive

    broken_p = Primitive("broken")
    broken_p.multiple_results = True
    broken_p.def_effectful_abstract_eval(lambda: ([], {fx.registered_effects()["print"]}))
    lowering.register_token_rule(broken_p)(lambda ctx, tokens: None)
    with pytest.raises(TypeError, match=r"rule for `broken` returned None"):
        fx.jit(lambda: broken_p.bind())()


def _texts():
    """The texts of errors, by module and name."""
    importlib.import_module("jax.experimental.pallas")  # with it what is changed there is imported, in its order
    for info in pkgutil.walk_packages(fx.__path__, "effects."):
        if info.name != "effects.__main__":
            for name, text in vars(importlib.import_module(info.name)).items():
                if name.startswith("MSG_"):
                    yield f"{info.name}.{name}", text


FAILURES = "MSG_CHECK_FAILED", "MSG_ENDED", "MSG_REPLAY", "MSG_CALLBACK", "MSG_RETURNED", "MSG_HANDLER_FAILED"
"""Of the user's own code: they say what it said, and in one short sentence what became of the program."""


def test_every_text_has_three_sentences():
    """What happened, which rule it broke, what to do."""
    texts = {name: text for name, text in _texts() if not name.endswith(FAILURES)}
    assert len(texts) > 100
    for name, text in texts.items():
        plain = re.sub(r"`[^`]*`|\{[^{}]*\}", "x", text)
        sentences = [s for s in re.split(r"[.] (?=[A-Zx])|[.]$", plain) if s.strip()]
        assert len(sentences) >= 3, (name, sentences)
