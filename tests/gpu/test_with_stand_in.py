"""Programs with CUDA's handlers, end to end, with a stand-in for the driver: see `tests/gpu/stand_in.py`."""

from __future__ import annotations

import pytest

from tests.gpu.suites import assert_passes

SUITES = {
    "programs": ["tests/gpu/programs.py", "tests/gpu/operations.py"],
    "custom_calls": [
        *("tests/lowering/custom_call/test_custom_call.py", "tests/lowering/custom_call/test_calls_return_early.py"),
        "tests/lowering/custom_call/test_errors.py",
        "-k=not for_which_others_wait",
    ],
}


CASES = [*((suite, "host_function") for suite in SUITES), ("programs", "kernel")]
"""Which suite, and how the host learns of records."""


@pytest.mark.parametrize("suite, records", CASES)
def test_suites_pass_with_the_stand_in(suite, records):
    """Tests that know nothing of GPUs pass, and the stand-in has nothing to complain of."""
    assert_passes(["-p", "tests.gpu.stand_in", *SUITES[suite]], {"EFFECTS_GPU_RECORDS": records})
