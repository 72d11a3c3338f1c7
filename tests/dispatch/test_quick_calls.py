"""Calls that native code makes by itself: what has changed since the last one is seen by the next."""

from __future__ import annotations

from tests.forks import run_forked


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
