"""The C++ headers keep their promises: each test of `native/` compiles, runs and exits with 0 under the sanitizers."""

import platform
import shutil
import subprocess
from pathlib import Path

import jax
import pytest

import effects as fx
from tests.helpers import build_once, find_compiler

NATIVE = Path(__file__).parent / "native"
HEADERS = NATIVE.parents[1] / "dispatch" / "native"
FLAGS = ["-O1", "-g", "-pthread"]
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
    # its name). The fences in publisher.h order only accesses to atomics, so no data race can be reported for want of
    # them, and none is: nothing is suppressed but the warning.
    if sanitizer == "thread" and "clang" not in _run([*compiler, "--version"], RUN_SECONDS)[1]:
        flags = [*flags, "-Wno-tsan"]
    return flags


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize(
    "test",
    ["ring_test", "order_test", "region_test", "replies_test", "sites_test", "publisher_test", "custom_call_test"],
)
def test_native_passes_under_sanitizer(test: str, sanitizer: str) -> None:
    """A native test compiles without a warning and passes without a sanitizer's report."""
    others = [*NATIVE.glob("*.h"), *HEADERS.glob("*.h"), *HEADERS.glob("*.cc"), *Path(fx.include_dir()).rglob("*.h")]
    of_xla = jax.__version__ if test == "custom_call_test" else ""
    includes = ["-I", fx.include_dir(), "-isystem", jax.ffi.include_dir()]
    binary = build_once(NATIVE / f"{test}.cc", _flags(sanitizer), includes, others, of_xla)
    code, output = _run([binary], RUN_SECONDS)
    if "unexpected memory mapping" in output and shutil.which("setarch"):
        # The thread sanitizer's runtime of older compilers cannot start where the kernel randomizes many address bits.
        code, output = _run(["setarch", platform.machine(), "-R", binary], RUN_SECONDS)
    assert code == 0, f"{test} under the {sanitizer} sanitizer: exit code {code}\n{output}"
