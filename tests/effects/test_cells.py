"""Cells of a notebook: each ends when its effects are visible, with what they failed with."""

# ruff: noqa: E501 - texts are as a notebook has them

from __future__ import annotations

import re

import nbclient
import pytest

from tests.effects.notebook import FIRST, Notebook, execute, read

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
    assert sorted(third) == sorted("x = 2\npython\n")  # Python writes the end of its line by itself


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


def test_cell_does_not_wait_for_a_program_of_another_thread(notebook):
    """As long as that thread lives."""
    cells = [
        "gate.clear(); thread = threading.Thread(target=lambda: (hold(1), gate.wait())); thread.start()",
        "gate.set(); thread.join()",
        "show(1)",
    ]
    assert notebook.execute(*cells) == ["", "", "x = 1\n"]


@pytest.mark.slow
def test_executed_notebook_has_every_line():
    """Twenty cells, of which each prints at its end."""
    first, *others = execute(SHOWS, *[f"show({n})" for n in range(20)])
    assert [output.text for output in first] == ["x = 0\n"]
    assert [[output.text for output in outputs] for outputs in others] == [[f"x = {n}\n"] for n in range(20)]


def test_executed_notebook_fails_where_an_effect_does():
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="EffectError.*raised ValueError"):
        execute(SHOWS, "fails(1)", "show(1)")


PROGRAMS = """
import jax
import effects as fx

@fx.jit
def step(x):
    fx.print("x = {}", x)
    fx.check(x > 0, "x became {}", x)
    return x + 1

def fail(x):
    raise ValueError(x)

@fx.jit
def calls(x):
    fx.callback(fail, None, 3)

@fx.jit
def awaits(x):
    return fx.callback(fail, jax.ShapeDtypeStruct((), "float32"), 3)

@fx.jit
def ends(x):
    return fx.error_if(x, x < 0, "x is {}", x)

step(1)
""".strip()

CALLBACK = """
ValueError                                Traceback (most recent call last)
Cell In[1], line 11, in fail(ARGUMENTS)
     10 def fail(x):
---> 11     raise ValueError(x)

ValueError: 3

The above exception was the direct cause of the following exception:

EffectError                               Traceback (most recent call last)
""".lstrip()

READS = {
    "value": ("y = step(1)\ny", "x = 1\nOut: Array(2, dtype=int32, weak_type=True)"),
    "value of a call": ("step(1)", "x = 1\nOut: Array(2, dtype=int32, weak_type=True)"),
    "check": (
        "y = 1\ny = step(-1)\ny",
        """
x = -1
CheckError                                Traceback (most recent call last)
Cell In[N], line 2
      1 y = 1
----> 2 y = step(-1)
      3 y

CheckError: x became -1 (Cell In[1], line 7, in `step`, device 0). The program went on after this check.
""",
    ),
    "check of a cell's only call": (
        "step(-1)",
        """
x = -1
CheckError                                Traceback (most recent call last)
Cell In[N], line 1
----> 1 step(-1)

CheckError: x became -1 (Cell In[1], line 7, in `step`, device 0). The program went on after this check.
""",
    ),
    "check in a loop, by a function": (
        "def run(n):\n    n += 1\n    return step(n)\n\nfor x in (1, -2):\n    run(x)",
        """
x = 2
x = -1
CheckError                                Traceback (most recent call last)
Cell In[N], line 6
      2     n += 1
      3     return step(n)
      4 
      5 for x in (1, -2):
----> 6     run(x)

Cell In[N], line 3, in run()
      1 def run(n):
      2     n += 1
----> 3     return step(n)

CheckError: x became -1 (Cell In[1], line 7, in `step`, device 0). The program went on after this check.
""",
    ),
    "barrier": (
        "step(-1)\nfx.effects_barrier()",
        """
x = -1
CheckError                                Traceback (most recent call last)
Cell In[N], line 2
      1 step(-1)
----> 2 fx.effects_barrier()

Cell In[N], line 1
----> 1 step(-1)
      2 fx.effects_barrier()

CheckError: x became -1 (Cell In[1], line 7, in `step`, device 0). The program went on after this check.
""",
    ),
    "callback": (
        "step(1)\ncalls(1)",
        f"""
x = 1
{CALLBACK.replace("ARGUMENTS", "***failed resolving arguments***")}Cell In[N], line 2
      1 step(1)
----> 2 calls(1)

EffectError: The callback `fail` at Cell In[1], line 15, in `calls`, raised ValueError(3). The effects of its program ended there.
""",
    ),
    "callback with a result": (
        "awaits(1)",
        f"""
{CALLBACK.replace("ARGUMENTS", "x")}Cell In[N], line 1
----> 1 awaits(1)

EffectError: The callback `fail` at Cell In[1], line 19, in `awaits`, raised ValueError(3). The program waited for its results and ended there.
""",
    ),
    "error_if": (
        "ends(-1)",
        """
CheckError                                Traceback (most recent call last)
Cell In[N], line 1
----> 1 ends(-1)

CheckError: x is -1 (Cell In[1], line 23, in `ends`, device 0). `fx.error_if` ended the program there.
""",
    ),
    "exception of Python's": (
        "step(1)\n1 / 0",
        """
x = 1
ZeroDivisionError                         Traceback (most recent call last)
Cell In[N], line 2
      1 step(1)
----> 2 1 / 0

ZeroDivisionError: division by zero
""",
    ),
}


@pytest.fixture(scope="module")
def executed():
    """What stands below each cell of a notebook that is executed as a whole."""
    first, *others = execute(PROGRAMS, *[cell for cell, _ in READS.values()], allow_errors=True)
    assert read(first) == "x = 1\nOut: Array(2, dtype=int32, weak_type=True)"
    return {name: (number, read(outputs)) for number, (name, outputs) in enumerate(zip(READS, others, strict=True), 2)}


@pytest.mark.slow
@pytest.mark.parametrize("name", READS)
def test_executed_notebook_reads_as_if_programs_did_not_run_later(executed, name):
    """What a cell prints stands above its value and its error, which is raised once, at the line of the cell that
    called the program."""
    number, text = executed[name]
    assert text == READS[name][1].strip("\n").replace("[N]", f"[{number}]")


@pytest.mark.slow
def test_failures_at_several_lines_show_the_lines_of_their_calls():
    """IPython writes exception groups as Python does."""
    _, outputs = execute(PROGRAMS, "step(-1)\n\ncalls(1)", allow_errors=True)
    lines = re.findall(r'File ".*?", line (\d+), in (\S+)', read(outputs))
    assert lines == [("1", "<module>"), ("1", "<module>"), ("11", "fail"), ("3", "<module>")]
