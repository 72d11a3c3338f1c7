"""The program of the native tests in `native/`: what it is built of, and how it is built and run."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import jax

import effects as fx
from tests.helpers import build_library, compile_unit, link, link_program

NATIVE = Path(__file__).parent / "native"
ROOT = NATIVE.parents[1]
LIBRARY = ROOT / "dispatch" / "native"
FOLDERS = [  # of the library that the module, too, is linked with
    *(LIBRARY / name for name in ("producer", "order", "drain", "text", "xla")),
    *(ROOT / "extensions" / name / "native" for name in ("asynchronous", "custom_calls", "cuda", "runs")),
]
IN_ALL = (NATIVE / "main.cc", NATIVE / "world.cc", NATIVE / "cuda_world.cc", NATIVE / "driver" / "stand_in.cc")
USE_XLA = ("cuda", "custom_call", "overlay")  # with these their names begin
TESTS = sorted(NATIVE.glob("*_test.cc"))
# Tests in files whose names begin so start no thread, and the thread sanitizer could find nothing in them.
HAVE_ONE_THREAD = ("custom_call", "order", "region", "text")
WITH_THREADS = [test for test in TESTS if not test.name.startswith(HAVE_ONE_THREAD)]
FLAGS = ["-O0", "-g1", "-pthread"]  # lines for reports; to optimize or to track variables takes twice as long or more
RUN_SECONDS = 240  # far above what any of them takes: only a hang reaches it


def names_of(tests: Iterable[Path]) -> list[str]:
    """The names of the tests in these files."""
    return [f"{file.stem}.{name}" for file in tests for name in re.findall(r"^TEST\((\w+)\)", file.read_text(), re.M)]


NAMES = names_of(TESTS)


def run(command: Sequence[str | Path], seconds: int = RUN_SECONDS) -> tuple[int, str]:
    """The exit code and the output of a command; -1 if it was still running."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=seconds
        )
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout or b""
        return -1, f"still running after {seconds} s\n{output if isinstance(output, str) else output.decode()}"
    return done.returncode, done.stdout


def _includes() -> list[str]:
    return ["-I", str(ROOT), "-I", fx.include_dir(), "-isystem", jax.ffi.include_dir()]


def _libraries(flags: Sequence[str], tests: Sequence[Path] = TESTS) -> tuple[Path, Path]:
    """The tests, and the library that they test, each compiled in a few units: most of what a source takes is what it
    includes. Each test file has a namespace of its own, so that names do not clash."""
    headers = [
        *NATIVE.rglob("*.h"),
        LIBRARY / "wire.h",
        *(header for folder in FOLDERS for header in folder.glob("*.h")),
        *Path(fx.include_dir()).rglob("*.h"),
    ]

    def of_xla(unit: Sequence[Path]) -> str:  # the others do not include XLA's headers
        return jax.__version__ if any(_uses_xla(source) for source in unit) else ""

    in_library = [_sources(folder) for folder in FOLDERS]
    library = build_library("native", in_library, flags, _includes(), headers, of_xla)
    with_xla = [source for source in tests if _uses_xla(source)]
    others = [source for source in tests if source not in with_xla]
    units = [IN_ALL, with_xla, others[::2], others[1::2]]
    return build_library("native-tests", units, flags, _includes(), headers, of_xla), library


def _uses_xla(source: Path) -> bool:
    return source.parent in FOLDERS[4:] or source.name.startswith(USE_XLA)


def _sources(folder: Path) -> list[Path]:
    """Those that need no Python."""
    return sorted(source for source in folder.glob("*.cc") if source.name != "python.cc")


def build(flags: Sequence[str], tests: Sequence[Path] = TESTS) -> Path:
    """The program of these tests, linked with the library, both compiled with these flags."""
    return link_program("native-tests", _libraries(flags, tests), flags)


def build_with(source: Path, folder: Path) -> Path:
    """The program without sanitizers, with another version of one of the library's folders.

    A linker takes from a library only what it has not found before, and so leaves out the library's own version.
    """
    tests, library = _libraries(FLAGS)
    version, program = folder / f"{source.stem}.o", folder / "native-tests"
    unit = _sources(source.parent)
    compile_unit(unit, [*FLAGS, "-w"], _includes(), version)  # whatever it is, it is the tests' to complain
    link([tests, version, library], FLAGS, program)
    return program
