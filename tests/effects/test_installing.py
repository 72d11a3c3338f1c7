"""Installations and imports that cannot succeed end with a sentence that names the cause and the remedy."""

import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

import effects as fx
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


@pytest.mark.parametrize("words", [["doctor"], ["--version"], ["demo"], ["run", "-c", "import jax"]], ids=" ".join)
def test_command_says_which_jax_it_needs(tmp_path, words):
    (tmp_path / "jax.py").write_text("__version__ = '0.9.2'\n__version_info__ = 0, 9, 2\n")
    code = f"import sys; sys.path[:0] = {[str(tmp_path), str(ROOT)]!r}; import effects_command"
    code += f"; sys.exit(effects_command.main({words!r}))"
    command = [sys.executable, "-I", "-S", "-c", code]  # without what is installed
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert re.fullmatch(r"token-effects cannot be imported with JAX 0\.9\.2\. .* pip install 'jax>=.*\n", done.stderr)


@pytest.mark.parametrize("module", ["effects.py", "effects/__init__.py", "effects/data.txt"])
def test_doctor_says_what_hides_the_library_in_its_folder(tmp_path, module):
    (tmp_path / module).parent.mkdir(exist_ok=True)
    (tmp_path / module).touch()
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from effects.cli import main; sys.exit(main(['doctor']))"
    command = [sys.executable, "-P", "-c", code]  # as the installed command, which does not look in its folder
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert done.returncode == len(failed) == module.endswith(".py")  # a folder of data hides no package
    assert all(str(tmp_path / module) in line and "Rename that file or folder" in line for line in failed)
    assert f"pages: {ROOT / 'docs'}" in done.stdout


@pytest.mark.parametrize(("name", "library"), [("nnx_jit", "flax"), ("filter_jit", "equinox")])
def test_jit_of_a_library_that_is_not_installed(name, library, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModuleNotFoundError, match=rf"`fx\.{name}` needs {library}, .* pip install {library}"):
        getattr(fx, name)(lambda x: x)


@pytest.fixture
def builds(tmp_path):
    """A command that asks the build backend what a wheel is built with. scikit-build-core is there when pip builds."""
    (tmp_path / "scikit_build_core").mkdir()
    (tmp_path / "scikit_build_core/build.py").write_text(
        "def get_requires_for_build_wheel(settings):\n  return ['cmake']"
    )
    code = f"import sys; sys.path[:0] = {[str(tmp_path), str(ROOT)]!r}; import build_backend"
    return [sys.executable, "-I", "-S", "-c", f"{code}; print(build_backend.get_requires_for_build_wheel())"]


def test_missing_compiler_is_reported_ahead_of_downloads(builds, tmp_path):
    environment = {**os.environ, "CXX": str(tmp_path / "no-compiler")}
    done = subprocess.run(builds, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("No C++ compiler was found. token-effects has a native part")
    for variable in ("c++ -m64", ""):
        done = subprocess.run(builds, env={**os.environ, "CXX": variable}, capture_output=True, text=True, timeout=120)
        assert done.stdout == "['cmake', \"jax>=0.10,<0.11; python_version >= '3.11'\"]\n", done.stderr


def test_build_says_on_the_terminal_how_long_it_takes(builds):
    """Also where an installer keeps what the build prints."""
    spawn = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    command = [sys.executable, "-c", spawn, "sh", "-c", '"$@" > /dev/null', "sh", *builds]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    message = "token-effects: its native part is compiled, which takes about a minute on two cores."
    assert " ".join(done.stdout.split()) == message


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
