"""The order of effects inside of calls: lanes, derivatives, errors, nested and interrupted calls."""

from __future__ import annotations

import contextlib
import contextvars
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.dispatch.programs import count_lines


def test_unordered_effects_do_not_disturb_ordered_ones(lines):
    """Unordered lines come all, at some time; ordered ones keep their order."""

    @fx.jit
    def program(n):
        def body(i, _):
            fx.print("ordered {}", i)
            fx.print("unordered {}", i, ordered=False)

        jax.lax.fori_loop(0, n, body, None)

    shown = lines(program, 100)
    assert [line for line in shown if line.startswith("ordered")] == [f"ordered {i}" for i in range(100)]
    assert sorted(line for line in shown if line.startswith("un")) == sorted(f"unordered {i}" for i in range(100))


def test_vmap_prints_lane_by_lane(lines):
    """Under `vmap` an effect is one record with lanes, replayed lane by lane; nested, the outer lanes go first."""
    f = jax.vmap(jax.vmap(lambda x, y: fx.print("{} {y}", x, y=y), in_axes=(0, None)))
    args = jnp.arange(4).reshape(2, 2), jnp.array([10, 20])
    expected = ["0 10", "1 10", "2 20", "3 20"]
    before = fx.stats()["published"]
    assert lines(fx.jit(f), *args) == expected
    assert fx.stats()["published"] - before <= 2  # the record, and the program's end
    assert lines(f, *args) == expected


class _BadRepr(Exception):
    def __repr__(self):
        raise RuntimeError("no repr")


@pytest.mark.parametrize("length", [0, 2])
@pytest.mark.parametrize("form", ["grad", "checkpoint", "checkpoint-inside", "linearize", "vmap"])
def test_effects_stay_in_differentiated_loop(form, length, lines):
    """What is the same in every iteration of a loop is not done once, ahead of it, when the loop is differentiated."""

    one = jnp.ones(())

    def body(carry, turn):
        fx.print("same")
        jax.lax.cond(one > 5, lambda: None, lambda: fx.print("same in a branch"))
        fx.print("turn {}", turn)
        return carry * 2, None

    def loop(x, body=body):
        return jax.lax.scan(body, x, jnp.arange(length))[0]

    forms = {
        "grad": jax.grad(loop),
        "checkpoint": jax.grad(jax.checkpoint(loop)),
        "checkpoint-inside": jax.grad(lambda x: loop(x, jax.checkpoint(body))),
        "linearize": lambda x: jax.linearize(loop, x)[1](1.0),
        "vmap": lambda x: jax.vmap(jax.grad(loop))(jnp.stack([x, x])),
    }
    lanes = 2 if form == "vmap" else 1
    expected = [line for turn in range(length) for line in ("same", "same in a branch", f"turn {turn}")]
    assert lines(fx.jit(forms[form]), 1.0) == [line for line in expected for _ in range(lanes)]


def test_error_that_cannot_be_shown_stops_nothing(lines):
    """Whatever writing raises, the drain goes on, and the barrier raises it."""

    class Broken(io.StringIO):
        def write(self, text):
            raise _BadRepr

    program = count_lines("line")
    with contextlib.redirect_stdout(Broken()):
        program(1)
    with pytest.raises(fx.EffectError, match="_BadRepr"):
        fx.effects_barrier(timeout=60)
    assert lines(program, 1) == ["line 0"]


def test_sync_waits_at_the_outermost_call_only(lines):
    """With `sync`, a call inside of a callback of another program returns without waiting for that program."""
    inner = fx.jit(lambda x: (fx.print("inner {}", x), x)[1])

    def host(x):
        return np.asarray(inner(x))

    @fx.jit
    def outer(x):
        y = jax.pure_callback(host, jax.ShapeDtypeStruct((), jnp.float32), x)
        fx.print("outer {}", y)

    def call():
        with fx.config.override(sync=True):
            outer(jnp.float32(1))

    assert sorted(lines(call)) == ["inner 1.0", "outer 1.0"]


def test_contexts_with_values_that_do_not_compare(lines):
    """What context variables hold makes no difference: arrays, and values that are equal and not the same."""
    variable = contextvars.ContextVar("variable")
    program = fx.jit(lambda x: fx.print("{}", x))

    def call():
        for value in (np.arange(3), np.arange(3), 1, True):
            variable.set(value)
            program(1)

    assert lines(lambda: contextvars.copy_context().run(call)) == ["1"] * 4


def _turns(x):
    """A loop of two iterations, with effects in its condition too."""

    def asks(state):
        fx.print("ask {}", state[0])
        return state[0] < 2

    def turn(state):
        fx.print("turn {}", state[0])
        return state[0] + 1, 3 * state[1]

    return jax.lax.while_loop(asks, turn, (0, x))[1]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "checkpoint"])
@pytest.mark.parametrize(
    "derivative",
    [
        lambda f, x: jax.linearize(f, x)[1](1.0),
        lambda f, x: jax.jvp(f, (x,), (1.0,))[1],
        lambda f, x: jax.jacfwd(f)(x),
    ],
    ids=["linearize", "jvp", "jacfwd"],
)
def test_while_that_is_differentiated_has_its_effects_once(lines, wrap, derivative):
    """JAX runs a loop that is linearized once more for the tangents; that is not seen."""
    slopes = []
    program = fx.jit(lambda x: derivative(wrap(_turns), x))
    assert lines(lambda: slopes.append(program(1.0))) == ["ask 0", "turn 0", "ask 1", "turn 1", "ask 2"]
    assert slopes == [9]


def _counts(grows):
    """A loop whose iterations a callback counts."""
    calls = []

    def count(i):
        calls.append(int(i))
        return i + 1

    def turn(state):
        return fx.callback(count, jax.ShapeDtypeStruct((), jnp.int32), state[0]), state[1] * grows

    def f(x):
        return jax.lax.while_loop(lambda state: state[0] < 2, turn, (0, x))[1]

    return f, calls


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit, fx.jit], ids=["eager", "jax.jit", "fx.jit"])
@pytest.mark.parametrize("wrap", [lambda f: f, fx.jit, jax.checkpoint], ids=["plain", "jit", "checkpoint"])
def test_callback_whose_results_a_linearized_while_needs(jit, wrap):
    """It would be called again, so it is refused."""
    f, _ = _counts(2)
    with pytest.raises(fx.NotDifferentiable, match=r"in a `while` loop that is linearized.*`jax.jvp`"):
        jit(lambda x: jax.linearize(wrap(f), x)[1](1.0))(1.0)


@pytest.mark.parametrize("wrap", [lambda f: f, fx.jit, jax.checkpoint], ids=["plain", "jit", "checkpoint"])
@pytest.mark.parametrize("has_aux", [False, True])
def test_callback_whose_results_only_a_linearized_while_itself_needs(wrap, has_aux):
    """Where the tangents do not need the loop again it is dropped, and the callback is called once in an iteration."""
    f, calls = _counts(1)

    def value(x):
        counted = wrap(f)(jax.lax.stop_gradient(x))
        return (2 * x, counted) if has_aux else 2 * x + counted

    out, back, *_ = jax.vjp(value, 1.0, has_aux=has_aux)
    assert (out, back(1.0)) == (2 if has_aux else 3, (2,))
    assert calls == [0, 1]


@pytest.mark.parametrize("jit", [lambda f: f, fx.jit], ids=["eager", "fx.jit"])
@pytest.mark.parametrize("differentiate", [jax.grad, lambda f: lambda x: jax.linearize(f, x)[1](1.0)])
def test_callback_in_a_while_without_tangents_in_a_checkpoint(jit, differentiate):
    """The results of the loop are kept, as those of a callback outside of a loop are, and it runs once."""
    f, calls = _counts(3)
    slope = differentiate(jax.checkpoint(lambda x: x * f(jax.lax.stop_gradient(x))))
    assert (jit(slope)(1.0), calls) == (9, [0, 1])
