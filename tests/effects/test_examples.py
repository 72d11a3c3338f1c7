"""Every example prints what it says it prints."""

import doctest
import importlib
import inspect

import pytest

import effects as fx
from examples import callbacks, debugging, own_primitive
from examples.kernels import grids, hunt, matmul, transformed
from tests.environment import xla_flags
from tests.forks import run_forked

ASYNC = [importlib.import_module(f"examples.async.{name}") for name in ["rings", "references"]]  # `async` is a keyword
MODULES = [debugging, callbacks, own_primitive, grids, matmul, transformed, hunt, *ASYNC]
HELPERS = {"on_the_host", "repeat"}
TRAINING = [f"examples.training.{name}" for name in ["flax_linen", "flax_nnx", "with_equinox"]]


@pytest.mark.parametrize(
    "example", [example for module in MODULES for example in module.EXAMPLES], ids=lambda example: example.__name__
)
def test_example_prints_what_its_docstring_says(example, capsys):
    """The lines after the first paragraph of an example's docstring are its output."""
    _, _, printed = inspect.getdoc(example).partition("\n\n")
    example()
    fx.effects_barrier()
    assert capsys.readouterr().out.splitlines() == printed.splitlines()


@pytest.mark.parametrize("module", MODULES)
def test_every_example_is_run(module):
    """No example is left out of the list."""
    public = {
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    assert public - HELPERS == {example.__name__ for example in module.EXAMPLES}


@pytest.mark.parametrize("name", [*(module.__name__ for module in ASYNC), *TRAINING])
def test_examples_run_on_eight_devices(name):
    """Asynchronous ones give what the synchronous programs give, on any number of devices, and training goes on from a
    checkpoint."""
    code = f"import runpy; runpy.run_module({name!r}, run_name='__main__')"
    result = run_forked(code, env={"XLA_FLAGS": xla_flags(8)})
    assert result.returncode == 0, result.stderr
    examples = importlib.import_module(name).EXAMPLES
    printed = [inspect.getdoc(example).partition("\n\n")[2] for example in examples]
    expected = "".join(f"-- {example.__name__}\n{text}\n" for example, text in zip(examples, printed, strict=True))
    assert doctest.OutputChecker().check_output(expected, result.stdout, doctest.ELLIPSIS), result.stdout
