"""What several tests need."""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import pytest

import effects as fx

ROOT = Path(__file__).parents[1]


def run_python(
    code: str, *, env: dict[str, str] | None = None, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Runs code in an interpreter of its own, from the source tree."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def find_compiler() -> list[str]:
    """The command of a C++ compiler; without one the test is skipped."""
    command = shlex.split(os.environ.get("CXX", ""))
    if not command:
        command = [found] if (found := shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")) else []
    if not command or shutil.which(command[0]) is None:
        pytest.skip("no C++ compiler; set CXX")
    return command


@functools.cache
def build_handlers() -> Path:
    """The library of the handlers in native/custom_calls.cc. Built once for all processes."""
    source, header = ROOT / "tests/native/custom_calls.cc", Path(fx.include_dir(), "token_effects/custom_call.h")
    content = hashlib.blake2b(source.read_bytes() + header.read_bytes() + jax.__version__.encode(), digest_size=8)
    library = Path(tempfile.gettempdir(), f"token-effects-{os.getuid()}-{content.hexdigest()}.so")
    if library.exists():
        return library
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, "handlers.so")
        command = [*find_compiler(), "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        includes = ["-I", fx.include_dir(), "-isystem", jax.ffi.include_dir()]
        done = subprocess.run([*command, "-o", built, source, *includes], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        partial = library.with_suffix(f".{os.getpid()}")
        shutil.copy(built, partial)
        partial.replace(library)  # others see all of it or nothing
    return library
