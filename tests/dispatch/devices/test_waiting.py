"""Callbacks, collectives and threads that wait for each other, on several devices."""

from __future__ import annotations

import gc
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.dispatch.devices.meshes import by_device, mesh_over, rows_of
from tests.forks import run_forked

P = jax.P
F32, I32 = jnp.float32, jnp.int32


def _asking(calls):
    def asks(x):
        return fx.callback(
            lambda x: (calls.append(np.asarray(x).tolist()), x + 1)[1], jax.ShapeDtypeStruct(x.shape, I32), x
        )

    return asks


def test_callback_is_called_once_or_by_each_device():
    """Once where the program is partitioned for all devices; by each where it is written for one."""
    calls = []
    asks, x = _asking(calls), jnp.arange(4, dtype=I32)
    for f, expected in [
        (asks, [[0, 1, 2, 3]]),
        (by_device(asks), [[0], [1], [2], [3]]),
        (by_device(asks, check_vma=False), [[0], [1], [2], [3]]),
        (jax.pmap(asks), [0, 1, 2, 3]),
    ]:
        sharded = jax.device_put(x, rows_of())
        assert fx.jit(f)(sharded).tolist() == [1, 2, 3, 4]
        assert calls == expected
        calls.clear()


CALLS_FIRST = """
import faulthandler, os, threading
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
faulthandler.dump_traceback_later(200, exit=True)
import jax, jax.numpy as jnp, effects as fx

gate, seen = threading.Event(), []
hold = fx.jit(lambda x: fx.callback(lambda x: (gate.wait(), seen.append("held")), None, x))
hold(1)
first = {
    "a print": fx.jit(lambda x: fx.print("x = {}", x)),
    "a callback without results": fx.jit(lambda x: fx.callback(lambda x: seen.append("called"), None, x)),
    "no effects": fx.jit(lambda x: x + 1),
    "no effects, after others": fx.jit(lambda x, log: fx.print("x = {}", x) if log else x, static_argnums=1),
}
for name, f in first.items():
    f(1) if "after" not in name else (f(2, True), f(2, False))
ahead = fx.jit(lambda x: fx.print("ahead {}", x)).lower(3).compile()
ahead(3)
assert seen == []
gate.set()
fx.effects_barrier()
assert seen == ["held", "called"]
"""


def test_first_calls_wait_for_no_callbacks_of_programs_before():
    """On several devices a program that waits for callbacks goes behind those of programs before it. What a function
    has that is called for the first time is found out by tracing it, not taken to be that: the callback before may wait
    for what its caller does next."""
    done = run_forked(CALLS_FIRST)
    assert (done.returncode, done.stdout) == (0, "x = 1\nx = 2\nahead 3\n"), done.stderr[-3000:]


WATCHED = """
import faulthandler, os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
faulthandler.dump_traceback_later(200, exit=True)
import jax, jax.numpy as jnp, effects as fx
from jax import lax, P
mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
rows = jax.NamedSharding(mesh, P("x"))
talk = jax.shard_map(lambda x: lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())
seen = []

def add(n, x):
    seen.append(int(n))
    return x + 1

@fx.jit
def f(x):
    def turn(n, x):
        y = fx.callback(add, jax.ShapeDtypeStruct((), x.dtype), n, x[0])
        return lax.with_sharding_constraint(x + 1 + 0 * talk(x + y), rows)
    return lax.fori_loop(0, 4, turn, x)

for _ in range(100):
    x = f(jax.device_put(jnp.zeros(8), rows))
assert x.tolist() == [4] * 8, x
assert seen == [0, 1, 2, 3] * 100
print("done")
"""


def test_devices_that_have_an_answer_wait_for_each_other():
    """Hundreds of times: all devices are given one answer, and go on to where each waits for the others."""
    done = run_forked(WATCHED)
    assert done.stdout == "done\n", done.stderr[-2000:]


IN_THREADS = """
import contextlib, faulthandler, io, os, threading
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
faulthandler.dump_traceback_later(200, exit=True)
import jax, effects as fx, numpy as np
from jax import lax, P
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
x = np.zeros(2, np.float32)
if os.environ["ARGUMENTS"] == "devices":
    x = jax.device_put(x, jax.NamedSharding(mesh, P("x")))

def asks(x):
    return x + fx.callback(lambda: np.float32(1), jax.ShapeDtypeStruct((), x.dtype))

def talks(x):
    fx.print("talks")
    return sums(x)

def sums(x):
    return x + lax.psum(x, "x")

bodies = [asks, talks, lambda x: asks(talks(x)), sums]
maps = [jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x")) for body in 2 * bodies]
again = os.environ["CALLS"] == "again"
calls = [120 * [fx.jit(f)] if again else [fx.jit(f) for _ in range(120)] for f in maps]
threads = [threading.Thread(target=lambda fs: [f(x) for f in fs], args=(fs,), daemon=True) for fs in calls]
with contextlib.redirect_stdout(io.StringIO()) as out:
    if again:
        for fs in calls:
            jax.block_until_ready(fs[0](x))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fx.effects_barrier(all_threads=True)
assert out.getvalue() == "talks\\n" * (2 * 2 * 2 * (120 + again))
print("done")
"""


@pytest.mark.parametrize("calls", ["again", "first"])
@pytest.mark.parametrize("arguments", ["host", "devices"])
def test_threads_whose_programs_have_collectives(arguments, calls):
    """Devices get the programs of all threads in one order: else one would wait in a program for another that waits for
    it in the next. So too if every call is the first of its function, and some compile."""
    done = run_forked(IN_THREADS, env={"ARGUMENTS": arguments, "CALLS": calls})
    assert done.stdout == "done\n", done.stderr[-2000:]


UNAWAITED = """
import contextlib, faulthandler, io, os, threading
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["PJRT_NPROC"] = "2"
faulthandler.dump_traceback_later(200, exit=True)
import jax, effects as fx, numpy as np
from jax import lax, P
mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.device_put(np.zeros(2, np.float32), jax.NamedSharding(mesh, P("x")))

def talks(x):
    fx.print("talks")
    return x + lax.psum(x, "x")

def asks(x):
    return x + fx.callback(lambda: np.float32(1), jax.ShapeDtypeStruct((), x.dtype))

def calls(f):
    for _ in range(400):
        f(x)

fs = [fx.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"))) for body in (talks, talks, asks)]
with contextlib.redirect_stdout(io.StringIO()) as out:
    threads = [threading.Thread(target=calls, args=(f,), daemon=True) for f in fs[: int(os.environ["THREADS"])]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fx.effects_barrier(all_threads=True)
assert out.getvalue() == "talks\\n" * (2 * 400 * min(len(threads), 2))
print("done")
"""


@pytest.mark.parametrize("threads", [1, 3])
def test_programs_with_collectives_that_nobody_waits_for(threads):
    """XLA has as many threads here as devices. JAX before 0.12 deadlocks at the 33rd, without effects too."""
    done = run_forked(UNAWAITED, env={"THREADS": str(threads)})
    assert done.stdout == "done\n", done.stderr[-2000:]


DELETED = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, effects as fx, numpy as np
from jax import P
mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
body = lambda x: fx.print("{}", x[0])
f = fx.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P()))
for _ in range(2):
    x = jax.device_put(np.arange(4), jax.NamedSharding(mesh, P("x")))
    for _ in range(50):
        f(x)
    fx.effects_barrier()
    for array in jax.live_arrays():
        array.delete()
"""


def test_tokens_that_the_user_deletes():
    """With all other arrays of JAX's. The next programs get new ones."""
    done = run_forked(DELETED)
    assert (done.stdout, done.returncode) == ("0\n1\n2\n3\n" * 100, 0), done.stderr[-2000:]


def test_function_that_is_traced_waits_for_another_thread():
    """Such as one that has a lock of the user's, and calls a program for the first time."""
    ones = fx.jit(lambda: jnp.ones(3))
    made = []

    @fx.jit
    def f(x):
        other = threading.Thread(target=lambda: made.append(np.asarray(ones())), daemon=True)
        other.start()
        other.join(60)
        return x + made[0].sum()

    assert f(np.float32(1)) == 4


def test_calls_take_the_fast_path_of_jax():
    """Whatever was called in between: what has been called once goes through no Python of JAX's."""
    f = fx.jit(lambda x: x + 1)
    xs = [jnp.zeros(2), jax.device_put(jnp.zeros(2), jax.NamedSharding(mesh_over(0, 1), P("x"))), jnp.zeros(3)]

    def python_of_jax():
        called = []
        sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_filename) if event == "call" else None)
        try:
            for x in xs:
                f(x)
        finally:
            sys.setprofile(None)
        return any("pjit" in name for name in called)

    assert python_of_jax()  # it is traced
    python_of_jax()
    assert not python_of_jax()


def test_order_that_changes_while_a_call_waits(lines):
    """A call that waits for another with `order="process"` still comes, though it compiles after the change."""
    tracing, go = threading.Event(), threading.Event()

    @fx.jit
    def first(x):
        tracing.set()
        assert go.wait(60)
        fx.print("first {}", x)

    second = fx.jit(lambda x: (fx.print("second {}", x), x + 1)[1])
    results = []

    def call():
        with fx.config.override(order="process"):
            threads = [threading.Thread(target=first, args=(1,), daemon=True)]
            threads[0].start()
            assert tracing.wait(60)
            threads.append(threading.Thread(target=lambda: results.append(int(second(2))), daemon=True))
            threads[1].start()
            while (frame := sys._current_frames().get(threads[1].ident)) is not None:  # it waits, or has ended
                if frame.f_code.co_name == "_call":
                    break
        go.set()
        for thread in threads:
            thread.join(60)
        fx.effects_barrier(all_threads=True, timeout=60)

    assert sorted(lines(call)) == ["first 1", "second 2"]
    assert results == [3]


def test_tokens_of_threads_that_are_gone(lines):
    """Their memory, on several devices, is given back."""
    from tests.internals import StreamHost, runtime

    def count():
        gc.collect()
        return sum(type(one) is StreamHost for one in gc.get_objects())

    f = fx.jit(lambda x: fx.print("{}", x[0]))
    x = jax.device_put(jnp.zeros(2), jax.NamedSharding(mesh_over(0, 1), P("x")))
    lines(lambda: f(x))
    before, tokens = len(runtime.streams.all()), count()

    def call():
        for _ in range(5):
            thread = threading.Thread(target=f, args=(x,))
            thread.start()
            thread.join()
        fx.effects_barrier(all_threads=True, timeout=60)
        f(x)  # the drain looks after them while programs run
        assert runtime.drain.wait(lambda: len(runtime.streams.all()) <= before, timeout=60)

    lines(call)
    assert count() <= tokens


def test_threads_in_one_order_whose_programs_wait(lines):
    """With `order="process"` devices get programs in the order of the calls, which is that of their callbacks."""
    prints = fx.jit(lambda x: (fx.print("{}", x[0]), x)[1])
    asks = fx.jit(lambda x: x + fx.callback(lambda: np.float32(1), jax.ShapeDtypeStruct((), F32)))
    x = jax.device_put(jnp.zeros(2), jax.NamedSharding(mesh_over(0, 1), P("x")))

    def call():
        with fx.config.override(order="process"):
            fs = [asks, prints, prints]
            threads = [threading.Thread(target=lambda f=f: [f(x) for _ in range(200)], daemon=True) for f in fs]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)
            assert not any(thread.is_alive() for thread in threads)
            fx.effects_barrier(timeout=60)

    assert lines(call) == ["0.0"] * 400
