"""The C++ headers keep their promises: each test of `native/` compiles, runs and exits with 0 under the sanitizers."""

import platform
import shlex
import shutil
import subprocess
from pathlib import Path

import jax
import pytest

import effects as fx
from tests.helpers import find_compiler

NATIVE = Path(__file__).parent / "native"
FLAGS = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
FLAGS += ["-I", fx.include_dir(), "-isystem", jax.ffi.include_dir()]
SANITIZERS = {
    "thread": ["-fsanitize=thread"],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
}
COMPILE_SECONDS = 300
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


def _flags(compiler: list[str], sanitizer: str) -> list[str]:
    flags = FLAGS + SANITIZERS[sanitizer]
    # g++ warns that its thread sanitizer does not model std::atomic_thread_fence (clang knows neither the warning nor
    # its name). The fences in publisher.h order only accesses to atomics, so no data race can be reported for want of
    # them, and none is: nothing is suppressed but the warning.
    if sanitizer == "thread" and "clang" not in _run([*compiler, "--version"], COMPILE_SECONDS)[1]:
        flags = [*flags, "-Wno-tsan"]
    return flags


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize(
    "test",
    ["ring_test", "order_test", "region_test", "replies_test", "sites_test", "publisher_test", "custom_call_test"],
)
def test_native_passes_under_sanitizer(test: str, sanitizer: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A native test compiles without a warning and passes without a sanitizer's report."""
    compiler = find_compiler()
    binary = tmp_path_factory.mktemp("native") / test
    compile_command = [*compiler, *_flags(compiler, sanitizer), NATIVE / f"{test}.cc", "-o", binary]
    code, output = _run(compile_command, COMPILE_SECONDS)
    assert code == 0, f"{shlex.join(map(str, compile_command))}\n{output}"

    code, output = _run([binary], RUN_SECONDS)
    if "unexpected memory mapping" in output and shutil.which("setarch"):
        # The thread sanitizer's runtime of older compilers cannot start where the kernel randomizes many address bits.
        code, output = _run(["setarch", platform.machine(), "-R", binary], RUN_SECONDS)
    assert code == 0, f"{test} under the {sanitizer} sanitizer: exit code {code}\n{output}"
