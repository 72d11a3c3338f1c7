"""What a user writes of a traced value in the wrong place: the error is ours, at the user's line, and says the edit."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx


def _in_partial(x):
    fx.callback(functools.partial(print, x), None)


def _in_method(x):
    class Model:
        def show(self):
            print(x)

    fx.callback(Model().show, None)


MISTAKES = {
    "f-string with a specification": (lambda x: fx.print(f"{x:.2f}"), r"Write `fx.print\('x = \{:.2f\}', x\)`"),
    "in a check": (lambda x: fx.check(x > 0, f"{x:>8}"), r"Write `fx.print\('x = \{:>8\}', x\)`"),
    "in a log": (lambda x: fx.log("step", x=f"{x:.2e}"), r"An f-string is filled while tracing"),
    "f-string": (lambda x: fx.print(f"{x}"), r"Write `fx.print\('x = \{\}', x\)`"),
    "check without a message": (lambda x: fx.check(x > 0), r"no message.*Write `fx.check\(x > 0, 'x = \{\}', x\)`"),
    "error_if without a message": (lambda x: fx.error_if(x, x > 0), r"no message.*Write `fx.error_if\(x, x <= 0"),
    "callback": (lambda x: fx.callback(lambda: print(x), None), r"traced value `x`.*Pass it"),
    "nested function": (lambda x: fx.callback(lambda: [x + i for i in range(2)], None), r"traced value `x`.*Pass it"),
    "default": (lambda x: fx.callback(lambda y=x: print(y), None), r"traced value `y`.*Pass it"),
    "named default": (lambda x: fx.callback(lambda *, y=x: print(y), None), r"traced value `y`.*Pass it"),
    "partial": (_in_partial, r"traced value `x`.*Pass it"),
    "method": (_in_method, r"traced value `x`.*Pass it"),
    "with results": (
        lambda x: fx.callback(lambda: np.float32(x), jax.ShapeDtypeStruct((), "float32")),
        r"traced value `x`.*Pass it",
    ),
}


@pytest.mark.parametrize("transform", [lambda f: f, jax.vmap], ids=["plain", "vmap"])
@pytest.mark.parametrize("jit", [fx.jit, jax.jit], ids=["fx.jit", "jax.jit"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_with_traced_values(mistake, jit, transform):
    """Three short sentences: what happened at this line, the rule, and the edit."""
    f, said = MISTAKES[mistake]
    with pytest.raises((TypeError, ValueError), match=rf"test_traced_text\.py:\d+.*{said}") as raised:
        jit(transform(lambda x: f(x) and None))(jnp.ones(2) if transform is jax.vmap else 1.0)
    text = re.sub(r"`[^`]*`|\w+\.py|'[^']*'", "", str(raised.value))
    assert text.partition(" See docs")[0].count(". ") == 2


def test_shape_of_a_traced_value_has_a_variable_of_its_own():
    """A function may use what is known while tracing, and not the value that it is known of."""
    seen = []

    def f(x, takes_value):
        shape = x.shape
        fx.callback((lambda: seen.append(x.shape)) if takes_value else (lambda: seen.append(shape)), None)

    with pytest.raises(TypeError, match=r"`x` without being given it.*of its shape alone, make a variable outside"):
        fx.jit(f, static_argnums=1)(jnp.ones((2, 3)), True)
    fx.jit(f, static_argnums=1)(jnp.ones((2, 3)), False)
    fx.effects_barrier(timeout=120)
    assert seen == [(2, 3)]


def test_text_elsewhere_is_pythons_error():
    """A function that does not use the library has the error that it has without."""
    names = {}
    exec("def f(x): return f'{x:.2f}'", names)
    with pytest.raises(TypeError, match="unsupported format string"):
        jax.jit(names["f"])(1.0)


PARAMETERS = {"w": jnp.array([[1.0, -3.0], [0.0, jnp.nan]]), "layers": [jnp.ones(3), jnp.float32(2)], "n": 5}


@pytest.mark.parametrize("jit", [fx.jit, jax.jit, lambda f: f], ids=["fx.jit", "jax.jit", "eager"])
def test_stats_of_a_pytree_are_a_line_for_each_leaf(jit):
    """Parameters and gradients as a whole: a line for each leaf, with its path ahead."""
    arrays = {name: PARAMETERS[name] for name in ("w", "layers")}
    with fx.capture(suppress=True) as records:
        jit(lambda arrays: fx.print("{:stats}\n{p[layers]:stats}", {**arrays, "n": 5}, p=arrays))(arrays)
        fx.effects_barrier(timeout=120)
    assert records[0].text.splitlines() == [
        "layers.0: min=1 max=1 mean=1 norm=1.732 zeros=0.0% nonfinite=0.0%",
        "layers.1: min=2 max=2 mean=2 norm=2 zeros=0.0% nonfinite=0.0%",
        "n: min=5 max=5 mean=5 norm=5 zeros=0.0% nonfinite=0.0%",
        "w: min=-3 max=1 mean=-0.6667 norm=3.162 zeros=25.0% nonfinite=25.0%",
        "0: min=1 max=1 mean=1 norm=1.732 zeros=0.0% nonfinite=0.0%",
        "1: min=2 max=2 mean=2 norm=2 zeros=0.0% nonfinite=0.0%",
    ]


def test_stats_of_text_are_refused():
    with pytest.raises(fx.FormatError, match="cannot be filled"):
        fx.print("{:stats}", {"name": "text"})
