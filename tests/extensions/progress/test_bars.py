"""What a bar says: the slowest lane, how long the rest takes, and how often; and where it is shown."""

import io
import re
import threading

import jax
import jax.numpy as jnp
import pytest

import effects as fx
from tests.extensions.progress.test_progress import lines_of, said
from tests.internals import Bar, Bars, bars, line_of

pytestmark = pytest.mark.slow


def test_time_left_counts_what_was_shown():
    """What was done before a bar was shown first took no time that it knows of: a run may go on from a checkpoint."""
    bar = Bar("train", 20, done=10, first=10, began=0.0, changed=0.0)
    assert line_of(bar) == "train: 50% 10/20 in 0.0 s"
    bar.done, bar.changed = 12, 4.0
    assert line_of(bar) == "train: 60% 12/20 in 4.0 s, 16.0 s left"
    bar.done, bar.changed = 20, 20.0
    assert line_of(bar) == "train: 100% 20/20 in 20.0 s"


def test_bar_is_full_when_all_is_done():
    """And not a little before."""
    assert line_of(Bar("", 2000, done=1999, first=0, began=0.0, changed=1999.0)) == "99% 1999/2000 in 33:19, 1.0 s left"


def _counting(total):
    bar = fx.progress(total, "n")

    def step(i, x):
        bar.update(i + 1)
        return x

    return jax.lax.fori_loop(jnp.zeros_like(total), total, step, 0)


def test_slowest_of_lanes_that_say_it_at_different_steps():
    """A bar is full when all its lanes are, though one is done long before the others, or has nothing to do."""
    shown = lines_of(fx.jit(jax.vmap(_counting)), jnp.array([2000, 0, 400]))
    tenths = [int(re.match(r"n: (\d+)%", line)[1]) // 10 for line in shown]
    assert tenths == sorted(tenths) and shown[-1] == "n: 100% 2000/2000"
    assert lines_of(fx.jit(jax.vmap(_counting)), jnp.array([0, 4]))[-1] == "n: 100% 4/4"


def test_lane_that_is_set_back_begins_the_bar_anew():
    bar = Bar("", 4, 0, 0)
    bar.set({(0,): (4, 4, ""), (1,): (2, 4, "")})
    assert (bar.done, bar.has_begun_anew) == (2, False)
    bar.set({(0,): (4, 4, "")})  # the other one is where it was
    assert (bar.done, bar.has_begun_anew) == (2, False)
    bar.set({(0,): (1, 4, "")})
    assert (bar.done, bar.first, bar.has_begun_anew) == (1, 1, True)


@pytest.mark.parametrize("dtype", ["uint32", "uint16", "uint8", "int8", "int32"])
def test_computed_totals_of_all_types(dtype):
    """What is shown does not depend on the type in which steps are counted."""
    with fx.capture(suppress=True) as records:
        fx.jit(_counting)(jnp.array(100, dtype))
        fx.jit(lambda n: fx.fori_loop_with_progress(n - n, n, lambda i, x: x, 0))(jnp.array(100, dtype))
    assert said(records) == [*range(1, 101), *range(101)]


@pytest.mark.parametrize("total", [2**31 - 1, 2**31, 3_000_000_000])
def test_total_that_the_counter_cannot_hold(total):
    """A total says how far the bar is, and need not be of the type in which the loop counts."""

    def count(x):
        bar = fx.progress(total, every=2)

        def step(i, x):
            bar.update(i + 1)
            return x

        return jax.lax.fori_loop(0, 5, step, x)

    with fx.capture() as records:
        fx.jit(count)(0)
    assert [record.text for record in records] == [f"2/{total}", f"4/{total}"]


def test_loops_outside_of_programs_leave_no_bar_behind():
    """Each is a program with all of its bar."""

    def loops():
        fx.scan_with_progress(lambda c, x: (c, x), 0, jnp.arange(2000), description="scan")
        fx.fori_loop_with_progress(0, 10, lambda i, x: x, 0, description="fori", every=4)

    shown = lines_of(loops)
    assert [line for line in shown if "100%" in line] == ["scan: 100% 2000/2000", "fori: 100% 10/10"]
    assert not bars._shown


def test_output_has_one_display_whichever_thread_comes_first():
    """Two threads of the drain that come to an output at one time show their bars together."""

    class Output(io.StringIO):
        both_ask = threading.Barrier(2)

        def isatty(self):
            self.both_ask.wait(60)  # neither has a display yet
            return False

    shown, output = Bars(), Output()
    threads = [
        threading.Thread(target=shown.update, args=(output, (n, 1), "key", f"t{n}", {(): (1, 2, "")})) for n in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (display,) = shown._shown
    assert sorted(bar.description for bar in display.bars.values()) == ["t0", "t1"]
    shown.end([(0, 1, 1), (1, 1, 1)])
    assert not shown._shown
    assert sorted(line.split(" in ")[0] for line in output.getvalue().splitlines()) == ["t0: 50% 1/2", "t1: 50% 1/2"]
