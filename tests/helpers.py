"""What several tests need."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import hashlib
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import pytest

import effects as fx

ROOT = Path(__file__).parents[1]
NO_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""Variables with which pytest starts a second sooner: it imports none of the plugins that are installed."""


def public_names() -> set[str]:
    """What users find under `fx.`, modules apart."""
    names = [name for name in {*vars(fx), *fx._LATER} if name[0] not in "_@"]  # @: pytest rewrites plugins' packages
    return {name for name in names if not isinstance(getattr(fx, name), types.ModuleType)}


def first_steps(what: str) -> str:
    """What `.ci/first_steps.py` finds in the README."""
    command = [sys.executable, ROOT / ".ci/first_steps.py", what]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def meet_barrier() -> None:
    """Waits for all effects of this thread, or fails."""
    fx.effects_barrier(timeout=120)


def let_go(kept: Callable[[], Any]) -> None:
    """Waits until what is `kept` of programs that are gone is nothing, or fails. The drain forgets their sites when it
    next has something to do, perhaps after the barrier."""
    for _ in range(50):
        gc.collect()
        if not (left := kept()):
            return
        with contextlib.redirect_stdout(io.StringIO()):
            fx.print("")
            meet_barrier()
    raise AssertionError(left)


def output_of(jit: Callable[..., Any], f: Callable[..., Any], *args: Any) -> str:
    """What a program prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        jit(f)(*args)
        jax.effects_barrier()
    return out.getvalue()


def run_python(
    code: str, *, env: dict[str, str] | None = None, timeout: float = 240, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Runs code in an interpreter of its own, from the source tree or from another one."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


_EACH = """
import json, os, sys, tempfile, traceback, warnings
import jax

warnings.simplefilter("ignore")  # JAX warns of forks
shown = {}
for name, code in json.loads(sys.stdin.read()).items():
    with tempfile.TemporaryFile("w+") as output:
        if (child := os.fork()) == 0:
            status = 1
            try:
                os.dup2(output.fileno(), 1), os.dup2(output.fileno(), 2)
                exec(compile(code, "<string>", "exec"), {"__name__": "__main__", "jax": jax})
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        shown[name] = [status, output.read()]
print(json.dumps(shown))
"""


def run_each_after_jax(codes: Mapping[str, str]) -> dict[str, tuple[int, str]]:
    """Runs each code in a process of its own that has imported JAX, as `jax`, and not this library. They are forked off
    one interpreter, since to start one takes a second. Returns the status of each, and what it has written."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", _EACH],
        cwd=ROOT,
        input=json.dumps(codes),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name: (status, output) for name, (status, output) in json.loads(done.stdout).items()}


def find_compiler() -> list[str]:
    """The command of a C++ compiler; without one the test is skipped."""
    command = shlex.split(os.environ.get("CXX", ""))
    if not command:
        command = [found] if (found := shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")) else []
    if not command or shutil.which(command[0]) is None:
        pytest.skip("no C++ compiler; set CXX")
    return command


def build_once(
    source: Path, flags: Sequence[str], includes: Sequence[str], others: Iterable[Path], more: str = ""
) -> Path:
    """What the compiler makes of a source, once for all workers and interpreters.

    `others` are the files that it includes, and `more` is what else tells results apart. Warnings are errors.
    """
    result = _cached(source.stem, [source, *others], [*flags, more])
    with open(result.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers that want the same wait for the first of them
        if not result.exists():
            _compile([*flags, source, *includes], result)
    return result


def build_library(
    name: str,
    units: Sequence[Sequence[Path]],
    flags: Sequence[str],
    includes: Sequence[str],
    headers: Iterable[Path],
    more: Callable[[Sequence[Path]], str],
) -> Path:
    """A static library of several units, each of which is compiled once, side by side with the others.

    A unit is sources that are compiled as one, and `more` says for it what else tells its result apart. Of processes
    that come at one time, one builds and the others wait.
    """
    headers = list(headers)
    objects = [(_cached(f"{unit[0].stem}.o", [*unit, *headers], [*flags, more(unit)]), unit) for unit in units]
    result = _cached(f"{name}.a", [made for made, _ in objects], flags, of_contents=False)
    with open(_cached(f"{name}.lock", [], flags), "w") as lock:  # of all versions: they have most units in common
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            missing = [(made, unit) for made, unit in objects if not made.exists()]
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                list(threads.map(lambda one: compile_unit(one[1], flags, includes, one[0]), missing))
            _make([os.environ.get("AR", "ar"), "rcs"], [made for made, _ in objects], result)
    return result


def link_program(name: str, libraries: Sequence[Path], flags: Sequence[str]) -> Path:
    """The program that these libraries make, once for all workers: see `link`."""
    result = _cached(name, libraries, flags, of_contents=False)
    with open(_cached(f"{name}.lock", [], flags), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            link(libraries, flags, result)
    return result


def link(libraries: Sequence[Path], flags: Sequence[str], result: Path) -> None:
    """Makes a program of these libraries. All of the first one is in it; of the others, what is needed."""
    whole, *others = libraries
    _compile([*flags, "-Wl,--whole-archive", whole, "-Wl,--no-whole-archive", *others], result)


def compile_unit(sources: Sequence[Path], flags: Sequence[str], includes: Sequence[str], result: Path) -> None:
    """Makes one object file of some sources, which are compiled as one."""
    unit = "".join(f'#include "{source}"\n' for source in sources)
    _compile([*flags, "-c", "-x", "c++", "-", *includes], result, unit)


def _cached(name: str, inputs: Iterable[Path], flags: Sequence[str], of_contents: bool = True) -> Path:
    """Where the result of these inputs lies, which it is told apart by."""
    content = hashlib.blake2b(digest_size=8)
    for path in sorted(inputs):
        content.update(path.read_bytes() if of_contents else str(path).encode())
    content.update(repr((find_compiler(), list(flags))).encode())
    return Path(tempfile.gettempdir(), f"token-effects-{os.getuid()}-{name}-{content.hexdigest()}")


def _compile(arguments: Sequence[str | Path], result: Path, source: str | None = None) -> None:
    _make([*find_compiler(), "-std=c++17", "-Wall", "-Wextra", "-Werror", *arguments, "-o"], [], result, source)


def _make(before: Sequence[str | Path], after: Sequence[Path], result: Path, text: str | None = None) -> None:
    """Runs a command that names its result between these arguments, and reads this text."""
    partial = result.with_name(f"{result.name}.{os.getpid()}")
    command = [*before, partial, *after]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(map(str, command))}\n{done.stdout}{done.stderr[-3000:]}"
    partial.replace(result)  # others see all of it or nothing


@functools.cache
def build_handlers() -> Path:
    """The library of the handlers in native/custom_calls.cc."""
    header = Path(fx.include_dir(), "token_effects/custom_call.h")
    includes = ["-I", fx.include_dir(), "-isystem", jax.ffi.include_dir()]
    source = ROOT / "tests/native/custom_calls.cc"
    return build_once(source, ["-O1", "-shared", "-fPIC"], includes, [header], jax.__version__)


@functools.cache
def build_gate() -> Path:
    """The library of native/gate.cc."""
    includes = ["-isystem", jax.ffi.include_dir()]
    return build_once(ROOT / "tests/native/gate.cc", ["-O1", "-shared", "-fPIC"], includes, [], jax.__version__)
