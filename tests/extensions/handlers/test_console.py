"""The handler that shows records on a console."""

from __future__ import annotations

import io
import logging

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console

import effects as fx


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
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=40)
    handled(fx.ConsoleHandler(console), fx.jit(lambda: (fx.log("fine", level="info"), fx.log("bad", level="error"))))
    fine, bad = console.file.getvalue().splitlines()
    assert fine.startswith("\x1b[34mINFO") and bad.startswith("\x1b[1;31mERROR")


def test_console_is_standard_output_by_default(handled, capsys):
    """Without a console of the user's, lines go to the standard output."""
    handled(fx.ConsoleHandler(), fx.jit(lambda: fx.log("step")))
    assert capsys.readouterr().out.startswith("INFO     step test_console.py:")


def test_console_takes_lines_over(lines):
    """As long as it is there, a line that it shows is not on the standard output as well."""
    console = Console(file=io.StringIO(), width=80)

    @fx.jit
    def program(x):
        fx.print("x = {}", x)
        jax.debug.print("jax {}", x)
        fx.log("step", x=x)

    def call():
        program(1)
        with fx.add_handler(fx.ConsoleHandler(console)):
            program(2)
        program(3)

    assert lines(call) == ["x = 1", "jax 1", "x = 3", "jax 3"]
    taken = [line.rpartition(" ")[0] for line in console.file.getvalue().splitlines()]
    assert taken == ["print    x = 2", "jax.debug jax 2", "INFO     step x=2"]


def test_console_leaves_what_it_does_not_show(lines):
    """Lines of effects that it is not for stay where they were, and failed checks are raised."""
    console = Console(file=io.StringIO(), width=80)

    def program(x):
        fx.print("x = {}", x)
        jax.debug.print("{x.dtype}", x=x)
        fx.check(x > 0, "x = {}", x)

    def call(effects):
        with fx.add_handler(fx.ConsoleHandler(console), effects=effects), pytest.raises(fx.CheckError):
            fx.jit(program)(jnp.float32(-1))
            fx.effects_barrier()

    assert lines(call, "log") == ["x = -1.0", "float32"]
    assert console.file.getvalue() == ""
    assert lines(call, None) == []
    shown = console.file.getvalue()
    assert "x = -1.0" in shown and "float32" in shown


def test_a_handler_of_the_users_takes_lines(lines):
    """So does any handler that says so, and others see the same records."""

    class Upper(list):
        takes_lines = True

        def handle(self, record):
            self.append(record.text.upper())

    upper, kept = Upper(), fx.ListHandler()
    with fx.add_handler(upper), fx.add_handler(kept):
        assert lines(fx.jit(lambda x: fx.print("x = {}", x)), 1) == []
    assert upper == ["X = 1"] and [record.text for record in kept.records] == ["x = 1"]
