"""Calls that native code makes by itself: what has changed since the last one is seen by the next."""

from __future__ import annotations

import sys
import threading

import jax
import jax.numpy as jnp
import pytest

import effects as fx
from tests.dispatch.devices.meshes import mesh_over
from tests.forks import run_forked
from tests.internals import runtime
from tests.lowering.regions.meshes import in_process_of_its_own


def test_warm_calls_enter_no_python_code():
    in_process_of_its_own(__file__, "check_warm_calls_enter_no_python_code")


@pytest.mark.parametrize("over", [1, 4])
@pytest.mark.parametrize("prints", [False, True])
def check_warm_calls_enter_no_python_code(lines, over, prints):
    """A warm call runs no Python code of ours, with effects and without, on one device and over several."""
    f = fx.jit(lambda x: (fx.print("{}", x.sum()) if prints else None, x + 1)[1])
    where = jax.devices()[0] if over == 1 else jax.NamedSharding(mesh_over(*range(over)), jax.P("x"))
    x = jax.device_put(jnp.zeros(4), where)
    entered = []

    def note(frame, event, argument):
        if event == "call" and frame.f_globals.get("__name__", "").startswith("effects."):
            entered.append(frame.f_code.co_qualname)

    def calls():
        jax.block_until_ready([f(x), f(x)])  # on all devices
        fx.effects_barrier(timeout=60)  # after which their tokens are free
        sys.setprofile(note)
        try:
            f(x)
            assert not entered
            fx.config.sync = False  # after which a call looks
            f(x)
        finally:
            sys.setprofile(None)

    assert lines(calls) == ["0.0"] * 4 * prints
    assert entered  # the test can see it


def test_failure_while_another_call_looks():
    in_process_of_its_own(__file__, "check_failure_while_another_call_looks")


def check_failure_while_another_call_looks():
    """What fails while a call looks for failures, the next call of its thread raises."""

    def fail(x):
        raise ValueError("failed meanwhile")

    f, fails = fx.jit(lambda x: x + 1), fx.jit(lambda x: fx.callback(fail, None, x))
    looks, has_failed, raised = threading.Event(), threading.Event(), []

    def thread():
        f(1.0), f(1.0)
        looks.wait(60)
        fails(1.0)
        runtime.waiting.for_thread()
        has_failed.set()
        main_has_called.wait(60)
        try:
            f(1.0)
        except fx.EffectError as error:
            raised.append(error)

    main_has_called = threading.Event()
    other = threading.Thread(target=thread)

    def in_between(frame, event, called):
        if event == "c_call" and called is len and frame.f_code.co_name == "_lower_attention":
            sys.setprofile(None)
            looks.set()
            has_failed.wait(60)

    other.start()
    f(1.0)
    fx.config.sync = False
    sys.setprofile(in_between)
    f(1.0)
    assert has_failed.is_set()
    main_has_called.set()
    other.join(60)
    assert "failed meanwhile" in str(raised)


def test_order_that_changes_between_quick_calls():
    """Once another `order` is in force, calls of all threads are one sequence, also of threads that called before."""
    code = """
import threading
import effects as fx

f = fx.jit(lambda x: fx.print("{}", x))
change, changed = threading.Barrier(2), threading.Barrier(2)

def calls():
    for _ in range(3):
        f(0)
    fx.effects_barrier(timeout=60)
    change.wait(60)
    changed.wait(60)
    f(1)

thread = threading.Thread(target=calls)
thread.start()
for _ in range(3):
    f(0)
fx.effects_barrier(timeout=60)
change.wait(60)
fx.config.order = "process"
records = []
with fx.add_handler(records.append):
    f(2)
    changed.wait(60)
    thread.join()
    f(3)
    fx.effects_barrier(timeout=60)
assert [int(record.args[0]) for record in records] == [2, 1, 3], records
assert len({record.thread for record in records}) == 1, records
"""
    done = run_forked(code)
    assert done.returncode == 0, done.stderr[-3000:]


def test_handler_that_is_added_after_calls_that_found_none():
    """A handler gets records of callbacks whose programs wait for them, also if none was there at earlier calls."""
    f = fx.jit(lambda x: fx.callback(lambda x: x, jax.ShapeDtypeStruct((), jnp.float32), x))
    f(1.0), f(2.0), f(3.0)
    records = []
    with fx.add_handler(records.append):
        f(4.0)
        fx.effects_barrier(timeout=60)
    f(5.0)
    assert [float(record.args[0]) for record in records] == [4.0]
