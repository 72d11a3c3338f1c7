"""Programs with CUDA's handlers, end to end, with a stand-in for the driver: see `tests/gpu/stand_in.py`."""

from __future__ import annotations

import pytest

from tests.gpu.suites import assert_passes
from tests.helpers import run_python

SUITES = {
    "programs": ["tests/gpu/programs.py", "tests/gpu/operations.py"],
    "custom_calls": [
        *(
            "tests/extensions/custom_calls/test_custom_call.py",
            "tests/extensions/custom_calls/test_calls_return_early.py",
        ),
        "tests/extensions/custom_calls/test_errors.py",
        "-k=not for_which_others_wait",
    ],
}


@pytest.mark.parametrize("suite", SUITES)
def test_suites_pass_with_the_stand_in(suite):
    """Tests that know nothing of GPUs pass, and the stand-in has nothing to complain of."""
    assert_passes(["-p", "tests.gpu.stand_in", *SUITES[suite]], {})


NO_KERNEL = """
from tests.gpu import stand_in
import jax.numpy as jnp
import effects as fx

stand_in.library().StandIn_FailCall(b"cuModuleLoadData", 0, 221)
f = fx.jit(lambda x: fx.print("{}", x))
for i in range(3):
    f(jnp.int32(i))
fx.effects_barrier()
"""


def test_without_the_kernel_host_functions_are_used():
    """Where the driver does not compile the kernel, a line in the log says so, and nothing is lost."""
    done = run_python(NO_KERNEL)
    assert (done.returncode, done.stdout.split()) == (0, ["0", "1", "2"]), done.stderr[-2000:]
    (line,) = (line for line in done.stderr.splitlines() if "`cuModuleLoadData` failed with error 221" in line)
    assert "host functions are used" in line
