"""A program's runtime token lies on its device, and is a later program's when this one is over."""

import pytest

from tests.forks import run_forked

PRELUDE = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=%s"
import contextlib, io
import jax, jax.numpy as jnp, effects as fx

def lines(f):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        f()
        fx.effects_barrier(timeout=60)
    return out.getvalue().splitlines()
"""


@pytest.fixture(params=[1, 3])
def run(request):
    return lambda code: _run(request.param, code)


def _run(devices, code):
    done = run_forked(PRELUDE % devices + code)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "done\n"


def test_tokens_of_queued_programs_are_their_own(run):
    """Programs that are called long before they run, small ones that run at once between them."""
    run("""
x = jnp.ones((200, 200))

@fx.jit
def large(k):
    y = jax.lax.fori_loop(0, 5, lambda i, y: x @ y / 200, x + k)
    fx.print("{} {:.1f}", k, y[0, 0] - k)
    return y[0, 0]

@fx.jit
def small(k):
    fx.print("{}", k)

def calls():
    for k in range(100):
        large(3 * k)
        small(3 * k + 1)
        small(large(3 * k + 2).astype(int) * 0 + 3 * k + 2)

seen = [int(line.split()[0]) for line in lines(calls)]
assert seen == [3 * k + i for k in range(100) for i in (0, 1, 2, 2)], seen
print("done")
""")


def test_user_may_delete_all_arrays(run):
    """Tokens are among the arrays that live, and the user may delete these, while programs run too."""
    run("""
f = fx.jit(lambda k: (fx.print("{}", k), jnp.ones((100, 100)) @ jnp.ones((100, 100)))[0])

def calls():
    for k in range(60):
        f(k)
        if k % 7 == 0:
            jax.effects_barrier()
            for array in jax.live_arrays():
                array.delete()

assert lines(calls) == [str(k) for k in range(60)]
print("done")
""")


def test_calls_that_fail_go_on(run):
    """Where the call itself raises, and where its program does, the next ones are as always."""
    run("""
f = fx.jit(lambda x: fx.print("{}", x))
g = fx.jit(lambda x: fx.error_if(x, x > 1, "too large"))

def calls():
    for k in range(20):
        f(k)
        try:
            f(object())
        except TypeError:
            pass
        try:
            g(jnp.float32(k))
        except fx.EffectError:
            f(-k)
        with jax.transfer_guard("disallow"):
            f(jax.device_put(k))

expected = [line for k in range(20) for line in ([k] + [-k] * (k > 1) + [k])]
assert lines(calls) == [str(k) for k in expected], lines(calls)
print("done")
""")


def test_tokens_are_made_once(run):
    """Whatever the arguments say of the device, and with unordered effects, whose tokens are joined."""
    run("""
import threading
from effects._jax import Placing

device = jax.devices()[-1]
f = fx.jit(lambda *args: (fx.print("{}", len(args)), fx.print("loose", ordered=False), fx.print("end")))
here, there = jnp.float32(2), jax.device_put(3, device)
calls = [(), (1,), (here,), (there,), (here, there, 4), ({"a": here},)]

def call():
    for args in calls:
        f(*args)
        fx.effects_barrier()

def call_in_thread():  # which has no tokens yet
    thread = threading.Thread(target=lambda: [call() for _ in range(20)])
    thread.start()
    thread.join()

made, place = [], Placing.place
Placing.place = lambda *args: made.append(args) or place(*args)
seen = lines(call_in_thread)
assert [x for x in seen if x != "loose"] == ["0", "end", *["1", "end"] * 3, "3", "end", "1", "end"] * 20, seen
assert seen.count("loose") == 20 * len(calls)
assert 1 <= len(made) < 8, made  # several where a call comes before it is known that the one before is over
print("done")
""")
