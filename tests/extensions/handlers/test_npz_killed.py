"""Records that were written are not lost when the process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np

import effects as fx
from tests.extensions.handlers.common import read_npz
from tests.helpers import ROOT

KILLED = """
import itertools, sys
import jax, jax.numpy as jnp
import effects as fx
fx.add_handler(fx.NpzHandler({path!r}, append=True, every=0), "log")
run = fx.jit(lambda first: jax.lax.fori_loop(0, 500, lambda i, _: fx.log("step", i=first + i, x=jnp.ones(20)), None))
for first in itertools.count({first}, 500):
    run(first)
    fx.effects_barrier()
    print(first + 500, flush=True)
"""


def test_npz_of_a_killed_process_has_all_complete_pieces(tmp_path):
    """Whatever it was doing, what it had said was written is there; and another one goes on."""
    path, written = tmp_path / "run.npz", 0
    for lines in (1, 30, 7):
        code = KILLED.format(path=str(path), first=written)
        with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            for _ in range(lines):
                said = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
        read = read_npz(path)
        written = len(read["step/i"])
        assert written >= said
        np.testing.assert_array_equal(read["step/i"], np.arange(written))
        assert read["step/x"].shape == (written, 20) and read["step/token"].shape == (written, 4)
    fx.NpzHandler(path, append=True).close()
    assert os.listdir(tmp_path) == ["run.npz"]
    with np.load(path) as arrays:
        np.testing.assert_array_equal(arrays["step/i"], np.arange(written))
