"""Every example prints what it says it prints."""

import inspect

import pytest

import effects as fx
from examples import callbacks, debugging, own_primitive
from examples.kernels import grids, hunt, matmul, transformed

MODULES = [debugging, callbacks, own_primitive, grids, matmul, transformed, hunt]
HELPERS = {"on_the_host", "repeat"}


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
