"""The handler that shows records on a console."""

from __future__ import annotations

import io
import logging

import jax
import jax.numpy as jnp
from rich.console import Console

import effects as fx


def _console():
    return Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=40)


def test_console_shows_a_line_for_each_record(handled):
    """Level, event, fields and place are on one line, however narrow the console; what looks like markup is text."""

    def program(x):
        fx.log("[bold]step", level=logging.WARNING, loss=x, matrix=jnp.zeros((2, 2)))
        fx.log("custom", level=25)
        fx.print("x = {}", x)

    console = Console(file=io.StringIO(), width=40)
    with fx.capture(suppress=True):
        handled(fx.ConsoleHandler(console), fx.jit(jax.vmap(program)), jnp.array([0.5]))
    line = program.__code__.co_firstlineno
    assert console.file.getvalue().splitlines() == [
        f"WARNING  [bold]step loss=0.5 matrix=[[0. 0.]  [0. 0.]] lane=(0,) test_console.py:{line + 1}",
        f"Level 25 custom lane=(0,) test_console.py:{line + 2}",
        f"print    x = 0.5 lane=(0,) test_console.py:{line + 3}",
    ]


def test_console_colours_levels(handled):
    """Levels differ in colour."""
    console = _console()

    def program():
        fx.log("fine", level=logging.INFO)
        fx.log("bad", level=logging.ERROR)

    handled(fx.ConsoleHandler(console), fx.jit(program))
    fine, bad = console.file.getvalue().splitlines()
    assert fine.startswith("\x1b[34mINFO") and bad.startswith("\x1b[1;31mERROR")


def test_console_is_standard_output_by_default(handled, capsys):
    """Without a console of the user's, lines go to the standard output."""
    handled(fx.ConsoleHandler(), fx.jit(lambda: fx.log("step")))
    assert capsys.readouterr().out.startswith("INFO     step test_console.py:")
