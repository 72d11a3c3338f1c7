"""Programs for CUDA as JAX's plugin compiles and runs them, on GPUs that are simulated: see `tests/gpu/simulated`."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.gpu.simulated.environment import NoPlugin, environment
from tests.helpers import ROOT

ASYNCHRONOUS = "tests/lowering/asynchronous"
SUITES = {
    "programs": ["tests/gpu/test_on_gpu.py"],
    "kernels": ["tests/lowering/kernels/test_on_gpu.py"],
    "regions": ["tests/lowering/regions/test_regions.py", "tests/lowering/test_whole_values.py"],
    "asynchronous": [
        *(f"{ASYNCHRONOUS}/test_{name}.py" for name in ("lanes_and_turns", "several_devices", "placement")),
        f"{ASYNCHRONOUS}/test_callbacks.py",
        # XLA ends a process in which a device never comes to a collective. The other is an error of its program, later.
        "-k=not keeps_no_other_waiting and not forged_ticket",
    ],
}
CASES = [
    *(("programs", gpus, records) for gpus in (1, 4) for records in ("host_function", "kernel")),
    ("kernels", 1, "host_function"),
    *(("regions", 4, records) for records in ("host_function", "kernel")),
    ("asynchronous", 4, "host_function"),
]
"""Which suite, on how many GPUs, and how the host learns of records."""


@pytest.mark.parametrize("suite, gpus, records", CASES)
def test_suites_pass_on_simulated_gpus(suite, gpus, records):
    """What a GPU would have been given is right, and in the right order."""
    try:
        variables = environment(gpus)
    except NoPlugin as error:
        pytest.skip(str(error))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SUITES[suite]],
        env={**os.environ, **variables, "EFFECTS_GPU_RECORDS": records},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"^\d+ passed", done.stdout.splitlines()[-1])
