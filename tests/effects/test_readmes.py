"""Each package has one page that says what lives there."""

import subprocess
import sys

import pytest

from tests.helpers import ROOT


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
    """CI runs the README's first commands and first program as they stand there; the program imports the library."""
    found = [
        subprocess.run(
            [sys.executable, ROOT / ".ci/first_steps.py", what], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        for what in ("commands", "program")
    ]
    assert "pip install" in found[0] and "import effects as fx\n" in found[1]
