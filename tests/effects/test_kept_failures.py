"""Failures that no barrier has asked for: what they keep is bounded, and what is not kept is counted."""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.effects.raising import Boom, good_program_runs
from tests.internals import runtime

LARGE = 1 << 20


@pytest.fixture(autouse=True)
def _kept_until_the_barrier():
    with fx.config.override(errors="barrier"):
        yield


def _fail(times, raises, size):
    """Programs that fail, and nobody asks. Returns references to what their functions got."""
    refs = []

    def function(x):
        refs.append(weakref.ref(x if x.base is None else x.base))
        raises(x)

    f = fx.jit(lambda x: fx.callback(function, None, x))
    x = jnp.zeros(size, jnp.uint8)
    for _ in range(times):
        f(x)
    runtime.waiting.for_thread()
    gc.collect()
    return refs


def _errors():
    with pytest.raises(fx.EffectError) as info:
        fx.effects_barrier(timeout=60)
    return info.value.failures


def _raises_text(x):
    raise Boom("text")


@pytest.mark.slow
def test_what_ends_a_program_may_come_behind_many_failures():
    """The call raises what has stopped the effects, and the barrier the failures before it, of which some are kept."""

    def function():
        raise Boom("last")

    @fx.jit
    def f(x):
        for i in range(150):
            fx.check(x < 0, "check {}", i)
        fx.callback(function, None)
        return fx.callback(lambda x: x, jax.ShapeDtypeStruct((), jnp.float32), x)

    with pytest.raises(fx.EffectError, match="Boom.*last"):
        f(jnp.float32(1)).block_until_ready()
    errors = _errors()
    assert len(errors) == 100 and all(isinstance(error, fx.CheckError) for error in errors)
    assert str(errors[0]).endswith("And 149 more at this line, the last: check 149.")
    good_program_runs()


def test_failure_keeps_no_operand():
    """Frames of its traceback, and of what called these, forget their variables; lines and names stay."""
    refs = _fail(20, _raises_text, LARGE)
    assert [ref() for ref in refs if ref() is not None] == []
    errors = _errors()
    assert len(errors) == 20
    frames = []
    traceback = errors[0].__cause__.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    assert frames == ["function", "_raises_text"]
    good_program_runs()


def _raised(x, text, cause=None):
    """An exception whose traceback has a frame with the operand in it."""
    try:
        raise Boom(text) from cause
    except Boom as error:
        return error


def _with_context(x):
    try:
        raise _raised(x, "inner")
    except Boom:
        raise Boom("outer")  # noqa: B904


def _with_cause(x):
    raise Boom("outer") from _raised(x, "inner")


def _group(x):
    raise ExceptionGroup("outer", [_raised(x, "inner"), _raised(x, "other")])


def _deep_group(x):
    raise Boom("outer") from ExceptionGroup("", [ExceptionGroup("", [_raised(x, "inner", _raised(x, "innermost"))])])


@pytest.mark.parametrize(
    "raises", [_with_context, _with_cause, _group, _deep_group], ids=lambda raises: raises.__name__
)
def test_failure_keeps_no_operand_by_what_it_holds(raises):
    """Frames of causes, contexts and members of groups forget their variables, too; the exceptions stay."""
    refs = _fail(3, raises, LARGE)
    assert [ref() for ref in refs if ref() is not None] == []
    assert ["outer" in str(error.__cause__) for error in _errors()] == [True] * 3


@pytest.mark.parametrize("after_error", ["stop", "go_on"])
def test_number_of_failures_is_bounded_over_all_programs(after_error):
    """The first thousand are kept, and the others counted."""

    def function(x):
        raise Boom(str(int(x)))

    @fx.jit
    def f(x):
        fx.callback(function, None, x)
        fx.print("after")

    with fx.config.override(after_error=after_error):
        for n in range(1100):
            f(np.int32(n))
        runtime.waiting.for_thread()
    assert len(runtime.failures.programs) == 1000
    errors = _errors()
    assert [str(error.__cause__) for error in errors] == [str(n) for n in range(1000)]
    assert errors[0].__notes__[-1].startswith("100 more effects of this thread's programs failed too")
    assert "and were only counted. Call" in errors[0].__notes__[-1]
    assert not runtime.failures
    good_program_runs()


def test_text_of_what_was_raised_is_bounded():
    """A message has the beginning of what was raised only."""

    def raises(x):
        raise Boom("x" * (1 << 20))

    f = fx.jit(lambda x: fx.callback(raises, None, x))
    f(1)
    with pytest.raises(fx.EffectError) as info:
        fx.effects_barrier(timeout=60)
    assert len(str(info.value)) < 10_000 and "characters)" in str(info.value)
