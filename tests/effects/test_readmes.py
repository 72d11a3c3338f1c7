"""Each package has one page that says what lives there."""

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
