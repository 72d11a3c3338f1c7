"""The native library keeps its promises: each test of `native/` runs and exits with 0 under the sanitizers."""

import functools
import platform
import re
import shutil
import subprocess
from pathlib import Path

import jax
import pytest

import effects as fx
from tests.helpers import build_library, find_compiler, link_program

NATIVE = Path(__file__).parent / "native"
LIBRARY = NATIVE.parents[1] / "dispatch" / "native"
FOLDERS = ("producer", "order", "drain", "xla")  # of the library that the Python module, too, is linked with
USE_XLA = ("custom_call_test.cc", "overlay_test.cc")
TESTS = sorted(NATIVE.glob("*_test.cc"))
NAMES = [f"{file.stem}.{name}" for file in TESTS for name in re.findall(r"^TEST\((\w+)\)", file.read_text(), re.M)]
FLAGS = ["-O1", "-g1", "-pthread"]  # lines for reports; with -g the compiler tracks variables, twenty times as long
SANITIZERS = {
    "thread": ["-fsanitize=thread"],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
}
RUN_SECONDS = 240  # far above what any of them takes: only a hang reaches it


def _run(command: list[str | Path], seconds: int) -> tuple[int, str]:
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=seconds
        )
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout or b""
        return -1, f"still running after {seconds} s\n{output if isinstance(output, str) else output.decode()}"
    return done.returncode, done.stdout


def _flags(sanitizer: str) -> list[str]:
    compiler = find_compiler()
    flags = FLAGS + SANITIZERS[sanitizer]
    # g++ warns that its thread sanitizer does not model std::atomic_thread_fence (clang knows neither the warning nor
    # its name). The fences in producer_ring.h order only accesses to atomics, so no data race can be reported for want
    # of them, and none is: nothing is suppressed but the warning.
    if sanitizer == "thread" and "clang" not in _run([*compiler, "--version"], RUN_SECONDS)[1]:
        flags = [*flags, "-Wno-tsan"]
    return flags


@functools.cache
def _build(sanitizer: str) -> Path:
    """The program of all tests, linked with the library, which is compiled under the same sanitizer."""
    flags = _flags(sanitizer)
    headers = [
        *NATIVE.glob("*.h"),
        LIBRARY / "wire.h",
        *(header for folder in FOLDERS for header in (LIBRARY / folder).glob("*.h")),
        *Path(fx.include_dir()).rglob("*.h"),
    ]
    includes = ["-I", fx.include_dir(), "-isystem", jax.ffi.include_dir()]

    def of_xla(source: Path) -> str:  # the others do not include XLA's headers
        return jax.__version__ if source.parent.name == "xla" or source.name in USE_XLA else ""

    in_library = [source for folder in FOLDERS for source in sorted((LIBRARY / folder).glob("*.cc"))]
    library = build_library("native", in_library, flags, includes, headers, of_xla)
    sources = [NATIVE / "main.cc", NATIVE / "world.cc", *TESTS]
    tests = build_library("native-tests", sources, flags, includes, headers, of_xla)
    return link_program("native-tests", [tests, library], flags)


@functools.cache
def _cannot_start(binary: Path) -> bool:
    """Whether an older compiler's sanitizer cannot start here, where the kernel randomizes many address bits."""
    return "unexpected memory mapping" in _run([binary, "--list"], RUN_SECONDS)[1] and bool(shutil.which("setarch"))


def _run_binary(sanitizer: str, argument: str) -> tuple[int, str]:
    binary = _build(sanitizer)
    randomized = ["setarch", platform.machine(), "-R"] if _cannot_start(binary) else []
    return _run([*randomized, binary, argument], RUN_SECONDS)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_native_tests_are_all_collected(sanitizer: str) -> None:
    """The names that are read from the sources are those that the program has."""
    code, output = _run_binary(sanitizer, "--list")
    assert (code, sorted(output.split())) == (0, sorted(NAMES))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_native_passes_under_sanitizer(name: str, sanitizer: str) -> None:
    """A native test compiles without a warning and passes without a sanitizer's report."""
    code, output = _run_binary(sanitizer, name)
    assert code == 0, f"{name} under the {sanitizer} sanitizer: exit code {code}\n{output}"
