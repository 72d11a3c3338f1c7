"""`effects show --last` names the line to which a device of a hung job has not come."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.processes import run_processes

pytestmark = pytest.mark.slow

# Process 3 leaves out the sum of its third step, for which the others wait. It kills them once they do.
MISSES_A_SUM = """
start()
import os, signal, time
import jax.numpy as jnp, numpy as np, effects as fx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

FOLDER = {folder!r}
with open(os.path.join(FOLDER, f"{{PROCESS}}.pid"), "w") as file:
    file.write(str(os.getpid()))
recording = fx.record(os.path.join(FOLDER, f"{{PROCESS}}.fx"))
mesh = jax.make_mesh((PROCESSES,), ("d",), axis_types=(AxisType.Auto,))

@fx.jit
def forward(x, i):
    fx.log("loss", step=i)
    return x + 1

@fx.jit
def sum_of_all(x):
    total = jax.shard_map(lambda x: jax.lax.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P())(x)
    fx.log("total", of=total[0])
    return total

x = jax.make_array_from_callback((PROCESSES,), NamedSharding(mesh, P("d")), lambda index: np.arange(4.0)[index])
for i in range(2):
    sum_of_all(forward(x, i)).block_until_ready()
x = forward(x, 2)
if PROCESS < 3:
    sum_of_all(x).block_until_ready()
files = [os.path.join(FOLDER, f"{{each}}.fx") for each in range(3)]
waiting = lambda run: [e.text for e in run.events() if e.kind == fx.runs.Kind.DISPATCHED].count("sum_of_all") == 3
while not all(waiting(fx.runs.read(file)) for file in files):
    pass
report["ended"] = True
write_report()
for each in range(3):
    with open(os.path.join(FOLDER, f"{{each}}.pid")) as file:
        os.kill(int(file.read()), signal.SIGKILL)
os._exit(0)
"""


def test_device_that_misses_a_collective_is_named(tmp_path):
    processes = run_processes(MISSES_A_SUM.format(folder=str(tmp_path)), 4, timeout=60)
    assert processes[3].report.get("ended"), processes[3].output
    shown = subprocess.run(
        [sys.executable, "-m", "effects", "show", "--last", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stderr
    for process in range(3):
        _, _, own = shown.stdout.partition(f"Process {process} ")
        assert "The program `sum_of_all` (thread 1, dispatch 5), called " in own
        assert "Process 3 has not called it; its newest call is dispatch 4, `forward`." in own
    assert "the `log` at <string>:" in shown.stdout.partition("\nProcess 3 ")[2]
