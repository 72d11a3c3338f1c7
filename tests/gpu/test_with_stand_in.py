"""Programs with CUDA's handlers, end to end, with a stand-in for the driver: see `tests/gpu/stand_in.py`."""

from __future__ import annotations

import re

import pytest

from tests.gpu.suites import assert_passes
from tests.helpers import ROOT, run_python

pytestmark = pytest.mark.slow

CUSTOM_CALLS = "tests/extensions/custom_calls"
SUITE = [
    "tests/gpu/operations.py",
    *(f"{CUSTOM_CALLS}/test_{name}.py" for name in ("custom_call", "calls_return_early", "errors")),
    "-k=not (for_which_others_wait or native_code_prints_in_order or each_device_says_its_own or says_it_once "
    "or error_comes_behind)",
]
"""Tests that simulated GPUs can pass: none with a user's handler, which reads operands on the host. Lines of a GPU's
handlers have no order, and an error of such a handler may drop lines before it, as `docs/sharp-bits.md` says."""


def test_names_of_tests_that_are_left_out_are_those_of_tests():
    """A test that was renamed is no longer left out."""
    names = set(re.findall(r"\w+", SUITE[-1])) - {"k", "not", "or"}
    sources = "".join((ROOT / path).read_text() for path in SUITE[:-1])
    assert [name for name in sorted(names) if not re.search(rf"def test_\w*{name}", sources)] == []


def test_suite_passes_with_the_stand_in():
    """Tests that know nothing of GPUs pass, and the stand-in has nothing to complain of."""
    assert_passes(["-p", "tests.gpu.stand_in", *SUITE], {})


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
