"""Cells of a notebook: each ends when its effects are visible, with what they failed with."""

from __future__ import annotations

import nbclient
import pytest

from tests.effects.notebook import FIRST, Notebook, execute

SHOWS = FIRST + "show(0)"


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    notebook = Notebook(tmp_path_factory.mktemp("kernel"))
    try:
        assert notebook.execute(SHOWS) == ["x = 0\n"]  # the cell with the import is one
        yield notebook
    finally:
        notebook.close()


def test_cell_ends_when_its_effects_are_visible(notebook):
    """No barrier is in any of them, and the last one has its lines too."""
    cells = ["show(1)", "slow(2.0, 2000)", "show(2); print('python')", "slow(2.0, 2000); show(3)"]
    first, second, third, fourth = notebook.execute(*cells)
    assert (first, second, fourth) == ("x = 1\n", "slow 1.0\nof 2.0\n", "slow 1.0\nof 2.0\nx = 3\n")
    assert sorted(third.split()) == ["2", "=", "python", "x"]


def test_cell_has_its_error(notebook):
    """It is the cell's, the next one has none, and what the cell prints is there as well."""
    assert notebook.execute("show(1); fails(2)", "show(3)") == ["x = 1\nEffectError", "x = 3\n"]


def test_cell_that_raises_has_its_effects(notebook):
    """An exception of Python's does not hide what the cell's programs print, or fail with."""
    lines, both = notebook.execute("show(1); 1 / 0", "show(2); fails(2); raise KeyError")
    assert "x = 1\n" in lines and "ZeroDivisionError" in lines
    assert "x = 2\n" in both and "KeyError" in both and "EffectError" in both


def test_interrupt_ends_a_cell(notebook):
    """A cell whose effects never end is interrupted as any other is."""
    cells = [
        "gate = threading.Event()\nhold = fx.jit(lambda x: fx.callback(lambda x: gate.wait() and None, None, x))",
        "threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start(); hold(1)",
        "gate.set(); show(1)",
    ]
    assert notebook.execute(*cells) == ["", "KeyboardInterrupt", "x = 1\n"]


def test_setting_lets_cells_go_on(notebook):
    cells = ["fx.config.cells = 'go_on'\ngate.clear(); hold(1)", "gate.set(); fx.config.cells = 'wait'", "show(1)"]
    assert notebook.execute(*cells) == ["", "", "x = 1\n"]


def test_executed_notebook_has_every_line():
    """Twenty cells, of which each prints at its end."""
    first, *others = execute(SHOWS, *[f"show({n})" for n in range(20)])
    assert [output.text for output in first] == ["x = 0\n"]
    assert [[output.text for output in outputs] for outputs in others] == [[f"x = {n}\n"] for n in range(20)]


def test_executed_notebook_fails_where_an_effect_does():
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="EffectError.*raised ValueError"):
        execute(SHOWS, "fails(1)", "show(1)")
