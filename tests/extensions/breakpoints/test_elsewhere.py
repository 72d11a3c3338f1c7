"""Breakpoints under pytest's capture, in notebooks, and where there is no prompt."""

from __future__ import annotations

import gc
import os
import signal
import sys
import warnings
import weakref

import jax
import jax.numpy as jnp
import pytest
from markdown_it import MarkdownIt

import effects as fx
from tests.effects.notebook import FIRST, Notebook, execute
from tests.extensions.breakpoints.terminal import OWN_TERMINAL, Terminal
from tests.helpers import ROOT

pytestmark = pytest.mark.slow

TESTS = """
import sys
import jax.numpy as jnp
import effects as fx

@fx.jit
def f(x):
    y = x + 1
    fx.breakpoint()
    fx.print("after {}", y)

def test_captured(capsys):
    f(1)
    assert capsys.readouterr().out == "after 2\\n"

def test_failing():
    f(2)
"""


def test_pytest_does_not_capture_the_prompt(tmp_path):
    """The prompt is in the terminal, and all else is captured; `q` fails the test."""
    path = tmp_path / "test_breakpoint.py"
    path.write_text(TESTS)
    boot = f"{OWN_TERMINAL}import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PY_COLORS": "0"}
    terminal = Terminal(
        "-c", boot, "-q", "-p", "no:cacheprovider", "-p", "effects_pytest", str(path), cwd=tmp_path, env=environment
    )
    first, value, second, report = terminal.answer("y", "c", "q", end="")
    assert first.endswith(f"> {path}:9 in f\n-> fx.breakpoint()\n") and "after" not in first
    assert value == "array(2, dtype=int32)\n" and second.splitlines()[0] == "."
    assert "1 failed, 1 passed" in report and "EffectError: The user ended the program at `fx.breakpoint`" in report
    assert terminal.close() == 1


class Answered(Notebook):
    """A notebook before which a person sits."""

    def answer(self, cell, *answers):
        """Runs a cell, and answers each of its boxes, or sends a signal. Returns what stands below the cell, and the
        labels of the boxes."""
        sent, labels, outputs = self._client.execute(cell, stop_on_error=False), [], ""
        for answer in answers:
            labels.append(self._client.get_stdin_msg(timeout=120)["content"]["prompt"])
            if isinstance(answer, str):
                self._client.input(answer)
            else:
                self._process.send_signal(answer)
        while True:
            message = self._client.get_iopub_msg(timeout=120)
            content = message["content"]
            if message["parent_header"].get("msg_id") != sent:
                continue
            if message["msg_type"] == "stream":
                outputs += content["text"]
            elif message["msg_type"] == "error":
                outputs += content["ename"]
            elif content.get("execution_state") == "idle":
                return outputs, labels


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    notebook = Answered(tmp_path_factory.mktemp("kernel"))
    try:
        assert notebook.execute(f"{FIRST}{DEFINE}") == [""]
        yield notebook
    finally:
        notebook.close()


DEFINE = """
@fx.jit
def stops(x):
    y = x * 2
    fx.print("before {}", x)
    fx.breakpoint()
    fx.print("after {}", y)
    return y

def later(x):
    fx.breakpoint()
"""


def test_notebook_has_a_box(notebook):
    """The prompt is a box below the cell; values and effects stand there, in order."""
    output, labels = notebook.answer("stops(3)", "y + 1", "c")
    assert labels == ["(fx) "] * 2
    assert output.splitlines() == [
        "before 3",
        "device 0",
        f"> Cell In[1], line {line_of('fx.breakpoint()')} in stops",
        "-> fx.breakpoint()",
        "np.int32(7)",
        "after 6",
    ]


def line_of(text):
    return next(n for n, line in enumerate(f"{FIRST}{DEFINE}".strip().splitlines(), 1) if line.strip() == text)


def test_notebook_ends_the_program(notebook):
    """By `q`, and by the button that interrupts, at a box that is never answered. The next cell runs."""
    assert notebook.answer("stops(3)", "q")[0].endswith("EffectError")
    assert notebook.answer("stops(3)", signal.SIGINT)[0].endswith("KeyboardInterrupt")
    assert notebook.answer("fx.jit(jax.vmap(stops))(jnp.arange(2))", "c", signal.SIGINT)[0].endswith(
        "KeyboardInterrupt"
    )
    assert notebook.answer("stops(3)", "c")[0].splitlines()[-1] == "after 6"


def test_notebook_asks_for_what_runs_later(notebook):
    """A breakpoint in a callback, for which the cell's end waits, and one of plain `jax.jit`."""
    output, _ = notebook.answer("fx.jit(lambda x: fx.callback(later, None, x))(5)", "x", "c")
    assert "array(5, dtype=int32)" in output
    output, _ = notebook.answer(
        "jax.block_until_ready(jax.jit(lambda x: (fx.breakpoint(), x + 1)[1])(5)); jax.effects_barrier()", "x", "c"
    )
    assert "array(5, dtype=int32)" in output


def test_notebook_without_a_person_goes_on():
    """One that a program executes has a warning in the place of the prompt."""
    _, outputs = execute(FIRST + DEFINE, "stops(3)")
    text = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "before 3" in text and "after 6" in text
    assert "The program does not wait at `fx.breakpoint` at Cell In[1]" in text


@fx.jit
def stops(x):
    y = x + 1
    fx.breakpoint()
    return y


def test_program_goes_on_where_nobody_can_be_asked(monkeypatch):
    """Without a terminal, as in this suite, there is a warning that says where, once for each line."""
    for stdin in (sys.stdin, None):
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.warns(
            RuntimeWarning, match=r"does not wait at `fx.breakpoint` at .*test_elsewhere.py:\d+: the standard "
        ):
            assert stops(1) == 2


def test_warning_that_is_an_error_ends_the_program():
    """A suite whose warnings are errors fails at a breakpoint that was left in a program."""
    with pytest.raises(fx.EffectError, match="The program does not wait at `fx.breakpoint`"):
        stops(1)


@pytest.mark.parametrize("when", [1, jnp.arange(2) > 0, "x"])
def test_predicate_is_one_boolean(when):
    """Anything else is refused while tracing."""
    with pytest.raises(TypeError, match="as `when`. `when` is one boolean"):
        fx.jit(lambda x: fx.breakpoint(when=when))(1)


def test_breakpoint_of_a_false_predicate_leaves_nothing():
    """What is known while tracing is decided then."""
    assert "breakpoint" not in str(jax.make_jaxpr(lambda x: (fx.breakpoint(when=False), x))(1))


def test_breakpoint_keeps_no_program_alive():
    """Of the objects in its frames only the types are kept."""

    class Model:
        def call(self, x):
            fx.breakpoint(when=x < 0)
            return x

    model = Model()
    model.program = fx.jit(model.call)
    assert model.program(1) == 1
    fx.effects_barrier()
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_breakpoint_is_not_exported():
    """Its frames are of this process."""
    with pytest.raises(ValueError, match=r"has `fx\.breakpoint` at .* Take `fx.breakpoint` out"):
        fx.export(stops)(jax.ShapeDtypeStruct((), "int32"))


def test_breakpoint_in_a_kernel():
    """In a simulated kernel the program waits where the predicate holds."""

    def kernel(x, y):
        fx.breakpoint(when=x[0] > 2)
        y[...] = x[...]

    call = fx.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((2,), "int32"), interpret=True)
    assert fx.jit(call)(jnp.arange(2, dtype="int32")).tolist() == [0, 1]


def test_page_shows_what_a_terminal_shows(tmp_path):
    """The dialogue on the page is what its program and its user write."""
    blocks = MarkdownIt().parse((ROOT / "docs/how-to/breakpoint.md").read_text())
    program, dialogue = (block.content for block in blocks if block.type == "fence")
    path = tmp_path / "train.py"
    path.write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": "", "PYTHON_COLORS": "0"}
    terminal = Terminal(
        "-c", f"{OWN_TERMINAL}exec(compile(open('train.py').read(), 'train.py', 'exec'))", cwd=tmp_path, env=environment
    )
    first, *answers = dialogue.split("(fx) ")
    commands, values = zip(*(answer.split("\n", 1) for answer in answers), strict=True)
    shown = terminal.answer(*commands, end="")
    assert [*shown[: len(answers)]] == [first, *values[:-1]]
    assert "EffectError: The user ended the program at `fx.breakpoint` at train.py:12" in shown[-1]
    assert terminal.close() == 1


@pytest.mark.parametrize("axes", [("a",), ("a", "b")])
@pytest.mark.parametrize("how", ["when", "cond", "jax"])
def test_conditional_breakpoint_beside_a_collective(how, axes, lines):
    """It is no `fx.error_if`, for which the devices vote: a device that comes to it goes on."""
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def body(x):
        stops = x[0] > 1
        if how == "when":
            fx.breakpoint(when=stops)
        else:
            stop = fx.breakpoint if how == "cond" else jax.debug.breakpoint
            jax.lax.cond(stops, stop, lambda *_: None)
        fx.print("x = {}", x[0])
        return x + jax.lax.psum(x, axes)

    spec = jax.P(axes)
    step = fx.jit(jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, axis_names={*axes}, check_vma=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shown = lines(step, jnp.arange(8.0))
    devices = 2 ** len(axes)
    assert shown == [f"x = {float(i * 8 // devices)}" for i in range(devices)]
