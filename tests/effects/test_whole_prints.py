"""Python's own `print` beside the lines of effects: neither tears the other's."""

from __future__ import annotations

import builtins
import inspect
import io
import pickle
import re
import sys
from contextlib import redirect_stdout

import jax.numpy as jnp
import pytest

import effects as fx
from effects.dispatch.runtime import outputs as whole_prints
from tests.effects.notebook import FIRST, Notebook
from tests.helpers import meet_barrier, run_python

PRINTS = """
for i in range(3000):
    show(jnp.float32(3))
    print("host", i, "is", "a line", "of several parts")
"""

PROGRAM = f"""
import jax.numpy as jnp
import effects as fx

fx.config.whole_prints = True

@fx.jit
def show(x):
    fx.print("x = {{}}", x)
{PRINTS}
fx.effects_barrier()
"""


def _check(text):
    lines = text.splitlines()
    assert len(lines) == 6000
    torn = [line for line in lines if not re.fullmatch(r"x = 3.0|host \d+ is a line of several parts", line)]
    assert not torn


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_lines_are_whole(unbuffered):
    """Without a buffer every part of a `print` lets other threads run; with one, the part that fills it."""
    run = run_python(PROGRAM, env={"PYTHONUNBUFFERED": unbuffered})
    assert run.returncode == 0, run.stderr
    _check(run.stdout)


def test_lines_are_whole_in_a_notebook(tmp_path):
    """Its `sys.stdout` is written in Python, which lets other threads run anywhere."""
    notebook = Notebook(tmp_path)
    try:
        notebook.run(FIRST)
        notebook.run("fx.config.whole_prints = True")
        _check(notebook.run(PRINTS)[0])
    finally:
        notebook.close()


@pytest.mark.skipif(sys.version_info >= (3, 12, 4), reason="Python's text files can be shared by threads")
def test_output_of_a_call_gathers_no_text(tmp_path):
    """Before Python 3.12.4 a text file that gathers text loses some where two threads write."""
    with open(tmp_path / "out", "w") as output, redirect_stdout(output):
        assert not output.write_through
        fx.jit(lambda x: fx.print("{}", x))(1)
        assert output.write_through
        print("host")
        meet_barrier()
    assert sorted((tmp_path / "out").read_text().splitlines()) == ["1", "host"]


@pytest.fixture
def both():
    """Python's own `print`, and what stands in its place where that is wanted, once a program with effects has been
    compiled."""
    with fx.capture(suppress=True):
        fx.jit(lambda x: fx.print("{}", x))(1)
        meet_barrier()
    assert builtins.print is whole_prints._pythons
    with fx.config.override(whole_prints=True):
        assert builtins.print is not whole_prints._pythons
        yield whole_prints._pythons, builtins.print


def _outcome(function, args, options):
    out = io.StringIO()
    try:
        function(*args, **options, file=out)
    except Exception as error:
        return type(error), str(error)
    return out.getvalue()


@pytest.mark.parametrize("args", [(), ("a",), ("a", 1, None, 2.5), (jnp.arange(3), "\n")])
@pytest.mark.parametrize(
    "options",
    [{}, {"sep": ""}, {"sep": None, "end": None}, {"end": "!"}, {"flush": True}, {"sep": 3}, {"end": b""}, {"bad": 1}],
)
def test_text_and_errors_are_pythons(both, args, options):
    pythons, ours = both
    assert _outcome(ours, args, options) == _outcome(pythons, args, options)


def test_it_writes_once(both):
    class Out(list):
        write = list.append

    out = Out()
    both[1]("a", "b", sep="\n", file=out)
    assert out == ["a\nb\n"]


def test_it_passes_for_pythons(both):
    pythons, ours = both
    assert pickle.loads(pickle.dumps(ours)) is ours
    assert inspect.signature(ours) == inspect.signature(pythons)
    assert (ours.__name__, ours.__module__, repr(ours)) == (pythons.__name__, pythons.__module__, repr(pythons))
    assert inspect.getdoc(ours) == inspect.getdoc(pythons)


def test_what_an_argument_raises_is_raised(both):
    class Bad:
        def __str__(self):
            raise ValueError("no text")

    out = io.StringIO()
    with pytest.raises(ValueError, match="no text"):
        both[1]("before", Bad(), file=out)
    assert not out.getvalue()


def test_without_an_output_nothing_is_printed(both, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    both[1]("nothing")


def test_setting_gives_pythons_back(both):
    pythons, ours = both
    with fx.config.override(whole_prints=False):
        assert builtins.print is pythons
    assert builtins.print is ours


def test_another_print_is_left_alone(both, monkeypatch):
    def own(*args):
        """A library's, in the place of Python's."""

    monkeypatch.setattr(builtins, "print", own)
    with fx.config.override(whole_prints=False):
        assert builtins.print is own
    assert builtins.print is own
