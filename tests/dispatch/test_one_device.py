"""On one device a program's runtime token lies in memory that is written anew for a later program."""

from tests.forks import run_forked

PRELUDE = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"
import contextlib, io
import jax, jax.numpy as jnp, effects as fx

def lines(f):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        f()
        fx.effects_barrier(timeout=60)
    return out.getvalue().splitlines()
"""


def _run(code):
    done = run_forked(PRELUDE + code)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "done\n"


def test_tokens_of_queued_programs_are_their_own():
    """Programs that are called long before they run, small ones that run at once between them."""
    _run("""
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


def test_user_may_delete_all_arrays():
    """Tokens are among the arrays that live, and the user may delete these, while programs run too."""
    _run("""
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


def test_calls_that_fail_go_on():
    """Where the call itself raises, and where its program does, the next ones are as always."""
    _run("""
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
