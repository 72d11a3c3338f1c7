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

    f = fx.jit(lambda x: gate(fx.callback(note, jax.ShapeDtypeStruct((), jnp.float32), x), is_cheap=True))
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


@pytest.mark.parametrize("jit", [fx.jit, jax.jit])
def test_function_goes_with_its_program(jit):
    """A function is kept by the programs that call it, and by nothing else."""

    def use() -> weakref.ref:
        fn = _Dies()
        f = jit(lambda x: fx.callback(fn, None, x))
        f(1.0)
        return weakref.ref(fn)

    refs = [use() for _ in range(3)]
    meet_barrier()
    jax.clear_caches()
    let_go(lambda: any(ref() for ref in refs))


@pytest.mark.parametrize("start", [fx.async_start, lambda fn, x: fx.async_callback(fn, jax.typeof(x), x)])
def test_asynchronous_function_goes_with_its_program(start):
    """When a program is dropped, nothing keeps its asynchronous functions nor what they close over."""

    def use() -> weakref.ref:
        y = jnp.ones(3)
        fx.jit(lambda x: fx.async_done(start(lambda x: x + y, x)))(jnp.ones(3)).block_until_ready()
        return weakref.ref(y)

    refs = [use() for _ in range(3)]
    meet_barrier()
    let_go(lambda: any(ref() is not None for ref in refs))


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


@pytest.mark.slow
def test_callback_that_waits_in_a_later_exit_handler():
    """There is no other thread any more: what a function waits for is replayed inside of it."""
    code = (
        "import atexit, faulthandler, sys, jax, jax.numpy as jnp\n"
        "faulthandler.dump_traceback_later(200, exit=True)\n"
        "def later(): f(2); fx.effects_barrier(); sys.stdout.write('the end\\n')\n"
        "atexit.register(later)\n"
        "import effects as fx\n"
        "inner = fx.jit(lambda x: fx.print('inner {}', x))\n"
        "def called(x): inner(x); fx.effects_barrier(); sys.stdout.write('back\\n')\n"
        "@fx.jit\n"
        "def f(x):\n"
        "    fx.callback(called, None, x)\n"
        "    fx.print('after {}', x)\n"
        "f(1)\n"
    )
    done = run_python(code, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["inner 1", "back", "after 1", "inner 2", "back", "after 2", "the end", ""]


@pytest.mark.slow
def test_in_a_later_exit_handler():
    """When the drain has ended, a barrier replays what is only recorded; who would wait for results is told."""
    code = (
        "import atexit, logging, sys, jax, jax.numpy as jnp, numpy as np\n"  # JAX's own handler comes last
        "def later():\n"
        "    f(2); fx.effects_barrier()\n"
        "    for call in (g, lambda x: fx.callback(called, F, x)):\n"
        "        try: call(3)\n"
        "        except Exception as error: sys.stdout.write(str(error)[-65:] + '\\n')\n"
        "    fx.effects_barrier(); sys.stdout.write('the end\\n')\n"
        "atexit.register(later)\n"
        "import effects as fx\n"
        "log = logging.getLogger('effects')\n"
        "log.setLevel(logging.INFO); log.addHandler(logging.StreamHandler(sys.stdout))\n"
        "F = jax.ShapeDtypeStruct((), jnp.int32)\n"
        "def called(x): sys.stdout.write(f'called {x}\\n'); return x + 1\n"
        "@fx.jit\n"
        "def f(x):\n"
        "    fx.print('{}', jnp.ones(2))\n"
        "    fx.log('event', x=x)\n"
        "    fx.callback(called, None, x)\n"
        "g = fx.jit(lambda x: fx.callback(called, F, x))\n"
        "f(1); g(1)\n"
    )
    done = run_python(code, timeout=100)
    assert done.returncode == 0, done.stderr
    refused = "or register the exit handler that does after importing `effects`."
    expected = ["[1. 1.]", "event x=1", "called 1", "called 1", "[1. 1.]", "event x=2", "called 2"]
    assert done.stdout.splitlines() == [*expected, refused, refused, "the end"]


@pytest.mark.slow
def test_without_native_code():
    """On a platform without native handlers the same comes out through JAX's callbacks."""
    code = (
        "import jax, jax.numpy as jnp, numpy as np, effects as fx\n"
        "F = jax.ShapeDtypeStruct((), jnp.float32)\n"
        "def body(i, c):\n"
        "    fx.callback(lambda i: print('queued', i), None, i)\n"
        "    c = fx.callback(lambda c: (print('sync', c), c + np.float32(1))[1], F, c)\n"
        "    fx.print('print {}', c)\n"
        "    return c\n"
        "f = lambda n: jax.lax.fori_loop(0, n, body, jnp.float32(0))\n"
        "assert fx.jit(f)(3) == 3\n"
        "fx.effects_barrier(); print('-')\n"
        "assert jax.jit(f)(3) == 3\n"
        "fx.effects_barrier()\n"
    )
    done = run_python(code, env={"EFFECTS_NATIVE": "0"})
    assert done.returncode == 0, done.stderr
    once = [line for i in range(3) for line in (f"queued {i}", f"sync {float(i)}", f"print {float(i + 1)}")]
    assert done.stdout.splitlines() == [*once, "-", *once]
