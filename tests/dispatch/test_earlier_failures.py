"""A failure of an earlier call: the thread's next call or barrier raises it, and it is logged if neither comes."""

from __future__ import annotations

import contextlib
import logging
import queue
import subprocess
import sys
import textwrap
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.internals import runtime


class Boom(Exception):
    """What the functions below raise."""


def _raises(x):
    raise Boom(f"of {x}")


@fx.jit
def fails(x):
    fx.callback(_raises, None, x)
    return x


@fx.jit
def works(x):
    fx.print("{}", x)
    return x + 1


def failed():
    """Waits until all failures so far are known; the barrier would raise them."""
    runtime.waiting.for_thread()


def test_next_call_raises(capsys):
    fails(1)
    failed()
    with pytest.raises(fx.EffectError, match="raised Boom") as caught:
        works(1)
    assert "raised by this call of `works`, which was not made" in caught.value.__notes__[-1]
    assert isinstance(caught.value.__cause__, Boom)
    works(2)
    fx.effects_barrier(timeout=60)
    assert capsys.readouterr().out == "2\n"  # the call that raised printed nothing


def test_every_kind_of_call_raises():
    """A function without effects of its own, and what ahead-of-time compilation and export return, are calls too."""
    compiled, exported = works.lower(1).compile(), fx.deserialize(fx.export(works)(1).serialize())
    plain = fx.jit(lambda x: x + 1)
    for call in plain, compiled, exported.call, fx.jit(exported.call):
        fails(1)
        failed()
        with pytest.raises(fx.EffectError, match="raised Boom"):
            call(1)
        call(1)
    fx.effects_barrier(timeout=60)


def test_barrier_alone_raises_with_the_setting():
    with fx.config.override(errors="barrier"):
        fails(1)
        failed()
        works(1)
        with pytest.raises(fx.EffectError, match="raised Boom") as caught:
            fx.effects_barrier(timeout=60)
    assert "which was not made" not in str(getattr(caught.value, "__notes__", ""))


def test_failures_of_one_program_come_together():
    @fx.jit
    def fails_twice(x):
        fx.callback(_raises, None, x)
        fx.callback(_raises, None, x + 1)

    with fx.config.override(after_error="go_on"):
        fails_twice(1)
        failed()
    with pytest.raises(fx.EffectError) as caught:
        works(1)
    assert [str(error.__cause__) for error in caught.value.failures] == ["of 1", "of 2"]
    assert "which was not made" in caught.value.__notes__[-1]


def test_each_call_raises_what_one_program_failed_with():
    """So that a loop which handles each error handles one for each call that failed."""
    with fx.config.override(errors="barrier"):
        for x in 1, 2, 3:
            fails(x)
        failed()
    for x in 1, 2:
        with pytest.raises(fx.EffectError) as caught:
            works(1)
        assert str(caught.value.__cause__) == f"of {x}"
    with pytest.raises(fx.EffectError) as caught:
        fx.effects_barrier(timeout=60)
    assert str(caught.value.__cause__) == "of 3"
    works(1)


def test_call_does_not_raise_what_other_threads_called():
    """Neither of a thread that lives nor of one that has ended: its failures are the barrier's."""
    works(0)
    called, go_on = threading.Event(), threading.Event()

    def call(wait):
        fails(1)
        failed()
        called.set()
        wait and go_on.wait(60)

    for wait in True, False:
        thread = threading.Thread(target=call, args=(wait,))
        thread.start()
        assert called.wait(60)
        called.clear()
        if not wait:
            thread.join()
        works(1)
        go_on.set()
        thread.join()
    with pytest.raises(fx.EffectError) as caught:
        fx.effects_barrier(timeout=60)
    assert len(caught.value.failures) == 2


@pytest.mark.parametrize("order", ["thread", "process"])
def test_threads_raise_their_own(order):
    """With one order for all threads, too, a thread's next call raises what that thread called, and not the call of
    another thread that comes before it."""
    raised = {}
    failed_now, called = threading.Event(), threading.Event()

    def call(name):
        try:
            works(1)
        except fx.EffectError as error:
            raised[name] = str(error.__cause__)

    def run_fails():
        fails(1)
        failed()
        failed_now.set()
        assert called.wait(60)
        call("fails")

    def run_works():
        assert failed_now.wait(60)
        call("works")
        called.set()

    with fx.config.override(order=order):
        threads = [threading.Thread(target=run) for run in (run_fails, run_works)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        fx.effects_barrier(all_threads=True, timeout=60)
    assert raised == {"fails": "of 1"}


def test_nested_call_raises_in_the_function():
    """A function of an effect that calls programs is their caller."""
    seen = []

    def function(x):
        fails(x)
        failed()
        try:
            works(x)
        except fx.EffectError as error:
            seen.append(str(error.__cause__))

    fx.jit(lambda x: fx.callback(function, None, x))(np.float32(3))
    fx.effects_barrier(timeout=60)
    assert seen == ["of 3.0"]


def test_failed_check_is_raised_by_the_next_call():
    fx.jit(lambda x: fx.check(x > 1, "{} is too small", x))(1)
    failed()
    with pytest.raises(fx.CheckError, match="1 is too small"):
        works(1)


def test_loop_of_failing_calls_is_ended_by_a_call():
    """And not by the barrier after it: the first failure is known long before the last call."""
    calls = 0
    with pytest.raises(fx.EffectError, match="raised Boom"):
        for calls in range(1, 20_001):  # noqa: B007 - where it ended is what this is about
            fails(1)
        fx.effects_barrier(timeout=60)
    assert calls < 20_000
    with contextlib.suppress(fx.EffectError):  # of programs that were called meanwhile
        fx.effects_barrier(timeout=60)


# Logs


@pytest.fixture
def logged():
    """Gives the next record of a failure that is logged, when it is."""
    records, handler = queue.SimpleQueue(), logging.Handler(logging.ERROR)
    handler.emit = records.put
    logging.getLogger("effects").addHandler(handler)
    yield lambda: records.get(timeout=60)
    logging.getLogger("effects").removeHandler(handler)
    assert records.empty()


def test_failure_is_logged_with_line_lane_and_token(logged):
    @fx.jit
    def f(x):
        fx.print("{}", x)
        jax.vmap(lambda x: fx.callback(lambda x: 1 // int(x), None, x))(x)

    line = f.__wrapped__.__code__.co_firstlineno + 3
    with fx.config.override(errors="barrier"):
        f(jnp.array([2, 0, 1]))
        record = logged()
        with pytest.raises(fx.EffectError) as caught:
            fx.effects_barrier(timeout=60)
    assert record.name == "effects"
    assert (record.pathname, record.lineno) == (__file__, line)
    assert (record.function, record.lane, record.token) == (f.__qualname__, (1,), caught.value.token)
    called = f"called from {__file__}:{line}"
    place = f"at {__file__}:{line}, {called}, in `{f.__qualname__}`, lane 1, raised ZeroDivisionError"
    assert place in record.getMessage()
    assert isinstance(record.exc_info[1], ZeroDivisionError)


@pytest.mark.slow
def test_each_line_is_logged_once_until_its_failures_are_raised(logged):
    with fx.config.override(errors="barrier"):
        for _ in range(20):
            fails(1)
        assert logged().function == "fails"
        fails(1)
        fx.jit(lambda x: fx.callback(_raises, None, x))(1)
        assert logged().function.endswith("<lambda>")  # another line
        with pytest.raises(fx.EffectError):
            fx.effects_barrier(timeout=60)
        fails(1)
        assert logged().function == "fails"
        with pytest.raises(fx.EffectError):
            fx.effects_barrier(timeout=60)


def test_only_the_first_failure_of_a_program_is_logged(logged):
    @fx.jit
    def f(x):
        fx.callback(_raises, None, x)
        fx.callback(_raises, None, x + 1)

    with fx.config.override(errors="barrier", after_error="go_on"):
        f(1)
        assert "of 1" in str(logged().exc_info[1])
        with pytest.raises(fx.EffectError):
            fx.effects_barrier(timeout=60)


def test_what_the_call_raises_is_not_logged(caplog):
    with pytest.raises(fx.EffectError, match="raised Boom"):
        fx.jit(lambda x: fx.callback(_raises, jax.ShapeDtypeStruct((), "float32"), x))(1.0)
    assert [record for record in caplog.records if record.name == "effects"] == []


def test_handler_that_raises_loses_no_failure():
    called = threading.Event()

    class Handler(logging.Handler):
        def emit(self, record):
            called.set()
            raise OSError("the disk is full")

    logger, handler = logging.getLogger("effects"), Handler()
    logger.addHandler(handler)
    try:
        fails(1)
        assert called.wait(60)
        with pytest.raises(fx.EffectError, match="raised Boom") as caught:
            works(1)
    finally:
        logger.removeHandler(handler)
    assert any("could not be logged: OSError('the disk is full')" in note for note in caught.value.__notes__)


@pytest.mark.slow
def test_failure_is_seen_while_the_script_runs():
    """Without any configuration of logging it is on the standard error, before the script comes to its end."""
    script = """
        import sys
        import effects as fx

        def save(x):
            raise OSError("the disk is full")

        @fx.jit
        def step(x):
            fx.callback(save, None, x)

        step(1)
        print(sys.stdin.readline())  # is sent when the failure has been seen
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "OSError: the disk is full" in line:
                break
        else:
            pytest.fail("the failure was not logged")
        out, _ = process.communicate("seen\n", timeout=120)
    assert out.strip() == "seen"
    assert process.returncode == 1  # no caller was given it


@pytest.mark.slow
def test_end_of_the_process_shows_one_failure_of_each_line():
    script = """
        import effects as fx

        def save(x):
            raise OSError(f"no place for {x}")

        @fx.jit
        def step(x):
            fx.callback(save, None, x)

        with fx.config.override(errors="barrier"):
            for x in range(5):
                step(x)
            fx.jit(lambda x: fx.callback(save, None, x))(9)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120)
    shown = done.stderr.split("effects.EffectError: ")[1:]
    assert ["`step`" in text for text in shown] == [True, False], done.stderr
    assert "And 4 more at this line, the last: OSError('no place for 4')." in shown[0]
    assert done.stderr.count("OSError: no place for 0") == 1
    assert done.returncode == 1
