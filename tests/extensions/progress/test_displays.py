"""Bars on a terminal and in a notebook, with what else is written there."""

from __future__ import annotations

import re

import pytest

from tests.effects.notebook import execute
from tests.extensions.progress.terminal import screen_of

pytestmark = pytest.mark.slow

FULL = "━" * 40


def plain(data):
    """What a notebook displays, as text without colours."""
    return re.sub(r"\x1b\[[\d;]*m", "", data["text/plain"])


PRINTS = """
import effects as fx, jax, threading
waits, went_on = threading.Event(), threading.Event()

def wait(i):
    if i == 3:
        waits.set()
        assert went_on.wait(60)

@fx.jit
def train(x):
    bar = fx.progress(6, "train")
    def step(i, x):
        fx.print("step {}", i)
        fx.callback(wait, None, i)
        bar.update(i + 1)
        return x + 1
    return jax.lax.fori_loop(0, 6, step, x)

train(0)
"""


def bars(lines):
    """The lines with bars: description, and how many steps."""
    return [(line.split()[0], re.search(r"(\d+/[\d?]+)", line)[1]) for line in lines if "━" in line]


def test_prints_stand_above_the_bar():
    """Each line is there, whole and in order, also one that Python prints meanwhile; the bar is drawn once, below."""
    code = "waits.wait(60)\nprint('from python')\nwent_on.set()\nfx.effects_barrier(timeout=60)\nprint('end')"
    lines = screen_of(PRINTS + code)
    assert [line for line in lines[:7] if line.startswith("step")] == [f"step {i}" for i in range(6)]
    assert "from python" in lines[:7]
    assert FULL in lines[7] and bars(lines) == [("train", "6/6")]
    assert lines[8:] == ["end"]


def test_several_bars_one_that_begins_anew_and_one_that_stops():
    """Those of nested loops stand below each other, and each stays once when the program is over. One without a total
    counts. That of a program that fails stays as it is, and what comes after stands below it."""
    lines = screen_of("""
import effects as fx, jax, logging
logging.disable()

@fx.jit
def nested(x):
    def outer(i, x):
        fx.print("outer {}", i)
        return fx.fori_loop_with_progress(0, 4, lambda _, x: x + 1, x, description="inner")
    return fx.fori_loop_with_progress(0, 3, outer, x, description="outer")

def fail(i):
    if i == 2:
        raise ValueError("third")

@fx.jit
def fails(x):
    bar = fx.progress(5, "fails")
    jax.lax.fori_loop(0, 5, lambda i, x: (fx.callback(fail, None, i), bar.update(i + 1), x)[2], x)

nested(0)
fx.effects_barrier()
bar = fx.progress(description="[red]while")
fx.jit(lambda x: jax.lax.while_loop(lambda x: x < 5, lambda x: (bar.update(x + 1), x + 1)[1], x))(0)
fx.effects_barrier()
fails(0)
try:
    fx.effects_barrier(timeout=60)
except fx.EffectError as error:
    print(type(error.__cause__).__name__)
""")
    assert lines[:3] == [f"outer {i}" for i in range(3)] and lines[-1] == "ValueError" and len(lines) == 8
    assert sorted(bars(lines)) == [("[red]while", "5/?"), ("fails", "2/5"), ("inner", "4/4"), ("outer", "3/3")]


def test_terminal_without_a_cursor_gets_lines():
    """A shell inside of an editor, say."""
    lines = screen_of(
        """
import effects as fx
fx.jit(lambda x: fx.fori_loop_with_progress(0, 3, lambda i, x: x, x, description="bar"))(0)
""",
        "dumb",
    )
    assert lines[-1].startswith("bar: 100% 3/3 in ")


CELL = """
import effects as fx

def outer(i, x):
    fx.print("step {}", i)
    return fx.fori_loop_with_progress(0, 4, lambda _, x: x + 1, x, description="inner")

x = fx.jit(lambda x: fx.fori_loop_with_progress(0, 3, outer, x, description="[red]outer"))(0)
fx.effects_barrier(timeout=60)
"""


def test_notebook_shows_bars_that_rich_draws():
    """One display for each bar, which is updated, also one that begins anew; what the program prints is whole. A bar is
    in the output of the cell that called its program."""
    outputs = execute(CELL, "fx.jit(lambda: fx.progress(2, 'files').update(2))()")
    printed = "".join(output.text for output in outputs[0] if output.output_type == "stream")
    assert printed.splitlines() == [f"step {i}" for i in range(3)]
    shown = [[output.data for output in below if output.output_type == "display_data"] for below in outputs]
    assert [sorted(bars(map(plain, cell))) for cell in shown] == [
        [("[red]outer", "3/3"), ("inner", "4/4")],
        [("files", "2/2")],
    ]
    assert all(FULL in plain(data) and "<span style=" in data["text/html"] for cell in shown for data in cell)
