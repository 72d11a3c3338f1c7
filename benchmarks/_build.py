"""Native code that benchmarks call, compiled when it is needed."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax

import effects as fx


@contextlib.contextmanager
def built(source: Path) -> Iterator[Path]:
    """A shared library of a source, for the time of a `with` block."""
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        raise SystemExit("This benchmark has native code of its own. It is compiled first. Install a C++ compiler.")
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, f"{source.stem}.so")
        includes = ["-I", fx.include_dir(), "-isystem", jax.ffi.include_dir()]
        subprocess.run([compiler, "-std=c++17", "-O2", "-shared", "-fPIC", "-o", result, source, *includes], check=True)
        yield result


@functools.cache
def library(source: Path) -> ctypes.CDLL:
    """The handlers in a source."""
    with built(source) as result:
        return ctypes.CDLL(str(result))
