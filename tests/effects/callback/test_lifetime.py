"""What is kept of a callback and its arguments, for how long, and what runs when the process ends."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.forks import run_forked
from tests.helpers import let_go, meet_barrier, run_python

F32 = jax.ShapeDtypeStruct((), jnp.float32)


class _Dies:
    """A function that can be watched."""

    def __call__(self, *args: Any) -> None: ...


def test_arguments_are_not_kept():
    """Once a callback has run, nothing holds its arguments."""
    seen = []
    f = fx.jit(lambda x: fx.callback(lambda x: seen.append(weakref.ref(x)), None, x))
    for size in (10, 1_000_000):
        f(jnp.ones(size))
    meet_barrier()
    assert [ref() for ref in seen] == [None, None]


@pytest.mark.usefixtures("path")
def test_arguments_are_gone_when_the_program_goes_on(gates):
    """What a function was given is kept for no longer than it runs, though its program goes on in the same thread."""
    gate, gone, kept = gates(), threading.Event(), []

    def note(x):
        memory = x.base.obj if isinstance(x.base, memoryview) else x.base
        kept.append(weakref.ref(memory, lambda _: gone.set()))
        return np.float32(0)

    f = fx.jit(lambda x: gate(fx.callback(note, F32, x), is_cheap=True))
    with ThreadPoolExecutor() as threads:
        y = threads.submit(f, jnp.ones(1_000_000))  # the call waits for the program
        was_gone = gone.wait(20)
        gate.open()
        assert was_gone
        assert y.result() == 0


def test_traces_keep_no_function():
    """A function that was traced and not compiled is not kept by any cache."""

    def trace(jit) -> weakref.ref:
        fn = _Dies()
        f = lambda x: fx.callback(fn, None, x)  # noqa: E731
        jax.make_jaxpr(f)(1.0) if jit is None else jit(f).trace(1.0)
        return weakref.ref(fn)

    refs = [trace(jit) for jit in (None, jax.jit, fx.jit) for _ in range(3)]
    gc.collect()
    assert [ref() for ref in refs] == [None] * 9


USES = {  # each gives a program of a function
    "fx.jit": lambda fn: fx.jit(lambda x: fx.callback(fn, None, x)),
    "jax.jit": lambda fn: jax.jit(lambda x: fx.callback(fn, None, x)),
    "async_start": lambda fn: fx.jit(lambda x: fx.async_done(fx.async_start(lambda x: (fn, x)[1], x))),
    "async_callback": lambda fn: fx.jit(
        lambda x: fx.async_done(fx.async_callback(lambda x: (fn, x)[1], jax.typeof(x), x))
    ),
}


@pytest.mark.parametrize("program", USES.values(), ids=USES)
def test_function_goes_with_its_program(program):
    """A function, and what it closes over, is kept by the programs that call it, and by nothing else."""

    def use() -> weakref.ref:
        fn = _Dies()
        jax.block_until_ready(program(fn)(1.0))
        return weakref.ref(fn)

    refs = [use() for _ in range(3)]
    meet_barrier()
    jax.clear_caches()
    let_go(lambda: any(ref() for ref in refs))


def test_function_lives_while_its_program_runs():
    """A program whose function nobody else has any more still calls it."""
    seen = []
    for i in range(5):
        fx.jit(lambda x: fx.callback(lambda x: seen.append(float(x)), None, x))(jnp.float32(i))
        gc.collect()
    meet_barrier()
    assert seen == list(range(5))


@pytest.mark.slow
def test_traces_of_fresh_functions_leave_nothing():
    """Thousands of traces of fresh lambdas: memory comes back."""
    code = (
        "import gc, resource, jax, jax.numpy as jnp, effects as fx\n"
        "def rss():\n"
        "    for line in open('/proc/self/status'):\n"
        "        if line.startswith('VmRSS'): return int(line.split()[1])\n"
        "def trace(n):\n"
        "    for _ in range(n): fx.jit(lambda x: fx.callback(lambda x: None, None, x)).trace(1.0)\n"
        "    gc.collect()\n"
        "trace(500); before = rss()\n"
        "trace(4_000); after = rss()\n"
        "print(before, after)\n"
        "assert after <= 1.1 * before, (before, after)\n"
    )
    done = run_forked(code)
    assert done.returncode == 0, done.stderr


LATER = """
import atexit, faulthandler, sys
import jax  # its own handler comes last

faulthandler.dump_traceback_later(200, exit=True)

def later():
    f(2); fx.effects_barrier()
    for call in (g, lambda x: fx.callback(called, INT, x)):
        try: call(3)
        except Exception as error: sys.stdout.write(f"{str(error)[-65:]}\\n")
    fx.effects_barrier(); sys.stdout.write("the end\\n")

atexit.register(later)
import effects as fx

INT = jax.ShapeDtypeStruct((), "int32")
inner = fx.jit(lambda x: fx.print("inner {}", x))

def called(x): sys.stdout.write(f"called {x}\\n"); return x + 1
def waits(x): inner(x); fx.effects_barrier(); sys.stdout.write("back\\n")

@fx.jit
def f(x):
    fx.callback(waits, None, x)
    fx.log("event", x=x)
    fx.callback(called, None, x)

g = fx.jit(lambda x: fx.callback(called, INT, x))
f(1); g(1)
"""


@pytest.mark.slow
def test_in_a_later_exit_handler():
    """When the drain has ended, a barrier replays what is only recorded, also what a function waits for, inside of it;
    who would wait for results is told."""
    done = run_python(LATER, timeout=100)
    assert done.returncode == 0, done.stderr
    refused = "or register the exit handler that does after importing `effects`."
    first, second = ([f"inner {x}", "back", f"INFO     event x={x} <string>:26", f"called {x}"] for x in (1, 2))
    assert done.stdout.splitlines() == [*first, "called 1", *second, refused, refused, "the end"]


@pytest.mark.parametrize("jit", [fx.jit, jax.jit], ids=["fx.jit", "jax.jit"])
def test_without_native_code(jit, lines):
    """On a platform without native handlers the same comes out through JAX's callbacks."""

    def body(i, c):
        fx.callback(lambda i: print("queued", i), None, i)
        c = fx.callback(lambda c: (print("sync", c), c + np.float32(1))[1], F32, c)
        fx.print("print {}", c)
        return c

    with fx.config.override(native=False):
        shown = lines(jit(lambda n: jax.lax.fori_loop(0, n, body, jnp.float32(0))), 3)
    assert shown == [line for i in range(3) for line in (f"queued {i}", f"sync {float(i)}", f"print {float(i + 1)}")]
