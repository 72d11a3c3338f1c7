"""The stand-in for NVIDIA's driver, as a library."""

from __future__ import annotations

from pathlib import Path

import jax

FOLDER = Path(__file__).parents[1] / "native" / "driver"


def build_stand_in(*more: str) -> Path:
    """The library of the stand-in, with these sources beside it. In a process that has loaded it, it is what the name
    of NVIDIA's driver means."""
    from tests.helpers import build_once  # which imports `effects`, and the plugin must come before that

    includes = ["-I", str(FOLDER), "-isystem", jax.ffi.include_dir(), *(str(FOLDER / name) for name in more)]
    flags = ["-O1", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1"]
    return build_once(FOLDER / "stand_in.cc", flags, includes, FOLDER.iterdir(), f"{jax.__version__} {more}")
