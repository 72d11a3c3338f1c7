"""Without the folder of asynchronous operations nothing but its names is gone, and `fx.inspect`, which needs them."""

from __future__ import annotations

import pytest

from tests.helpers import run_python
from tests.taken_out import ASKS_FOR_NAMES, copy_without, of_extensions

pytestmark = pytest.mark.slow

OWN = [
    *("Future", "all_gather_start", "all_to_all_start", "async_callback", "async_done", "async_start", "async_update"),
    *("copy_start", "ppermute_start", "psum_scatter_start", "psum_start"),
]
NEEDS_IT = ["InspectedOperation", "Inspection", "TextError", "inspect", "parse"]

KERNEL = """
import jax.experimental.pallas as pl

def kernel(x_ref, o_ref):
    fx.print("program {}", pl.program_id(0))
    o_ref[...] = x_ref[...] + 1

call = pl.pallas_call(kernel, jax.ShapeDtypeStruct((2,), "float32"), grid=(2,), interpret=True)
fx.jit(call)(jax.numpy.zeros(2))
fx.effects_barrier()
"""


def test_names(tmp_path):
    """Every other name is there, and its own say which extension is not installed."""
    copy_without(tmp_path, "asynchronous")
    done = run_python(ASKS_FOR_NAMES, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"{name}:asynchronous" for name in sorted([*OWN, *NEEDS_IT])]
    assert {*OWN} == of_extensions("asynchronous") and {*NEEDS_IT} == of_extensions("inspecting")


def test_kernels(tmp_path):
    """Pallas can be imported, and kernels have their effects."""
    copy_without(tmp_path, "asynchronous")
    done = run_python(f"import jax\nimport effects as fx\n{KERNEL}", cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout) == (0, "program 0\nprogram 1\n"), done.stderr


@pytest.mark.parametrize("module", ["effects", "effects.asynchronous"])
def test_import_of_a_name(module, tmp_path):
    """An import of the name has the same message."""
    copy_without(tmp_path, "asynchronous")
    done = run_python(f"from {module} import async_start", cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    message = "ImportError: `async_start` needs the extension `asynchronous`, which is not installed. "
    assert message in done.stderr.splitlines()[-1]
