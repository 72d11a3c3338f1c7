"""Installations and imports that cannot succeed end with a sentence that names the cause and the remedy."""

import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from tests.docs.pages import PAGES
from tests.helpers import ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("words", [["doctor"], ["run", "-c", "import jax"]], ids=" ".join)
@pytest.mark.parametrize("module", ["effects.py", "effects/__init__.py"])
@pytest.mark.parametrize(
    ("records", "remedy"),
    [
        ([], "Rename this file or folder"),
        (["other-1.0.dist-info/METADATA"], "`pip uninstall token-effects other`"),
    ],
    ids=["folder", "package"],
)
def test_command_names_another_package_in_our_place(tmp_path, module, words, records, remedy):
    """The module `effects` of another package, or in the folder of the program: a file, or a package."""
    for name in records:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
        (tmp_path / name).with_name("top_level.txt").write_text("effects\n")
    for name in (module, "jax.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    shutil.copy(ROOT / "effects_command.py", tmp_path)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import effects_command"
    code += f"; sys.exit(effects_command.main({words!r}))"
    command = [sys.executable, "-I", "-S", "-c", code]  # without what is installed
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert f"The module `effects` at {tmp_path / module} is not that of token-effects" in done.stderr
    assert remedy in done.stderr


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_build_without_a_compiler_says_what_to_install(tmp_path):
    """The sdist is built where pip finds no wheel."""
    command = ["cmake", "-S", ROOT, "-B", tmp_path]
    environment = {**os.environ, "CXX": str(tmp_path / "no-compiler")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert "No C++ compiler was found." in said and "apt install g++" in said and "install again. A wheel" in said


def test_commands_name_extras_that_there_are():
    """In texts and on pages, `pip install '.[...]'` names extras of the package."""
    folders = ("effects", "lowering", "dispatch", "extensions", "examples", "tests", "benchmarks")
    sources = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    files = [*PAGES, *ROOT.glob("*.md"), ROOT / ".ci/run", *sources]
    named = [
        extra
        for file in files
        for extras in re.findall(r"pip install '(?:\.|token-effects)\[([\w,]+)\]'", file.read_text())
        for extra in extras.split(",")
    ]
    assert {"test", "bench"} <= {*named} <= EXTRAS.keys()
