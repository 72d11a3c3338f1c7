"""The native library keeps its promises: each test of `native/` runs and exits with 0 under the sanitizers."""

import functools
import platform
import shutil
from pathlib import Path

import pytest

from tests.helpers import find_compiler
from tests.native_program import FLAGS, TESTS, WITH_THREADS, build, names_of, run

pytestmark = pytest.mark.slow

SANITIZERS = {
    "thread": ["-fsanitize=thread"],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
}
TESTS_OF = {"thread": WITH_THREADS, "address": TESTS}
NAMES_OF = {sanitizer: names_of(tests) for sanitizer, tests in TESTS_OF.items()}


def _flags(sanitizer: str) -> list[str]:
    compiler = find_compiler()
    flags = FLAGS + SANITIZERS[sanitizer]
    # g++ warns that its thread sanitizer does not model std::atomic_thread_fence (clang knows neither the warning nor
    # its name). The fences in producer_ring.h order only accesses to atomics, so no data race can be reported for want
    # of them, and none is: nothing is suppressed but the warning.
    if sanitizer == "thread" and "clang" not in run([*compiler, "--version"])[1]:
        flags = [*flags, "-Wno-tsan"]
    return flags


@functools.cache
def _build(sanitizer: str) -> Path:
    return build(_flags(sanitizer), TESTS_OF[sanitizer])


@functools.cache
def _cannot_start(binary: Path) -> bool:
    """Whether an older compiler's sanitizer cannot start here, where the kernel randomizes many address bits."""
    return "unexpected memory mapping" in run([binary, "--list"])[1] and bool(shutil.which("setarch"))


def _run_binary(sanitizer: str, argument: str) -> tuple[int, str]:
    binary = _build(sanitizer)
    randomized = ["setarch", platform.machine(), "-R"] if _cannot_start(binary) else []
    return run([*randomized, binary, argument])


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_native_tests_are_all_collected(sanitizer: str) -> None:
    """The names that are read from the sources are those that the program has."""
    code, output = _run_binary(sanitizer, "--list")
    assert (code, sorted(output.split())) == (0, sorted(NAMES_OF[sanitizer]))


@pytest.mark.parametrize("sanitizer, name", [(each, name) for each, names in NAMES_OF.items() for name in names])
def test_native_passes_under_sanitizer(sanitizer: str, name: str) -> None:
    """A native test compiles without a warning and passes without a sanitizer's report."""
    code, output = _run_binary(sanitizer, name)
    assert code == 0, f"{name} under the {sanitizer} sanitizer: exit code {code}\n{output}"
