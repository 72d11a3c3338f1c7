"""Forked children: only the thread that forked goes on there, so what they print would be lost."""

from __future__ import annotations

import sys

import pytest

from tests.helpers import run_python

pytestmark = pytest.mark.skipif(not hasattr(sys.modules["os"], "fork"), reason="processes cannot be forked here")

# What a child does, and what becomes of it. It ends without Python's exit, at which JAX crashes in a forked child.
FORK = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")  # JAX warns of forks
import jax
import effects as fx

prints = fx.jit(lambda x: fx.print("x {}", x))
asks = fx.jit(lambda x: fx.callback(lambda x: x, jax.ShapeDtypeStruct((), "int32"), x))
plain = jax.jit(lambda x: (fx.print("plain {}", x), x + 1)[1])
if STARTED:
    prints(1), asks(1), plain(1), fx.effects_barrier()

def use():
    USE

sys.stdout.flush()
if (child := os.fork()) == 0:
    signal.alarm(60)  # it is not left behind
    try:
        use()
    except Exception as error:
        print(type(error).__name__, "spawn" in str(error), flush=True)
        os._exit(7)
    sys.stdout.flush()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
prints(3)
"""


def _fork(use, started=True):
    code = f"STARTED = {started}\n" + FORK.replace("USE", use)
    done = run_python(code, timeout=120)
    return done.stdout.splitlines()[2 if started else 0 :], done.stderr[-2000:]


@pytest.mark.parametrize(
    "use",
    [
        "prints(2)",
        "asks(2)",
        "fx.print('eager')",
        "fx.jit(lambda x: fx.print('new {}', x))(2)",
        "jax.jit(lambda x: fx.print('new {}', x))(2)",
        "fx.jit(lambda x: fx.print('new {}', x)).lower(2)",
        "fx.add_handler(print)",
        "with fx.capture(): pass",
    ],
)
def test_first_use_in_a_child_raises(use):
    """Whatever would lose an effect says what happened and what to do, and the parent goes on."""
    lines, stderr = _fork(use)
    assert lines == ["EffectError True", "7", "x 3"], stderr


def test_program_of_jax_in_a_child_fails():
    """Our effects in a program that plain `jax.jit` has compiled say so too."""
    lines, stderr = _fork("plain(2).block_until_ready(); jax.effects_barrier()")
    assert lines == ["JaxRuntimeError True", "7", "x 3"], stderr


@pytest.mark.parametrize("use", ["pass", "fx.effects_barrier()", "jax.effects_barrier()"])
def test_child_without_effects_is_left_alone(use):
    """A child that has no effects has nothing to wait for."""
    lines, stderr = _fork(use)
    assert lines == ["0", "x 3"], stderr


def test_child_of_a_parent_without_effects():
    """Who forks before the first effect, and before JAX has begun, has children that can have effects."""
    lines, stderr = _fork("prints(2); fx.effects_barrier()", started=False)
    assert lines == ["x 2", "0", "x 3"], stderr
