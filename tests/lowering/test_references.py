"""Mutable references beside effects: reads and writes keep their order relative to prints of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.state import discharge as state

import effects as fx

FLOAT = jax.ShapeDtypeStruct((), "float32")


def _straight(r, n):
    fx.print("a {}", r[...])
    r[...] += n
    fx.print("b {} {}", r, r[...])
    r[...] *= 2
    fx.print("c {}", r[...])


def _fori(r, n):
    def body(i, _):
        fx.print("{} {}", i, r[...])
        r[...] += 1
        fx.print("after {}", r[...])

    jax.lax.fori_loop(0, n, body, None)
    fx.print("end {}", r[...])


def _scan(r, n):
    def body(carry, x):
        fx.print("{}", r[...])
        r[...] += x
        return carry, fx.callback(lambda x: x, FLOAT, r)

    _, ys = jax.lax.scan(body, None, jnp.arange(3.0), reverse=True)
    fx.print("{}", ys)


def _while(r, n):
    def condition(i):
        fx.print("condition {} {}", i, r[...])
        return r[...] < 3

    def body(i):
        r[...] += 1
        fx.print("body {}", r[...])
        return i + 1

    fx.print("{}", jax.lax.while_loop(condition, body, 0))


def _while_with_a_quiet_condition(r, n):
    def body(i):
        fx.print("body {} {}", i, r[...])
        r[...] += 1
        return i + 1

    fx.print("{} {}", jax.lax.while_loop(lambda i: r[...] < 3, body, 0), r[...])


def _while_with_other_constants(r, n):
    other = jax.new_ref(10.0)

    def condition(i):
        fx.print("condition {}", other[...])
        return (r[...] < 3) & (i < n)

    def body(i):
        r[...] += 1
        other[...] -= r[...]
        fx.print("body {} {}", r[...], n)
        return i + 1

    jax.lax.while_loop(condition, body, 0)


def _cond(r, n):
    def yes():
        fx.print("yes {}", r[...])
        r[...] += 1
        fx.print("yes {}", r[...])

    def no():
        r[...] -= 1
        fx.print("no {}", r[...])

    for taken in (True, False):
        jax.lax.cond((n > 0) == taken, yes, no)
        fx.print("after {}", r[...])
    jax.lax.switch(n, [yes, no, lambda: None])


def _called(r, n):
    @jax.jit
    def called(r):
        fx.print("called {}", r[...])
        r[...] += 1

    for _ in range(3):
        called(r)
        fx.print("{}", r[...])


def _callbacks(r, n):
    for _ in range(2):
        r[...] = fx.callback(lambda x: np.float32(x + 1), FLOAT, r)
        fx.callback(lambda x: None, None, r)
        fx.print("{}", r[...])


def _own(r, n):
    own = jax.new_ref(jnp.zeros(3))

    def body(i, _):
        own[i] = own[i] + r[...] + i
        fx.print("{} {}", own[i], own[...])

    jax.lax.fori_loop(0, 3, body, None)
    r[...] = own[1]
    fx.print("{} {}", jax.freeze(own), r[...])


PROGRAMS = [
    _straight, _fori, _scan, _while, _while_with_a_quiet_condition, _while_with_other_constants, _cond, _called,
    _callbacks, _own,
]  # fmt: skip
"""Functions of a reference and a number."""


def _by_hand(program, value, lines):
    """What the program prints when Python runs it, and what it leaves."""

    with jax.disable_jit():
        ref = jax.new_ref(jnp.float32(value))
        shown = lines(program, ref, 2)
        return shown, float(ref[...])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_prints_stand_between_reads_and_writes(lines, program):
    """A reference passed to a program, made in one, or closed over: what is printed is what it held just then."""
    expected, left = _by_hand(program, 1.0, lines)
    assert len(expected) >= 2

    ref = jax.new_ref(jnp.float32(1))
    jitted = fx.jit(program)
    assert lines(jitted, ref, 2) == expected
    assert float(ref[...]) == left

    closed = jax.new_ref(jnp.float32(1))
    assert lines(fx.jit(lambda n: program(closed, n)), 2) == expected
    assert float(closed[...]) == left

    def makes_one(x):
        inside = jax.new_ref(x)
        program(inside, jnp.int32(2))
        return inside[...]

    left_inside = []
    assert lines(lambda: left_inside.append(fx.jit(makes_one)(jnp.float32(1)))) == expected
    assert float(left_inside[0]) == left


def test_programs_share_a_reference(lines):
    """What one call leaves the next one finds, also between jitted calls, Python and compiled programs."""
    add = fx.jit(lambda r, x: (fx.print("before {}", r[...]), r.__setitem__(..., r[...] + x), fx.print("{}", r))[0])
    ref = jax.new_ref(jnp.float32(0))
    compiled = add.lower(ref, 1.0).compile()

    def calls():
        add(ref, 1.0)
        compiled(ref, 2.0)
        ref[...] = ref[...] * 10
        fx.print("python {}", ref)
        add(ref, 3.0)

    assert lines(calls) == ["before 0.0", "1.0", "before 1.0", "3.0", "python 30.0", "before 30.0", "33.0"]


def test_reference_under_grad_vmap_and_remat(lines):
    """Transformations of functions with references of their own."""

    def f(x):
        ref = jax.new_ref(x)
        ref[...] = ref[...] ** 2
        fx.print("squared {}", ref[...])
        return 3 * jax.checkpoint(lambda y: (fx.print("inside {}", y), jnp.sin(y))[1])(ref[...])

    assert lines(fx.jit(f), 2.0) == ["squared 4.0", "inside 4.0"]
    assert lines(fx.jit(jax.grad(f)), 2.0) == ["squared 4.0", "inside 4.0"]
    assert lines(fx.jit(jax.vmap(f)), jnp.arange(2.0)) == ["squared 0.0", "squared 1.0", "inside 0.0", "inside 1.0"]


def _run_state(body, x):
    """`run_state`, which JAX has no public name for."""
    return state.run_state(body)(x)


def test_run_state_writes_to_a_reference_of_the_enclosing_function(lines):
    """What becomes of the reference there is what follows finds."""

    def f(x):
        outer = jax.new_ref(x)

        def body(inner):
            outer[...] *= 2
            inner[...] += outer[...]
            fx.print("{} {}", inner, outer)

        y = _run_state(body, x)
        fx.print("{} {}", y, outer)
        return y + outer[...]

    results = []
    assert lines(lambda: results.append(fx.jit(f)(3.0))) == ["9.0 6.0", "9.0 6.0"]
    assert results == [15]


def test_vmap_of_run_state(lines):
    """With effects the lanes have their own values; without, JAX decides: it has no rule for values that differ."""

    def f(x, shows):
        def body(ref):
            ref[...] *= 2
            if shows:
                fx.print("{}", ref)

        return _run_state(body, x)

    xs, results = jnp.arange(2.0), []
    assert lines(lambda: results.append(fx.jit(jax.vmap(lambda x: f(x, True)))(xs))) == ["0.0", "2.0"]
    assert lines(lambda: results.append(jax.vmap(lambda x: f(x, True), in_axes=None, axis_size=2)(1.0))) == ["2.0"] * 2
    assert [result.tolist() for result in results] == [[0, 2], [2, 2]]
    assert jax.vmap(lambda _: f(3.0, False))(xs).tolist() == [6, 6]
    with pytest.raises(NotImplementedError, match="Batching rule for 'run_state' not implemented"):
        jax.vmap(lambda x: f(x, False))(xs)
