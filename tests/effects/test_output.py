"""Where printed lines go: redirected, buffered, closed and broken outputs, and cells of notebooks."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import threading

import jax
import pytest

import effects as fx
from tests.effects.notebook import FIRST, Notebook
from tests.helpers import ROOT, run_python
from tests.internals import may_wait


@fx.jit
def show(x):
    fx.print("x = {}", x)


def test_redirected_output_has_what_was_called_in_it():
    """`redirect_stdout` takes the lines of the calls inside, though they come after it has ended, and no others."""
    outer, inner = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(outer):
        show(1)
        with contextlib.redirect_stdout(inner):
            show(2)
        show(3)
    fx.effects_barrier(timeout=60)
    assert outer.getvalue() == "x = 1\nx = 3\n"
    assert inner.getvalue() == "x = 2\n"


def test_redirected_output_is_in_order_with_pythons():
    """After a barrier a line stands before what Python writes next, in an output that only has `write`."""

    class Writer:
        def __init__(self):
            self.written = []

        def write(self, text):
            self.written += text.splitlines()

    with contextlib.redirect_stdout(Writer()) as out:
        for i in range(3):
            show(i)
            fx.effects_barrier(timeout=60)
            out.write(f"python {i}\n")
    assert out.written == [line for i in range(3) for line in (f"x = {i}", f"python {i}")]


COMMON = """
import contextlib, os, sys
import effects as fx

show = fx.jit(lambda x: fx.print("x = {}", x))
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_pipe_is_in_order_with_pythons_prints(unbuffered):
    """In a pipe, with a buffer and without, a line stands before what Python prints after a barrier."""
    code = "for i in range(3):\n    show(i)\n    fx.effects_barrier()\n    print('python', i)\n"
    done = run_python(COMMON + code, env={"PYTHONUNBUFFERED": unbuffered})
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(f"x = {i}\npython {i}\n" for i in range(3))


PRINTS = """
import sys
import jax.numpy as jnp

for i in range(3000):
    show(jnp.float32(3))
    sys.stdout.write(f"host {i} is a line of several parts\\n")
"""


def _check_lines_are_whole(text):
    lines = text.splitlines()
    assert len(lines) == 6000
    assert not [line for line in lines if not re.fullmatch(r"x = 3.0|host \d+ is a line of several parts", line)]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_line_that_is_written_at_once_is_whole(unbuffered):
    """No line of an effect comes in between, where Python's `print` writes each argument by itself."""
    done = run_python(COMMON + PRINTS + "fx.effects_barrier()\n", env={"PYTHONUNBUFFERED": unbuffered})
    assert done.returncode == 0, done.stderr
    _check_lines_are_whole(done.stdout)


@pytest.mark.skipif(sys.version_info >= (3, 12, 4), reason="Python's text files can be shared by threads")
def test_output_of_a_call_gathers_no_text(tmp_path):
    """Before Python 3.12.4 a text file that gathers text loses some where two threads write."""
    with open(tmp_path / "out", "w") as output, contextlib.redirect_stdout(output):
        assert not output.write_through
        fx.jit(lambda x: fx.print("{}", x))(1)
        assert output.write_through
        print("host")
        fx.effects_barrier(timeout=60)
    assert sorted((tmp_path / "out").read_text().splitlines()) == ["1", "host"]


def test_unbuffered_pipe_has_all_after_a_barrier():
    """Without a buffer, what was printed has left the process when a barrier returns."""
    code = (
        "for i in range(3):\n    show(i)\n    fx.effects_barrier()\n    os.write(1, b'python %d\\n' % i)\nos._exit(0)\n"
    )
    done = run_python(COMMON + code, env={"PYTHONUNBUFFERED": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(f"x = {i}\npython {i}\n" for i in range(3))


def test_closed_output_is_an_error_at_the_barrier():
    """A line that has nowhere to go is an error at the barrier, and the process goes on."""
    done = run_python(
        COMMON + "sys.stdout.close()\n"
        "show(1)\n"
        "try: fx.effects_barrier()\n"
        "except fx.EffectError as error: print(error, repr(error.__cause__), file=sys.stderr)\n"
        "fx.effects_barrier()\n"
        "print('goes on', file=sys.stderr)\n"
    )
    assert done.returncode == 0, done.stderr
    assert "`print`" in done.stderr and "is closed, and so is the present `sys.stdout`" in done.stderr
    assert done.stderr.endswith("goes on\n")


def test_output_that_is_not_there_takes_nothing():
    """Where `sys.stdout` is None a line is written nowhere and nothing is wrong, as with Python's `print`."""
    done = run_python(COMMON + "sys.stdout = None\nshow(1)\nfx.effects_barrier()\nprint('python')\n")
    assert (done.returncode, done.stdout) == (0, "") and "Error" not in done.stderr, done.stderr


@pytest.mark.parametrize("barrier", [True, False], ids=["at a barrier", "at exit"])
def test_reader_that_has_gone_away_is_an_error(barrier):
    """A pipe that has no reader any more is an error of the effect that wrote to it first: one line, and no more of it
    from later programs. It hangs nothing."""
    calls = "fx.config.errors = 'barrier'\nfor i in range(20): show(i)\n"  # none of these calls raises it
    end = "try: fx.effects_barrier()\nexcept fx.EffectError as error: os.write(2, repr(error.__cause__).encode())\n"
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-c", COMMON + ("show(1)\n" + end if barrier else calls)],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=240,
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode == 0) is barrier, done.stderr
    (said,) = done.stderr.splitlines()
    assert said.startswith(
        "BrokenPipeError(32, 'Broken pipe')" if barrier else "effects.EffectError: The effect `print`"
    )
    assert barrier or "wrote to a pipe that nothing reads any more" in said


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    notebook = Notebook(tmp_path_factory.mktemp("kernel"))
    try:
        assert notebook.run(FIRST) == ["", ""]
        yield notebook
    finally:
        notebook.close()


HOLD = """
called, gate = threading.Event(), threading.Event()

def interrupt(x):
    called.wait()
    os.kill(os.getpid(), signal.SIGINT)
    gate.wait()

@fx.jit
def hold(x):
    fx.callback(interrupt, None, x)
    fx.print("x = {}", x)
"""


def test_cell_that_was_interrupted_has_its_lines(notebook):
    """What a cell's programs print stands below the cell, though it comes while a later one runs."""
    cells = [HOLD, "hold(1); called.set(); fx.effects_barrier()", "print('python'); gate.set()", "show(2)"]
    assert notebook.run(*cells) == ["", "KeyboardInterruptx = 1\n", "python\n", "x = 2\n", ""]


@pytest.mark.slow
def test_line_that_a_cell_writes_at_once_is_whole(notebook):
    """A notebook's `sys.stdout` is written in Python, which lets other threads run anywhere."""
    _check_lines_are_whole(notebook.run(PRINTS)[0])


def test_cells_have_what_their_callbacks_print(notebook):
    """What a callback prints with Python's `print` stands below the cell whose program called it."""
    cells = ["call = fx.jit(lambda x: fx.callback(lambda x: print('called', x), None, x))", "call(1)", "call(2)"]
    assert notebook.run(*cells) == ["", "called 1\n", "called 2\n", ""]


class _Nested(io.TextIOBase):
    """An output whose `write` calls a program and waits for its effects."""

    def __init__(self, program):
        self.seen, self._program, self._inside = [], program, False

    def write(self, text):
        self.seen.append(text.strip())
        if not self._inside:
            self._inside = True
            self._program(len(self.seen))
            fx.effects_barrier(timeout=60)
            self._inside = False
        return len(text)


@pytest.mark.parametrize("called_before", [False, True], ids=["first call", "later call"])
@pytest.mark.parametrize("jit", [fx.jit, jax.jit], ids=["fx.jit", "jax.jit"])
def test_output_may_call_programs_and_wait_for_them(jit, called_before):
    """What these print comes where the text was written. A later call meets a drain that sleeps."""
    out = _Nested(fx.jit(lambda x: fx.print("inner {}", x)))
    outer = jit(lambda x: jax.lax.fori_loop(0, 2, lambda i, _: fx.print("outer {} {}", x, i), None))
    if called_before:
        with contextlib.redirect_stdout(io.StringIO()):
            outer(0)
            fx.effects_barrier(timeout=60)
    with contextlib.redirect_stdout(out):
        outer(7)
        outer(8)
        fx.effects_barrier(timeout=120)
    expected = []
    for line in ("outer 7 0", "outer 7 1", "outer 8 0", "outer 8 1"):
        expected += [line, f"inner {len(expected) + 1}"]
    assert out.seen == expected


def test_output_in_the_place_of_a_closed_one_may_not_wait():
    """Native code formats the text for an output that waits for nothing. If that is closed, and the present one waits
    for effects, an error is raised: the drain shows none until the text is written."""
    began, go = threading.Event(), threading.Event()
    hold = fx.jit(lambda x: fx.callback(lambda x: (began.set(), go.wait(60), None)[2], None, x))
    closed, out = io.StringIO(), _Nested(fx.jit(lambda x: fx.print("inner {}", x)))
    with contextlib.redirect_stdout(closed):
        hold(0)
        assert began.wait(60)  # the text comes by itself, and not with the function
        show(1)
    closed.close()
    with contextlib.redirect_stdout(out):
        go.set()
        with pytest.raises(fx.EffectError) as caught:
            fx.effects_barrier(timeout=60)
        fx.effects_barrier(timeout=60)
    assert "An output waits for effects" in str(caught.value)
    assert out.seen == ["x = 1", "inner 1"]


@pytest.mark.parametrize(
    ("make", "waits"),
    [
        (io.StringIO, False),
        (lambda: io.TextIOWrapper(io.BytesIO()), False),
        (lambda: None, False),
        (io.TextIOBase, True),
        (lambda: type("Tee", (io.StringIO,), {"write": lambda self, text: 0})(), True),
        (lambda: type("Named", (io.StringIO,), {})(), False),
        (
            lambda: io.TextIOWrapper(io.BufferedWriter(type("Raw", (io.RawIOBase,), {"writable": lambda _: True})())),
            True,
        ),
    ],
)
def test_outputs_that_may_wait(make, waits):
    """Native code formats the text of outputs that only Python's own code writes."""
    assert may_wait(make()) == waits


def test_named_temporary_file_does_not_wait():
    """It is around what writes."""
    with tempfile.NamedTemporaryFile("w") as file:
        assert not may_wait(file)
