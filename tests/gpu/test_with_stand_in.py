"""Programs with CUDA's handlers, end to end, with a stand-in for the driver: see `tests/gpu/stand_in.py`."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.helpers import ROOT

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
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.gpu.stand_in"]
    done = subprocess.run(
        [*command, *SUITES[suite]],
        env={**os.environ, "EFFECTS_GPU_RECORDS": records},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"^\d+ passed", done.stdout.splitlines()[-1])
