"""The page of supported versions says what the package's metadata and code say."""

import re
import tomllib

import pytest

from effects import _supported
from effects.extensions.export import saved
from tests.helpers import ROOT, run_python

PAGE = (ROOT / "docs/reference/compatibility.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def row(name):
    """The cells of a row of the page's tables, behind the first one."""
    [line] = re.findall(rf"^\| {re.escape(name)} \|(.*)\|$", PAGE, re.MULTILINE)
    return [cell.strip() for cell in line.split("|")]


def test_versions_of_python():
    listed = re.findall(r"\d+\.\d+", row("Python")[0])
    classifiers = " ".join(PROJECT["classifiers"])
    assert listed == re.findall(r"Python :: (3\.\d+)", classifiers)
    assert PROJECT["requires-python"] == f">={listed[0]}"


def test_versions_of_jax():
    """They are those of the metadata, of the check at import, and of the README."""
    oldest, too_new = _supported.OLDEST, _supported.TOO_NEW
    [requirement] = [each for each in PROJECT["dependencies"] if each.startswith("jax>")]
    assert requirement == f"jax>={oldest[0]}.{oldest[1]},<{too_new[0]}.{too_new[1]}"
    listed = [tuple(map(int, each.split("."))) for each in re.findall(r"\d+\.\d+", row("JAX and jaxlib")[0])]
    assert listed == [(0, minor) for minor in range(oldest[1], too_new[1])]
    assert f"JAX 0.{listed[0][1]} to 0.{listed[-1][1]}" in (ROOT / "README.md").read_text()


def test_versions_of_numpy():
    [requirement] = [each for each in PROJECT["dependencies"] if each.startswith("numpy")]
    assert f"{float(requirement.removeprefix('numpy>='))} and newer" == row("NumPy")[0]


def test_formats():
    written = re.search(r"kVersion = (\d+);", (ROOT / "extensions/runs/native/format.h").read_text())
    assert written is not None
    assert row("Run files (`fx.record`)")[0] == written[1]
    assert row("Exported programs (`fx.export`)")[0] == saved._MAGIC.decode().split()[-1]


@pytest.mark.parametrize("version", ["0.9.2", "0.13.0", "1.0.0"])
def test_another_jax_is_refused_in_a_sentence(version):
    done = run_python(
        f"import jax\njax.__version__ = {version!r}\n"
        f"jax.__version_info__ = {tuple(map(int, version.split('.')))}\nimport effects"
    )
    assert done.returncode == 1
    assert f"ImportError: token-effects cannot be imported with JAX {version}." in done.stderr
