"""Ctrl-C at any moment: whoever waits is left, nothing stays locked, and nothing is lost."""

from __future__ import annotations

import pytest

from tests.forks import run_forked
from tests.storm.__main__ import main

INTERRUPTED_AT = """
import dis, functools, sys

bytes_of = functools.cache(lambda code: code.co_code)

def interrupted_at(step, act):
    left = step

    def trace(frame, event, _):
        nonlocal left
        frame.f_trace_opcodes = True
        is_step = event == "opcode" and frame.f_lineno is not None and is_about(frame)
        if is_step and bytes_of(frame.f_code)[frame.f_lasti] != dis.opmap["NOP"]:
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    sys._getframe().f_trace_opcodes = True  # early releases of Python 3.12 ask this frame alone
    sys.settrace(trace)
    try:
        act()
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.settrace(None)
    return None
"""
"""Interrupts what `act` does at one step of those frames that `is_about` picks. Returns the interrupt, if it came. No
signal comes at a step that does nothing, for which compiled code has no `except` or `finally`. Nor does one come at a
step without a line, which ends an `except` or a `finally`: the interpreter looks for signals at calls and at jumps back
only."""

AT_EVERY_STEP = """
import faulthandler, io, itertools, sys
faulthandler.dump_traceback_later(200, exit=True)
import effects as fx

class Failed(Exception):
    pass

def fail(x):
    raise Failed(int(x))

prints = fx.jit(lambda x: fx.print("{}", x))
raises = fx.jit(lambda x: fx.callback(fail, None, x))

def barrier(k):
    fx.effects_barrier()

def failing_barrier(k):
    try:
        fx.effects_barrier()
    except fx.EffectError as error:
        told.append(error)

def call(k):
    fx.config.sync = True  # native code makes no such calls
    prints(0)

def is_about(frame):
    name = frame.f_code.co_filename
    if ACT == "call":  # what it waits with is that of a barrier
        return "/dispatch/calling/" in name or name.endswith("/dispatch/runtime/streams.py")
    return name.endswith(("threading.py", "contextlib.py")) or "/dispatch/" in name

def behind(error):
    while error is not None:
        yield error
        yield from [error.__cause__] if error.__cause__ is not None else []
        error = error.__context__

act = globals()[ACT]
for i in (-1, -2):
    act(i)
fx.effects_barrier()
sys.stdout = out = io.StringIO()
expected = []
for step in itertools.count(1):
    told = []
    prints(step)
    if ACT == "failing_barrier":
        raises(step)
    interrupt = interrupted_at(step, lambda: act(0))
    try:
        fx.effects_barrier(timeout=60)
    except fx.EffectError as error:
        told.append(error)
    if ACT == "failing_barrier":
        assert any(isinstance(each, Failed) for error in (*told, interrupt) for each in behind(error)), step
    prints(-step)
    fx.effects_barrier(timeout=60)
    if interrupt is None:
        break
    seen = [line for line in out.getvalue().splitlines() if line != "0"]
    expected += [str(step), str(-step)]
    assert seen == expected, (step, seen[-5:])
sys.stdout = sys.__stdout__
print("done", step > 50)
"""


@pytest.mark.slow
@pytest.mark.parametrize("act", ["barrier", "failing_barrier", "call"])
def test_interrupt_at_every_step(act):
    """A call or a wait that is interrupted at any step of ours leaves nothing locked or open, and loses no other's line
    and no failure."""
    done = run_forked(f"{INTERRUPTED_AT}ACT = {act!r}\n{AT_EVERY_STEP}", timeout=220)
    assert done.stdout.endswith("done True\n"), done.stderr[-3000:]


WHILE_TAKEN = """
import signal, threading
import effects as fx
from effects.dispatch.runtime import background
from effects.dispatch.runtime.runtime import runtime

class Taken(list):
    def extend(self, failures):
        taken = [*failures]
        is_taken.set()
        assert is_awaited.wait(60)
        super().extend(taken)

class Background(background.Background):
    def wait(self, timeout=None):
        if seen:  # the barrier after the one that was interrupted
            is_awaited.set()
        return super().wait(timeout)

def interrupt():
    is_taken.wait(60)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

def fail(x):
    raise ValueError("failed")

seen, is_taken, is_awaited = [], threading.Event(), threading.Event()
runtime.failures.raising, background.Background = Taken(), Background
threading.Thread(target=interrupt).start()
fx.jit(lambda x: fx.callback(fail, None, x))(1)
for _ in range(3):
    try:
        fx.effects_barrier(timeout=60)
    except (KeyboardInterrupt, fx.EffectError) as error:
        seen.append(type(error).__name__)
is_awaited.set()
print(*seen)
"""


def test_failure_that_is_being_taken_when_the_barrier_is_interrupted_is_raised_by_the_next():
    """An interrupt leaves work of ours behind in another thread; the next barrier waits for it."""
    done = run_forked(WHILE_TAKEN, timeout=200)
    assert done.stdout == "KeyboardInterrupt EffectError\n", done.stderr[-3000:]


HANDLER_WAITS = """
import faulthandler, signal, sys
faulthandler.dump_traceback_later(60, exit=True)
import _thread, threading, types
import effects as fx
from effects.dispatch.runtime import background

class Lock:
    def __init__(self):
        self._lock = threading.Lock()
        self.release = self._lock.release

    def acquire(self, **options):
        if "timeout" in options:  # somebody waits for the work to end: the barrier, and then the handler
            waits.append(None)
            if len(waits) == 1:
                signal.raise_signal(signal.SIGUSR1)
            else:
                both_wait.set()
        return self._lock.acquire(**options)

def start_new_thread(run, args):
    return _thread.start_new_thread(lambda: (both_wait.wait(), run()), args)

def fail(x):
    raise ValueError("failed")

def barrier():
    try:
        fx.effects_barrier(timeout=50)
    except fx.EffectError as error:
        seen.append(str(error.__cause__))

seen, waits, both_wait = [], [], threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: barrier())
fx.jit(lambda x: fx.callback(fail, None, x))(1)
background.threading = types.SimpleNamespace(**{**vars(threading), "Lock": Lock})
background._thread = types.SimpleNamespace(start_new_thread=start_new_thread)
barrier()
assert both_wait.is_set()
print(*seen)
"""


def test_handler_of_a_signal_waits_for_what_it_interrupts():
    """A handler may wait for effects where the barrier that it interrupts is about to wait; then both go on."""
    done = run_forked(HANDLER_WAITS, timeout=200)
    assert done.stdout == "failed\n", done.stderr[-3000:]


IN_JAX = """
import io, itertools, sys
import jax.numpy as jnp
import effects as fx

def is_about(frame):
    return frame.f_code.co_filename.endswith("jax/_src/core.py")

def call(prints):
    try:
        prints(1.0)
    except AttributeError as error:  # JAX asks whether a size is a constant, and takes whatever is raised for a no
        raise KeyboardInterrupt from error

sys.stdout = io.StringIO()
for step in itertools.count(1, STRIDE):
    prints = MAKE()
    interrupted = interrupted_at(step, lambda: call(prints))
    assert float(jnp.add(1, 1)) == 2, step
    fx.jit(lambda x: fx.print("after {}", x))(step)
    fx.effects_barrier(timeout=60)
    assert sys.stdout.getvalue().endswith(f"after {step}\\n"), step
    if not interrupted:
        break
print("done", step > 100, file=sys.__stdout__, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "stride"),
    [("lambda: fx.jit(lambda x: fx.print('{}', x * 2))", 41), ("lambda: lambda x: fx.print('{}', x)", 1)],
    ids=["compiles", "eager"],
)
def test_interrupt_leaves_no_trace_of_jax_behind(make, stride):
    """What the thread computes after an interrupt is no part of what JAX was tracing then."""
    done = run_forked(INTERRUPTED_AT + IN_JAX.replace("MAKE", f"({make})").replace("STRIDE", str(stride)), timeout=220)
    assert done.stdout == "done True\n", done.stderr[-3000:]


SECOND = """
import jax
from jax._src import core
import effects as fx
from effects._jax import traces as tracebacks

def interrupted():
    tracebacks.leave_traces = leave
    raise KeyboardInterrupt

leave, tracebacks.leave_traces = tracebacks.leave_traces, interrupted

@tracebacks.for_users
def act():
    core.trace_ctx.set_trace(None)  # as in each operation of JAX's
    raise KeyboardInterrupt

try:
    act()
except KeyboardInterrupt:
    print(float(jax.lax.neg(-2.0)))
"""


def test_second_interrupt_leaves_no_trace_of_jax_behind():
    """One that comes while the thread is taken out of what JAX was tracing."""
    done = run_forked(SECOND)
    assert done.stdout == "2.0\n", done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 4])
def test_storm(devices):
    """Nothing hangs and nothing is lost in a storm of interrupts."""
    assert main(["--interrupts", "700", "--devices", str(devices)]) == 0
