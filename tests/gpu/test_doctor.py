"""What `effects doctor` says of NVIDIA's driver: on a machine without one, and with the stand-in."""

from __future__ import annotations

import pytest

from tests.gpu.library import build_stand_in
from tests.helpers import run_python

CODE = """
import sys
import jax
from effects import _doctor, _native
library = {library!r}
if library:
    _native.use_cuda_driver(library)
{more}
print(dict(_doctor._facts())["NVIDIA's driver"])
"""


def _said(library: str, more: str = "") -> str:
    done = run_python(CODE.format(library=library, more=more))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_no_driver():
    """It says which library it has looked for, and what comes of that."""
    said = _said("no-such-driver.so")
    assert said.startswith("no-such-driver.so. It cannot be opened: ")
    assert said.endswith("JAX has no NVIDIA GPU here; on one, effects would come by JAX's Python callbacks.")


def test_stand_in():
    """A driver that can be used is shown with its version."""
    library = str(build_stand_in())
    said = _said(library)
    here = "JAX has no NVIDIA GPU here; on one, effects would come by native handlers."
    assert said == f"{library}, CUDA 12.4. It can be used. {here}"


@pytest.mark.parametrize("version", [10020, 9000])
def test_old_driver(version):
    """The doctor says that a driver is too old."""
    library = str(build_stand_in())
    more = f"import ctypes; ctypes.CDLL(library).StandIn_SetVersion({version}); _native.use_cuda_driver(library)"
    said = _said(library, more)
    shown = f"{version // 1000}.{version % 1000 // 10}"
    assert f"CUDA {shown}. It is of CUDA {shown}, and 11.0 is the oldest that can be used." in said
    assert "JAX's Python callbacks" in said
