"""Each package has one page that says what lives there."""

import pytest

from tests.helpers import ROOT, first_steps


@pytest.mark.parametrize("package", ["effects", "lowering", "dispatch"])
def test_readme_names_every_module(package):
    """A package's README has every module of it, and none that is gone."""
    text = (ROOT / package / "README.md").read_text()
    modules = {path.name for path in (ROOT / package).rglob("*.py") if package in path.resolve().parts}
    modules = {name for name in modules if name != "__init__.py"}
    missing = {name for name in modules if f"`{name}`" not in text}
    assert not missing
    named = {word.strip("`") for word in text.replace("|", " ").replace(",", " ").split() if word.endswith(".py`")}
    assert {name.split("/")[-1] for name in named} - modules <= {"platform.py", "__init__.py"}


def test_first_steps_are_found_in_the_readme():
    """CI runs the README's two commands and its first program as they stand there. Each command is one line."""
    first, program = first_steps("commands"), first_steps("program")
    assert first.endswith("&& pip install . && python examples/first_program.py\n") and first.count("\n") == 1
    assert (ROOT / "examples/first_program.py").read_text().partition('"""\n\n')[2] == program
    tests = first_steps("tests")
    assert "&& pip install " in tests and "&& pytest " in tests and tests.count("\n") == 1
