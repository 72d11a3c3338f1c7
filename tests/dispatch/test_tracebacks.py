"""What a function raises while it is traced comes with the user's frames, as with `jax.jit`."""

from __future__ import annotations

import pickle
import traceback

import jax
import pytest

import effects as fx
from tests.internals import log_failure, runtime

HERE = __file__


@pytest.fixture
def mode(request):
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", request.param)
    yield request.param
    jax.config.update("jax_traceback_filtering", before)


def fail(x):
    fx.print("{}", x)
    raise ValueError("while it is traced")


def inner(jit):
    return jit(lambda x: jax.vmap(jit(fail))(x[None]))


CALLS = {
    "call": lambda jit: jit(fail)(1.0),
    "nested": lambda jit: inner(jit)(jax.numpy.float32(1)),
    "lower": lambda jit: jit(fail).lower(1.0),
    "trace": lambda jit: jit(fail).trace(1.0),
    "eval_shape": lambda jit: jit(fail).eval_shape(1.0),
    "arguments": lambda jit: jit(fail)(object()),
}


@pytest.mark.parametrize("mode", ["quiet_remove_frames", "remove_frames", "tracebackhide", "off"], indirect=True)
@pytest.mark.parametrize("call", CALLS)
def test_tracebacks_are_those_of_jax(call, mode):
    """The frames that are shown are the same as with `jax.jit`: ours are hidden where JAX hides its own."""

    def shown(jit):
        with pytest.raises(Exception) as caught:
            CALLS[call](jit)
        frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
        files = [frame.f_code.co_filename for frame in frames if "__tracebackhide__" not in frame.f_locals]
        names = [frame.f_code.co_name for frame in frames if frame.f_code.co_filename == HERE]
        return type(caught.value), names, [file for file in files if file != HERE]

    error, names, others = shown(fx.jit)
    expected_error, expected_names, expected_others = shown(jax.jit)
    assert (error, names) == (expected_error, expected_names)
    if mode != "off":
        assert others == expected_others


def save(x):
    raise OSError("the disk is full")


@fx.jit
def saves(x):
    fx.callback(save, None, x)


@fx.jit
def awaits(x):
    return fx.callback(save, jax.ShapeDtypeStruct((), "float32"), x)


def call_and_wait():
    saves(1)
    fx.effects_barrier(timeout=60)


def call_again():
    saves(1)
    runtime.waiting.for_thread()
    saves(2)


def call_in_sync():
    with fx.config.override(sync=True):
        saves(1)


RAISING = {
    "barrier": call_and_wait,
    "next call": call_again,
    "sync": call_in_sync,
    "awaited": lambda: awaits(1.0),
    "error_if": lambda: fx.jit(lambda x: fx.error_if(x, x > 0, "{}", x))(1),
    "eagerly": lambda: fx.print("{}"),
    "barrier's argument": lambda: fx.effects_barrier(timeout="long"),
}


@pytest.mark.parametrize("mode", ["quiet_remove_frames", "tracebackhide", "off"], indirect=True)
@pytest.mark.parametrize("call", RAISING)
def test_what_effects_raise_shows_the_users_frames(call, mode):
    """And so does its cause. All frames are there where the user wants to see them."""
    with pytest.raises(Exception) as caught:
        RAISING[call]()
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    shown = {frame.f_code.co_filename for frame in frames if "__tracebackhide__" not in frame.f_locals}
    assert (shown == {HERE}) == (mode != "off")
    if (cause := caught.value.__cause__) is not None:
        assert [frame.f_code.co_name for frame, _ in traceback.walk_tb(cause.__traceback__)] == ["save"]


@pytest.mark.parametrize("call", ["barrier", "next call"])
def test_what_is_raised_later_shows_the_line_of_its_call(call):
    """Below the line that raises it; after that, no stack is kept."""
    with pytest.raises(fx.EffectError) as caught:
        RAISING[call]()
    first = RAISING[call].__code__.co_firstlineno
    raising, called = [(f.f_code.co_name, line) for f, line in traceback.walk_tb(caught.value.__traceback__)][-2:]
    assert called == (RAISING[call].__name__, first + 1) and raising[1] > first + 1
    fx.effects_barrier(all_threads=True, timeout=60)
    assert not any(stream.stacks for stream in runtime.streams.all())
    assert pickle.loads(pickle.dumps(caught.value)).where == caught.value.where


def test_failure_in_a_cell_is_logged_with_its_line(caplog):
    """The log record has the cell as its file."""
    failure = fx.EffectError("failed")
    failure.where = "Cell In[4], line 3"
    log_failure(failure)
    [record] = caplog.records
    assert (record.pathname, record.lineno) == ("Cell In[4]", 3)
