"""The lines of the user's source with which effects are kept: of the effect, and of those that called its function."""

from __future__ import annotations

import pickle
import sys

import jax
import jax.numpy as jnp
import pytest

import effects as fx


def line():
    """The line from which this is called."""
    return sys._getframe(1).f_lineno


def helper(x, lines):
    lines.append(line() + 1)
    fx.check(x < 0, "x = {}", x)


def layer(x, lines):
    lines.append(line() + 1)
    helper(x, lines)
    return x * 2


def callers_of(program, *args):
    with fx.capture(suppress=True) as records:
        program(*args)
        with pytest.raises(fx.CheckError) as failed:
            fx.effects_barrier()
    return records[0].where, failed.value


def test_callers_of_a_helper_are_kept():
    """An error and a record name the helper's line and show the lines that called it, the nearest first."""
    lines = []

    @fx.jit
    def program(x):
        lines.append(line() + 1)
        return layer(x, lines)

    where, failure = callers_of(program, 1.0)
    assert (where.line, *(caller.line for caller in where.callers)) == tuple(reversed(lines))
    assert [caller.function.rpartition(".")[2] for caller in where.callers] == ["layer", "program"]
    assert where == (where.file, where.line, where.function) and str(where) == f"{__file__}:{where.line}"
    called = ", ".join(f"{__file__}:{number}" for number in reversed(lines[:2]))
    assert str(failure).startswith(f"x = 1.0 ({where}, in `helper`, called from {called}")
    assert pickle.loads(pickle.dumps(where)).callers == where.callers


def test_callback_that_raises_shows_callers():
    """So does the error of a callback, in a helper of its own."""

    def save(x):
        raise ValueError("no")

    def helper(x):
        fx.callback(save, None, x)

    @fx.jit
    def program(x):
        helper(x)
        return x

    program(1)
    with pytest.raises(fx.EffectError, match=r"at \S+:\d+, called from \S+:\d+, in `\S+program`, raised"):
        fx.effects_barrier()


@pytest.mark.parametrize(
    ("wrap", "has_program"),
    [
        (lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0], False),
        (lambda f: lambda x: jax.vmap(f)(jnp.stack([x])), True),
        (lambda f: lambda x: jax.grad(f)(x), True),
        (lambda f: lambda x: fx.jit(f)(x), False),
    ],
    ids=["scan", "vmap", "grad", "jit"],
)
def test_callers_end_with_the_function_that_is_traced(wrap, has_program):
    """JAX traces the body of a loop and an inner function once: further out there may be several callers."""
    inner = wrap(lambda x: layer(x, []))

    @fx.jit
    def program(x):
        return inner(x)

    where, _ = callers_of(program, 1.0)
    found = [caller.function.rpartition(".")[2] for caller in where.callers]
    assert found[:2] == ["layer", "<lambda>"] and ("program" in found) == has_program


def test_stack_that_is_deep_is_cut_off():
    """Of a recursive function eight lines are kept."""

    def descend(x, depth):
        if depth:
            return descend(x, depth - 1)
        fx.check(x < 0, "x = {}", x)
        return x

    where, failure = callers_of(fx.jit(lambda x: descend(x, 50)), 1.0)
    assert len(where.callers) == 8 and {caller.function.rpartition(".")[2] for caller in where.callers} == {"descend"}
    assert str(failure).count(__file__) == 9


def test_exported_program_has_callers():
    """Another process has them too, since they travel with the program."""

    def program(x):
        return layer(x, [])

    exported = fx.deserialize(fx.export(program)(1.0).serialize())
    where, _ = callers_of(exported.call, 1.0)
    assert [caller.function.rpartition(".")[2] for caller in where.callers] == ["layer", "program"]
