"""Every example prints what it says it prints."""

import ast
import doctest
import importlib
import inspect
import textwrap

import pytest

from tests.environment import xla_flags
from tests.extensions.custom_calls.test_elsewhere import EXAMPLE
from tests.forks import run_forked
from tests.helpers import ROOT, first_steps

pytestmark = pytest.mark.slow

HELPERS = {"on_the_host", "repeat"}
_ORDERED = ast.get_docstring(ast.parse((ROOT / "examples" / "ordered_printing.py").read_text())) or ""
OTHERS = {  # programs that are one example: what they print
    "examples.first_program": first_steps("output"),
    "examples.ordered_printing": textwrap.dedent(_ORDERED.partition("prints\n\n")[2]) + "\n",
    "examples.custom_call.custom_call": EXAMPLE,
}
SCRIPTS = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(ROOT.glob("examples/**/*.py"))
}


@pytest.mark.parametrize("name", sorted(SCRIPTS.keys() - OTHERS.keys()))
def test_every_example_is_run(name):
    """No example is left out of the list."""
    module = importlib.import_module(name)
    public = {
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    assert public - HELPERS == {example.__name__ for example in module.EXAMPLES}


@pytest.mark.parametrize(
    ("name", "flags"),
    [*((name, "") for name in SCRIPTS), *((name, xla_flags(8)) for name in SCRIPTS if ".training." in name)],
)
def test_examples_run_as_they_are(name, flags):
    """`python examples/...` shows what the examples say, on a machine where nothing is set. Asynchronous ones give what
    the synchronous programs give, and training goes on from a checkpoint, on eight devices too."""
    code = f"import runpy; runpy.run_path({str(SCRIPTS[name])!r}, run_name='__main__')"
    result = run_forked(code, env={"XLA_FLAGS": flags})
    assert result.returncode == 0, result.stderr
    expected = OTHERS[name] if name in OTHERS else _printed(importlib.import_module(name).EXAMPLES)
    assert doctest.OutputChecker().check_output(expected, result.stdout, doctest.ELLIPSIS), result.stdout


def _printed(examples):
    printed = [inspect.getdoc(example).partition("\n\n")[2] for example in examples]
    return "".join(f"-- {example.__name__}\n{text}\n" for example, text in zip(examples, printed, strict=True))
