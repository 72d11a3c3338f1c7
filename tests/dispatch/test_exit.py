"""The end of a process: what it shows, what it reports as lost, and what Ctrl-C does."""

from __future__ import annotations

import pytest

from tests.helpers import run_python

# A callback that interrupts the main thread as soon as that waits in our exit handler.
INTERRUPTS = """
import os, signal, sys, threading
import jax, jax.numpy as jnp, effects as fx

def is_ending(function="end_drain"):
    frame = sys._current_frames()[threading.main_thread().ident]
    names = []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return function in names and not {"wait", "join"}.isdisjoint(names)

def interrupt(i):
    if i == 0:
        while not is_ending():
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGINT)
        after_interrupt()

def after_interrupt():
    pass

@fx.jit
def f(n):
    def body(i, _):
        fx.callback(interrupt, None, i)
        fx.print("line {}", i)
        fx.log("line", i=i)
    jax.lax.fori_loop(0, n, body, None)
"""


@pytest.mark.slow
def test_interrupt_gives_up_what_is_queued():
    """The first Ctrl-C ends the wait. The process says that it gave up effects; its code is 130."""
    done = run_python(
        f"{INTERRUPTS}\n"
        "def after_interrupt():\n"
        "    while not runtime.drain.discards: os.sched_yield()\n"
        "from tests.internals import runtime\n"
        "f(50)"
    )
    assert done.returncode == 130, done.stderr
    assert done.stdout == ""
    assert "the effects that were left were given up" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_interrupt_does_not_wait_for_what_never_ends():
    """One Ctrl-C suffices for a callback that does not return. What is queued behind it is given up."""
    done = run_python(
        f"{INTERRUPTS}\ndef after_interrupt():\n    threading.Event().wait()\nf(50)",
        timeout=60,
    )
    assert done.returncode == 130, done.stderr
    assert "the effects that were left were given up" in done.stderr, done.stderr
    assert "this had not returned: " in done.stderr and "interrupt" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("patience", [0.2, 0.0])
def test_interrupt_does_not_wait_for_what_a_program_waits_for(patience):
    """So it is for a function for whose results a program waits, in a thread that the end of the process leaves, and
    that may come back from the program late."""
    done = run_python(
        f"{INTERRUPTS}\n"
        "from effects.dispatch.runtime import runtime as ending\n"
        f"ending._PATIENCE = {patience}\n"
        "began = threading.Event()\n"
        "def ask(x):\n    began.set()\n    interrupt(0)\n"
        "def after_interrupt():\n    threading.Event().wait()\n"
        "g = fx.jit(lambda x: fx.callback(ask, jax.ShapeDtypeStruct((), 'float32'), x))\n"
        "threading.Thread(target=g, args=(1.0,), daemon=True).start()\n"
        "began.wait()",
        timeout=60,
    )
    assert done.returncode == 130, done.stderr
    assert "the effects that were left were given up" in done.stderr, done.stderr
    assert "this had not returned: " in done.stderr


@pytest.mark.slow
def test_what_is_waited_for_at_exit_is_said():
    """After a while of waiting, what is waited for is on stderr, once, however long that takes."""
    done = run_python(
        "import effects as fx\n"
        "from effects.dispatch.runtime import runtime as ending\n"
        "ending._QUIET = 0.05\n"
        "import threading, time\n"
        "said, tell = threading.Event(), ending._tell\n"
        "def notes(text):\n"
        "    tell(text); said.set()\n"
        "ending._tell = notes\n"
        "def slow(x): said.wait(60), time.sleep(10 * ending._QUIET)\n"
        "def later(x): print('done')\n"
        "f = fx.jit(lambda x: (fx.callback(slow, None, x), fx.callback(later, None, x)) and x)\n"
        "f(1)"
    )
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr
    lines = [line for line in done.stderr.splitlines() if "is about to end" in line]
    assert len(lines) == 1 and "has waited 0.05 s for effects: the callback `slow`" in lines[0], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("error", ["KeyboardInterrupt", "ValueError"])
def test_every_handler_is_closed_whatever_one_raises(error):
    """Ctrl-C while one handler is closed leaves no other unclosed."""
    done = run_python(
        "import effects as fx\n"
        "class Handler:\n"
        "    def __init__(self, name): self.name = name\n"
        "    def handle(self, record): pass\n"
        "    def close(self):\n"
        "        print('closes', self.name)\n"
        f"        if self.name == 1: raise {error}('closing')\n"
        "for n in range(3): fx.add_handler(Handler(n))\n"
        "fx.jit(lambda x: fx.log('x', x=x))(1)"
    )
    assert done.stdout.splitlines() == ["closes 0", "closes 1", "closes 2"], done.stderr
    assert done.returncode == (130 if error == "KeyboardInterrupt" else 1)
    assert f"{error}: closing" in done.stderr


# Exit handlers that run before ours, after it and before JAX's, and after JAX's.
HANDLERS = """
import atexit, sys
def issues(name):
    def run():
        import jax, effects as fx
        fx.jit(lambda x: fx.print(name + " print {}", x))(1)
        fx.jit(lambda x: fx.callback(lambda x: sys.stdout.write(name + " callback\\n"), None, x))(1)
        fx.print(name + " eager {}", 1)
    return run
atexit.register(issues("last"))
import jax
jax.devices()
atexit.register(issues("between"))
import effects as fx
atexit.register(issues("first"))
fx.jit(lambda x: fx.print("main {}", x))(1)
"""


def test_effects_of_all_exit_handlers_are_shown():
    """Whenever they run: what they call waits for its effects when nothing runs in the background any more."""
    done = run_python(HANDLERS)
    expected = [
        f"{name} {what}" for name in ("first", "between", "last") for what in ("print 1", "callback", "eager 1")
    ]
    assert done.stdout.splitlines() == ["main 1", *expected], done.stderr
    assert done.returncode == 0 and done.stderr == ""


@pytest.mark.slow
def test_exit_handler_that_comes_late_needs_a_barrier_for_programs_of_jax():
    """Programs that plain `jax.jit` dispatches do not wait."""
    done = run_python(
        "import atexit\n"
        "def run():\n"
        "    import jax, effects as fx\n"
        "    jax.block_until_ready(jax.jit(lambda x: (fx.print('late {}', x), x)[1])(1))\n"
        "    fx.effects_barrier()\n"
        "atexit.register(run)\n"
        "import jax\n"
        "import effects as fx\n"
        "fx.jit(lambda x: fx.print('x {}', x))(1)"
    )
    assert done.stdout.splitlines() == ["x 1", "late 1"] and done.returncode == 0, done.stderr


@pytest.mark.slow
def test_what_was_never_done_is_shown_and_said():
    """An asynchronous callback of a program that JAX dispatched: the process waits until its function has returned, and
    for the program that it has called."""
    done = run_python(
        f"{INTERRUPTS}\n"
        "def shown(x):\n"
        "    while not is_ending('_finish'): os.sched_yield()\n"
        "    fx.print('shown {}', x)\n"
        "    slow(x)\n"
        "    return x\n"
        "slow = fx.jit(lambda x: fx.print('last {}', jax.lax.fori_loop(0, 50_000_000, lambda i, x: x + 1, x)))\n"
        "F32 = jax.ShapeDtypeStruct((), jnp.float32)\n"
        "jax.jit(lambda x: (fx.async_callback(shown, F32, x), fx.print('started'))[1])(1.0)\n"
        "fx.effects_barrier()"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "started\nshown 1.0\nlast 16777216.0\n"
    assert (
        "1 asynchronous operation of programs outside `fx.jit` was started and never done, the first at" in done.stderr
    )


@pytest.mark.slow
@pytest.mark.parametrize("order", ["thread", "process"])
@pytest.mark.parametrize("devices", [1, 2])
def test_daemon_thread_that_goes_on_does_not_keep_the_process_from_ending(order, devices):
    """Effects issued before are shown; those that the thread issues while the process ends are dropped at some point. A
    later exit handler may join the thread, which waits for nothing any more."""
    done = run_python(
        "import atexit, faulthandler, itertools, threading\n"
        "faulthandler.dump_traceback_later(80, exit=True)\n"
        "over, progress = threading.Event(), threading.Semaphore(0)\n"
        "def end():\n"
        "    before = issued[-1]\n"
        "    while issued[-1] < before + 2: progress.acquire()\n"
        "    over.set(); thread.join()\n"
        "atexit.register(end)\n"
        "import effects as fx\n"
        "in_program = fx.jit(lambda x: fx.print('program {}', x))\n"
        "issued = []\n"
        "def run():\n"
        "    for i in itertools.count():\n"
        "        fx.print('eager {}', i)\n"
        "        if i % 10 == 0: in_program(i)\n"
        "        if i % 100 == 0: fx.effects_barrier()\n"
        "        issued.append(i); progress.release()\n"
        "        if over.is_set(): break\n"
        "in_program(-1)\n"
        "thread = threading.Thread(target=run, daemon=True)\n"
        "thread.start()\n"
        "for _ in range(300): progress.acquire()\n"
        "in_program(-2)\n",
        env={"EFFECTS_ORDER": order, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"},
        timeout=100,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-3000:]
    shown = [tuple(line.split()) for line in done.stdout.splitlines()]
    eager, programs = ([int(number) for kind, number in shown if kind == which] for which in ("eager", "program"))
    assert eager[:300] == [*range(300)] and eager == sorted(eager)
    assert [number for number in programs if number < 0] == [-1, -2]
    if order == "thread":  # else what the main thread waits for at its very end comes behind what the other has issued
        assert eager == [*range(len(eager))]
