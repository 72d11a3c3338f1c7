"""The supervisor names what waits when nothing moves, and ends programs in a circle."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.forks import run_forked
from tests.helpers import meet_barrier
from tests.internals import runtime
from tests.internals import supervisor as internal_supervisor
from tests.storm.__main__ import main

F32 = jax.ShapeDtypeStruct((), jnp.float32)
LOGGER = logging.getLogger("effects")


@pytest.fixture
def said():
    """An event that is set when something is logged, with all that was."""
    event: Any = threading.Event()
    event.messages = []

    class Listener(logging.Handler):
        def emit(self, record):
            event.messages.append(record.getMessage())
            event.set()

    listener = Listener()
    LOGGER.addHandler(listener)
    yield event
    LOGGER.removeHandler(listener)


@pytest.mark.parametrize("jit", [fx.jit, jax.jit, lambda f: f], ids=["fx.jit", "jax.jit", "eager"])
def test_callback_that_takes_long_by_itself_is_never_ended(jit, said):
    """It is named once, with where it stands, and its program gets its result."""

    def slow(x):
        assert said.wait(60)
        threading.Event().wait(0.5)  # beyond the time after which circles are broken
        return x + 1

    with fx.config.override(stall_seconds=0.1, stall_fail_seconds=0.1):
        assert jit(lambda x: fx.callback(slow, F32, x))(jnp.float32(1)) == 2
    meet_barrier()
    message, *_ = said.messages  # again, if the process was held up
    assert message.startswith("Nothing has moved for 0.") and "slow` at " in message and "said.wait(60)" in message


def test_a_circle_behind_a_slow_callback_waits_for_that(said):
    """A callback waits in a barrier for another's, which takes long: neither program is ended."""
    begun, asked = threading.Event(), threading.Event()

    def slow(x):
        begun.set()
        assert asked.wait(60) and said.wait(60)
        threading.Event().wait(0.5)
        return x

    def waits(x):
        asked.set()
        fx.effects_barrier(all_threads=True)
        return x

    def run():
        slowly(jnp.float32(0))

    slowly, f = fx.jit(lambda x: fx.callback(slow, F32, x)), fx.jit(lambda x: fx.callback(waits, F32, x))
    with fx.config.override(stall_seconds=0.1, stall_fail_seconds=0.1):
        thread = threading.Thread(target=run)
        thread.start()
        assert begun.wait(60)
        assert f(jnp.float32(1)) == 1
        thread.join()
    meet_barrier()
    assert all("was ended" not in message for message in said.messages)


JITTED = SimpleNamespace(f=jax.jit(lambda x: x))
CALLS: dict[str, tuple[Any, bool]] = {  # each of which raises, so that a frame stands there, and whether it may wait
    "a jitted function": (lambda f=JITTED.f: f(object()), True),
    "one that an object has": (lambda: JITTED.f(object()), True),
    "what reads an array": (lambda: memoryview.asarray(), True),  # type: ignore[attr-defined]
    "a method of another kind": (lambda: LOGGER.handle(), False),  # type: ignore[call-arg]
    "native code of others": (lambda: threading.Lock().acquire(1, 2, 3), False),  # type: ignore[call-arg]
    "another line of a function that has one": (lambda: (JITTED.f, threading.Lock().acquire(1, 2, 3)), False),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_that_may_wait_for_jax_are_known_by_what_they_call(name):
    """Those in other calls take long by themselves."""
    call, may_wait = CALLS[name]
    with pytest.raises((TypeError, AttributeError)) as raised:
        call()
    assert internal_supervisor._waits_for_jax(raised.traceback[1].frame.raw) is may_wait


@pytest.mark.slow
def test_healthy_programs_are_not_named():
    """Their callbacks sleep, compute, save and call programs."""
    assert main(["--healthy", "200"]) == 0


def test_what_waits_alike_is_said_once(said):
    """Callbacks at one line, and their programs, are one entry each with their count, and another is one of its own."""
    count, going_on = 6, threading.Event()
    begun = threading.Semaphore(0)

    def wait(x):
        begun.release()
        assert going_on.wait(60)
        return x

    def other(x):
        return wait(x)

    several, one = fx.jit(lambda x: fx.callback(wait, F32, x)), fx.jit(lambda x: fx.callback(other, F32, x))
    going_on.set()
    for f in (several, one):  # compiled once: of several threads that come at one time, one does it
        f(jnp.float32(0))
        assert begun.acquire(timeout=60)
    meet_barrier()
    going_on.clear()
    threads = [threading.Thread(target=f, args=(jnp.float32(0),)) for f in [several] * count + [one]]
    for thread in threads:
        thread.start()
    try:
        for _ in threads:
            assert begun.acquire(timeout=60)
        with pytest.raises(fx.BarrierTimeout) as raised:
            fx.effects_barrier(timeout=0, all_threads=True)
    finally:
        going_on.set()
        for thread in threads:
            thread.join()
    _, _, waits = str(raised.value).partition("This waits:\n")
    begins = [line for line in waits.splitlines() if line.startswith("- ")]
    assert len([line for line in begins if f" (and {count - 1} more like it)" in line]) == 2, waits
    assert len([line for line in begins if line.startswith("- the callback `")]) == 2
    assert len([line for line in begins if line.startswith("- the program `")]) == 2
    assert waits.count("assert going_on.wait(60)") == 2


def test_handler_that_does_not_return_is_named(said):
    """Nothing is replayed meanwhile, not even what would say so in other threads' effects."""

    def handle(record):
        assert said.wait(60)

    token = fx.add_handler(handle)
    try:
        with fx.config.override(stall_seconds=0.1):
            fx.print("x")
            fx.effects_barrier()
    finally:
        fx.remove_handler(token)
    message, *_ = said.messages
    assert "a handler or an output" in message and "assert said.wait(60)" in message


def test_barrier_whose_time_runs_out_says_what_waits():
    """With the stack of the function that runs."""
    goes_on, begun = threading.Event(), threading.Event()

    def slow():
        begun.set()
        assert goes_on.wait(60)

    fx.jit(lambda: fx.callback(slow, None))()
    assert begun.wait(60)
    with pytest.raises(fx.BarrierTimeout, match="slow` at .* has run for") as caught:
        fx.effects_barrier(timeout=0.1)
    goes_on.set()
    assert "assert goes_on.wait(60)" in str(caught.value)
    meet_barrier()


SAYS_AT_THE_END = """
import threading, effects as fx

class Stderr:
    def write(self, text):
        sys.__stdout__.write(text)
        if "is about to end" in text:
            goes_on.set()
    def flush(self):
        sys.__stdout__.flush()

import sys
sys.stderr, goes_on = Stderr(), threading.Event()
fx.jit(lambda: fx.callback(lambda: goes_on.wait(60) and None, None))()
"""


@pytest.mark.slow
def test_end_of_a_process_that_waits_says_what_for():
    """With the stack of the function that it waits for."""
    done = run_forked(SAYS_AT_THE_END)
    assert "The process is about to end and has waited" in done.stdout and "has run for" in done.stdout, done.stdout


@pytest.mark.parametrize("value", ["soon", 0.05, -1, float("nan"), None, True])
@pytest.mark.parametrize("name", ["stall_seconds", "stall_fail_seconds"])
def test_stall_takes_seconds(name, value):
    """A number that is at least a tenth."""
    with pytest.raises(ValueError, match=f"`fx.config.{name}` was given .* at least 0.1"):
        setattr(fx.config, name, value)


def test_no_backend_is_asked_for_while_the_process_ends(monkeypatch):
    """JAX takes its backends down before the threads end. To ask for one then makes another, which ends the process."""
    begun, may_end = threading.Event(), threading.Event()

    def waits(x):
        begun.set()
        may_end.wait()

    fx.jit(lambda x: fx.callback(waits, None, x))(1.0)
    assert begun.wait(60)
    with monkeypatch.context() as no_backend:
        no_backend.setattr(jax._src.xla_bridge, "get_backend", lambda *_: pytest.fail("a backend is asked for"))
        supervisor = runtime.drain.supervisor
        try:
            assert supervisor._what_moves() is not None
            assert "waits` at " in supervisor.waits()
            assert supervisor._find_circle() is None
        finally:
            may_end.set()
    meet_barrier()


def test_waiting_of_the_drains_threads_is_no_computing(monkeypatch):
    """Of what the process has computed, what those threads of the drain have which wait does not count."""
    supervisor = runtime.drain.supervisor
    clocks = {"process": 10.0, "waits": 4.0}
    monkeypatch.setattr(supervisor, "_clocks", {})
    monkeypatch.setattr(supervisor, "_computed", {})
    fake = SimpleNamespace(
        process_time=lambda: clocks["process"],
        pthread_getcpuclockid=lambda thread: "waits",
        clock_gettime=lambda clock: clocks[clock],
    )
    monkeypatch.setattr(internal_supervisor, "time", fake)

    def begin():
        supervisor.add_clock()
        begun.set()
        runtime.drain.wait(lambda: clocks["process"] < 0)

    begun, waits = threading.Event(), threading.Thread(target=begin)
    waits.start()
    try:
        assert begun.wait(60)
        while not internal_supervisor._is_ours(internal_supervisor.frames()[waits.ident]):
            os.sched_yield()
        supervisor._compute_since()
        clocks.update(process=13.0, waits=6.5)
        assert supervisor._compute_since() == 0.5
    finally:
        clocks["process"] = -1.0
        fx.jit(lambda x: fx.callback(lambda x: None, None, x))(1)  # an epoch ends, at which the thread looks
        waits.join(60)
    assert not waits.is_alive()


@pytest.mark.parametrize("place", [jnp.asarray, np.asarray], ids=["array of JAX's", "of NumPy"])
@pytest.mark.parametrize("options", [{}, {"after_error": "go_on", "errors": "barrier"}], ids=str)
@pytest.mark.parametrize("is_first", [False, True], ids=["called before", "called first"])
def test_recursion_that_takes_all_threads_is_ended_at_once(is_first, place, options, said):
    """A callback that calls its own program until no thread of XLA's is left is ended with the whole chain of its
    callers, and goes no deeper: what it calls is refused, whether it was called before or is called after that."""
    depth, begun = 150, []

    def go_down(n):
        begun.append(int(n))
        return f(place(n - 1)) if n else n

    f = fx.jit(lambda n: fx.callback(go_down, jax.ShapeDtypeStruct((), jnp.int32), n))
    if not is_first:
        f(jnp.int32(0))
    with fx.config.override(stall_seconds=0.5, stall_fail_seconds=1, **options):
        with pytest.raises(fx.EffectError) as raised:
            f(jnp.int32(depth))
            fx.effects_barrier(timeout=120)
        with contextlib.suppress(fx.EffectError, ExceptionGroup):  # what the callbacks raised themselves
            fx.effects_barrier(timeout=120)
    assert len(begun) < depth
    causes = [str(raised.value)]
    cause = raised.value
    while (cause := cause.__cause__) is not None:
        causes.append(str(cause))
    assert any("A deadlock" in text for text in causes), causes[-1]
    for message in said.messages:
        lines = message.splitlines()
        assert len([line for line in lines if line.startswith("- the callback")]) <= 2  # the youngest may be elsewhere
        assert all("return f(" in after for line, after in itertools.pairwise(lines) if line.startswith("      File"))
    assert f(jnp.int32(1)) == 0
