"""Logs of kernels that have too little room."""

from __future__ import annotations

import warnings

import jax
import pytest
from jax.experimental import pallas as pl

import effects as fx
from effects import _jax
from tests.extensions.kernels.test_logs import BLOCKS, X, logged
from tests.helpers import meet_barrier

pytestmark = pytest.mark.slow


def call(kernel, x, capacity=None, **options):
    """Calls a kernel in the simulation, with a result like its operand."""
    return fx.pallas_call(kernel, x, interpret=True, log_capacity=capacity, **options)(x)


def test_overflow_is_counted_and_said():
    """What does not fit is dropped from the first such effect of its program on. The warning says how many, of which
    kernel, and how much room they need."""

    def kernel(x_ref, o_ref):
        def body(n, _):
            fx.print("{} {}", pl.program_id(0), n)

        jax.lax.fori_loop(0, 2 + 3 * pl.program_id(0), body, None)
        o_ref[...] = x_ref[...]

    @fx.jit
    def f(x):
        return call(kernel, x, 10, **BLOCKS)

    with pytest.warns(RuntimeWarning) as said:
        _, records = logged(f, X)
    assert [text for text, *_ in records] == ["0 0", "0 1", "1 0", "1 1", "1 2"]
    assert "2 effects of the kernel `kernel`" in str(said[0].message)
    assert "10 words" in str(said[0].message)
    assert "needed 15" in str(said[0].message)
    assert "`fx.pallas_call(..., log_capacity=15)`" in str(said[0].message)


def test_overflow_of_a_plain_pallas_call(lines):
    """The log of a kernel of JAX's own `pl.pallas_call` has 256 words. The warning says how to call it, and the next
    call of the function has room for all."""

    def kernel(x_ref, o_ref):
        jax.lax.fori_loop(0, 150, lambda n, _: fx.print("{}", n), None)
        o_ref[...] = x_ref[...]

    @fx.jit
    def f(x):
        return pl.pallas_call(kernel, x, interpret=True)(x)

    with _jax.with_kernel_options(logs_simulated=True):
        with pytest.warns(RuntimeWarning, match=r"22 effects .* 256 words .*`fx.pallas_call\(..., log_capacity=300\)`"):
            assert lines(f, X) == [*map(str, range(128))]
        assert lines(f, X) == [*map(str, range(150))]


def test_a_log_that_is_full_to_the_last_word():
    """The last effect that fits is there whole and is not counted as dropped, and those behind it are written over
    none."""

    def kernel(x_ref, o_ref):
        jax.lax.fori_loop(0, 2 + 2 * pl.program_id(0), lambda n, _: fx.print("{} {}", pl.program_id(0), n), None)
        o_ref[...] = x_ref[...]

    @fx.jit
    def f(x):
        return call(kernel, x, 6, **BLOCKS)

    with pytest.warns(RuntimeWarning, match="^2 effects of the kernel"):
        _, records = logged(f, X)
    assert [text for text, *_ in records] == ["0 0", "0 1", "1 0", "1 1"]


def test_a_log_grows(lines):
    """A function of `fx.jit` is traced again at the call after the overflow, wherever the kernel is in it, and others
    are not."""

    def kernel(x_ref, o_ref):
        def body(n, _):
            fx.print("{}", n)

        jax.lax.fori_loop(0, 20, body, None)
        o_ref[...] = x_ref[...]

    traced = []

    @fx.jit
    def f(x):
        traced.append("f")
        return jax.lax.scan(lambda c, _: (call(kernel, c, 16), None), x, None, length=2)[0]

    @fx.jit
    def other(x):
        traced.append("other")
        fx.print("other")
        return x

    with _jax.with_kernel_options(logs_simulated=True):
        other(X)
        with pytest.warns(RuntimeWarning, match="12 effects of the kernel"):
            assert lines(f, X) == [*map(str, range(8))] * 2
        for _ in range(3):
            assert lines(f, X) == [*map(str, range(20))] * 2
            other(X)
        meet_barrier()
    assert traced == ["other", "f", "f"]


def test_overflow_where_warnings_are_errors():
    """It is raised at the barrier, and the effects that are there are carried out all the same."""

    def kernel(x_ref, o_ref):
        fx.print("one {}", x_ref[0])
        fx.print("two {}", x_ref[1])
        o_ref[...] = x_ref[...]

    @fx.jit
    def f(x):
        return call(kernel, x, 3)

    with _jax.with_kernel_options(logs_simulated=True), warnings.catch_warnings():
        warnings.simplefilter("error")
        with fx.capture(suppress=True) as records:
            f(X)
            with pytest.raises(fx.EffectError, match="1 effects of the kernel `kernel`"):
                meet_barrier()
    assert [r.text for r in records] == ["one 0.0"]
