"""What the drain does for a record, counted: many small additions make a path slow of which each alone is not seen."""

from __future__ import annotations

import contextlib
import io
import json
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.helpers import run_python

pytestmark = pytest.mark.slow

COUNTS_CALLS = """
import collections, json, sys, threading
import jax, jax.numpy as jnp

counts = collections.Counter()
is_counting = False

def note(frame, event, argument):
    if is_counting and event == "call" and frame.f_globals.get("__name__", "").startswith("effects."):
        counts[frame.f_code.co_qualname] += 1

threading.setprofile(note)  # of the drain's threads, which have not started
import effects as fx

STEPS = 640  # so that what comes at every 64th batch comes as often

@fx.jit
def program(x):
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    return jax.lax.fori_loop(0, STEPS, lambda i, x: BODY, x)

x = jnp.float32(1)
for is_counting in False, True:
    program(x).block_until_ready()
    fx.effects_barrier()
is_counting = False
print(json.dumps({name: count / STEPS for name, count in counts.items()}))
"""

MOST = 0.6
"""Of our functions, for a record: what comes at every 64th callback whose result a program waits for."""


def calls_for_each(body):
    """How often the drain calls each of our functions for a record of this effect."""
    run = run_python(COUNTS_CALLS.replace("BODY", body))
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def test_result_of_a_callback_takes_few_calls():
    """From a record in the ring to the answer: a device waits all that time."""
    counts = calls_for_each("fx.callback(lambda x: x, scalar, x)")
    assert counts["Drain._look"] > 0  # the test can see the path
    assert sum(counts.values()) <= MOST, counts


def test_native_code_makes_the_text_of_a_print():
    """Where Python made it, the text would be right, and slow."""
    counts = calls_for_each("(fx.print('{}', x), x + 1)[1]")
    assert counts["Drain._show_texts"] > 0  # the test can see the path
    assert sum(counts.values()) <= MOST, counts


def test_call_asks_for_print_options_once_in_a_context():
    """What a context holds is found out when it is another than before, and not at each call."""
    f, x, entered = fx.jit(lambda x: fx.print("{}", x)), jnp.ones(2), []

    def calls(count):
        entered.clear()
        sys.setprofile(lambda frame, event, _: entered.append(frame.f_code.co_name) if event == "call" else None)
        try:
            for _ in range(count):
                f(x)
        finally:
            sys.setprofile(None)
        return [entered.count(name) for name in ("print_options", "may_wait")]

    with contextlib.redirect_stdout(io.StringIO()):
        f(x)
        for digits in (2, 3):
            with np.printoptions(precision=digits):
                assert calls(10)[0] > 0  # the test can see it
                assert calls(10) == [0, 0]
        fx.effects_barrier(timeout=60)
