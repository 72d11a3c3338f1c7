"""Forked children: only the thread that forked goes on there, so what they print would be lost."""

from __future__ import annotations

import sys

import pytest

from tests.forks import run_forked

pytestmark = pytest.mark.skipif(not hasattr(sys.modules["os"], "fork"), reason="processes cannot be forked here")

# What children do, and what becomes of them. They end without Python's exit, at which JAX crashes in a forked child.
FORKS = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")  # JAX warns of forks
import jax
import effects as fx

prints = fx.jit(lambda x: fx.print("x {}", x))
asks = fx.jit(lambda x: fx.callback(lambda x: x, jax.ShapeDtypeStruct((), "int32"), x))
plain = jax.jit(lambda x: (fx.print("plain {}", x), x + 1)[1])
if STARTED:
    prints(1), asks(1), plain(1), fx.effects_barrier()

for use in USES:
    print("use", flush=True)
    if (child := os.fork()) == 0:
        signal.alarm(60)  # it is not left behind
        try:
            exec(use)
        except Exception as error:
            print(type(error).__name__, "spawn" in str(error), flush=True)
            os._exit(7)
        sys.stdout.flush()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    prints(3)
    fx.effects_barrier()
"""

RAISING = [
    "prints(2)",
    "asks(2)",
    "fx.print('eager')",
    "fx.jit(lambda x: fx.print('new {}', x))(2)",
    "jax.jit(lambda x: fx.print('new {}', x))(2)",
    "fx.jit(lambda x: fx.print('new {}', x)).lower(2)",
    "fx.add_handler(print)",
    "with fx.capture(): pass",
]
OF_JAX = "plain(2).block_until_ready(); jax.effects_barrier()"
NONE = ["pass", "fx.effects_barrier()", "jax.effects_barrier()", "jax.debug.callback(int)"]


def _fork(uses, started):
    """What is printed while a process forks a child for each use: by use, by the child and then by the process."""
    done = run_forked(f"STARTED, USES = {started}, {uses}\n{FORKS}")
    shown = [part.split("\n")[:-1] for part in done.stdout.split("use\n")[1:]]
    assert done.returncode == 0 and len(shown) == len(uses), done.stdout + done.stderr[-2000:]
    return dict(zip(uses, shown, strict=True))


@pytest.fixture(scope="module")
def shown():
    """What children of a process with effects show, and what it shows afterwards."""
    return _fork([*RAISING, OF_JAX, *NONE], started=True)


@pytest.mark.parametrize("use", RAISING)
def test_first_use_in_a_child_raises(use, shown):
    """Whatever would lose an effect says what happened and what to do, and the parent goes on."""
    assert shown[use] == ["EffectError True", "7", "x 3"]


def test_program_of_jax_in_a_child_fails(shown):
    """Our effects in a program that plain `jax.jit` has compiled say so too."""
    assert shown[OF_JAX] == ["JaxRuntimeError True", "7", "x 3"]


@pytest.mark.parametrize("use", NONE)
def test_child_without_effects_is_left_alone(use, shown):
    """A child that has no effects has nothing to wait for."""
    assert shown[use] == ["0", "x 3"]


def test_child_of_a_parent_without_effects():
    """Who forks before the first effect, and before JAX has begun, has children that can have effects."""
    use = "prints(2); fx.effects_barrier()"
    assert _fork([use], started=False) == {use: ["x 2", "0", "x 3"]}
