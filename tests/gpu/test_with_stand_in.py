"""Programs with CUDA's handlers, end to end, with a stand-in for the driver: see `tests/gpu/stand_in.py`."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.helpers import ROOT

SUITES = {
    "programs": ["tests/gpu/programs.py"],
    "regions": ["tests/lowering/regions/test_regions.py", "tests/lowering/test_whole_values.py"],
}


@pytest.mark.parametrize("suite", SUITES)
def test_suites_pass_with_the_stand_in(suite):
    """Tests that know nothing of GPUs pass, and the stand-in has nothing to complain of."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.gpu.stand_in"]
    done = subprocess.run(
        [*command, *SUITES[suite]], cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"^\d+ passed", done.stdout.splitlines()[-1])
