"""What `effects doctor` says of NVIDIA's driver: on a machine without one, and with the stand-in."""

from __future__ import annotations

import pytest

from tests.gpu.library import build_stand_in
from tests.helpers import run_python

pytestmark = pytest.mark.slow

CODE = """
import ctypes, jax
{before}
from effects import _doctor
print(dict(_doctor._facts()).get("NVIDIA's driver"))
"""


def _said(before: str = "", **env: str) -> str:
    done = run_python(CODE.format(before=before), env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _stand_in(more: str = "") -> str:
    return f"ctypes.CDLL({str(build_stand_in())!r}){more}"


def test_no_driver(tmp_path):
    """Without a GPU it is no fault, and not named."""
    (tmp_path / "libcuda.so.1").write_bytes(b"no library")  # found ahead of a driver that is here
    assert _said(LD_LIBRARY_PATH=str(tmp_path)) == "None"


def test_stand_in():
    """A driver that can be used is shown with its version."""
    said = _said(_stand_in())
    assert said == "libcuda.so.1, CUDA 12.4. It can be used. Effects come from GPUs by native handlers."


@pytest.mark.parametrize("version", [10020, 9000])
def test_old_driver(version):
    """The doctor says that a driver is too old."""
    said = _said(_stand_in(f".StandIn_SetVersion({version})"))
    shown = f"{version // 1000}.{version % 1000 // 10}"
    assert f"CUDA {shown}. It is of CUDA {shown}, and 11.0 is the oldest that can be used." in said
    assert "JAX's Python callbacks" in said
