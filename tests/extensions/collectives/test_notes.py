"""`effects run --collectives`: `effects show --last` names the device that has not come to what others wait for."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.helpers import ROOT, run_python
from tests.internals import _cli
from tests.processes import run_processes

COMMAND = "import sys\nfrom effects_command import main\nsys.exit(main())\n"

TRAIN = """
import os, signal, sys, threading
import jax
import jax.numpy as jnp
from jax import lax

jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

def body(x):
    x = x + lax.all_gather(x, "x").sum()  # line 11
    return lax.cond(lax.axis_index("x") == 2, lambda: x, lambda: lax.psum(x, "x"))  # line 12

@jax.jit
def step(x):
    return jax.shard_map(body, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"), check_vma=False)(x)

def kill():
    import effects as fx
    from effects.extensions.runs.last import last_of
    while not any(len(of["waiting"]) == 3 and of["missing"] for of in last_of(fx.runs.read("runs"))["awaited"]):
        pass
    os.kill(os.getpid(), signal.SIGKILL)

x = jax.device_put(jnp.arange(8.0), jax.NamedSharding(mesh, jax.P("x")))
total = jax.jit(jnp.sum)(x * 2)
print(total, flush=True)
threading.Thread(target=kill).start()
step(x).block_until_ready()
"""


def show_last(capsys, folder):
    """The lines of `effects show --last`, and the same as JSON."""
    capsys.readouterr()
    assert _cli.main(["show", "--last", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert _cli.main(["show", "--last", "--json", str(folder)]) == 0
    return lines, json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def run(folder, *words):
    (folder / "train.py").write_text(TRAIN)
    (folder / "command.py").write_text(COMMAND)
    command = [sys.executable, "command.py", "run", *words, "train.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=200)


def test_device_that_leaves_out_a_collective_of_a_program_that_was_killed(tmp_path, capsys):
    """The program has no line for that. Its run can be traced, where each collective is a slice on its device."""
    done = run(tmp_path, "--collectives", "--record", "runs/")
    assert done.returncode == -9 and done.stdout == "56.0\n", done.stderr
    lines, said = show_last(capsys, tmp_path / "runs")
    assert lines[-1] == (
        "Device 2 has not come to psum at train.py:12, for which 3 devices wait; it came last to all_gather at "
        "train.py:11."
    )
    [awaited] = said["awaited"]
    assert awaited["name"] == "psum at train.py:12" and not awaited["is_program"]
    assert awaited["waiting"] == [{"process": 0, "device": device} for device in (0, 1, 3)]
    assert awaited["missing"] == [{"process": 0, "device": 2, "last": "all_gather at train.py:11"}]
    assert _cli.main(["trace", str(tmp_path / "runs"), "-o", str(tmp_path / "trace.json")]) == 0
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    slices = [(each["name"], each["args"]["device"]) for each in events if each.get("cat") == "operation"]
    came = [("all_gather at train.py:11", device) for device in range(4)]
    assert sorted(slices) == came + [("psum at train.py:12 (unfinished)", device) for device in (0, 1, 3)]


def test_collectives_without_a_recording_are_refused(tmp_path):
    done = run(tmp_path, "--collectives")
    assert done.returncode == 2 and "without `--record`" in done.stderr and not done.stdout


@pytest.mark.slow
def test_device_that_is_kept_from_a_collective_is_named(tmp_path):
    """In random programs with loops, branches, functions and transposes, along each axis of a mesh; also where the file
    has lost its beginning."""
    code = f"from tests.extensions.collectives.stalled import main\nmain(0, 8, {str(tmp_path)!r})"
    done = run_python(code, env={"XLA_FLAGS": "--xla_cpu_collective_call_terminate_timeout_seconds=300"}, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"checked {seed}" for seed in range(8)]


PROGRAM = """
start()
import os, pathlib, threading, time
import numpy as np
from jax import lax
import effects as fx
from effects.extensions.collectives.notes import note_programs
from effects.extensions.runs.last import last

note_programs()
FOLDER = pathlib.Path({folder!r})
recording = fx.record(FOLDER / f"{{PROCESS}}.fx")
mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
sharding = jax.NamedSharding(mesh, jax.P("x"))
x = jax.make_array_from_callback((8,), sharding, lambda index: np.arange(8, dtype=np.float32)[index])

def body(x, leaves_out):
    x = x + lax.all_gather(x, "x").sum()
    return x if leaves_out else lax.psum(x, "x") + x

def stepping(leaves_out):
    return fx.jit(jax.shard_map(
        lambda x: body(x, leaves_out), mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"), check_vma=False
    ))

step = stepping(False)

@fx.jit
def total(x):  # XLA's partitioner makes the collective
    return x.sum()

alone = fx.jit(lambda x: x + 1)
if PROCESS == 0:
    alone(1)  # the numbers of dispatches differ from here on
for _ in range(2):
    x = step(x)
    total(x).block_until_ready()

def look():
    while True:
        try:
            said = last(fx.runs.read(FOLDER)).splitlines()
        except fx.runs.RunError:  # the other file has just begun
            continue
        named = [line for line in said if "process 1 have not" in line and ("psum" in line or "begun" in line)]
        if any("4 devices" in line for line in named):  # until then, some are on their way there
            break
    report["said"] = said
    write_report()
    (FOLDER / f"{{PROCESS}}.said").touch()
    while not all((FOLDER / f"{{process}}.said").exists() for process in range(2)):
        time.sleep(0.01)  # the end of one process ends the other
    os._exit(0)

threading.Thread(target=look).start()
if {left_out!r} == "collective":
    stepping(PROCESS == 1)(x).block_until_ready()
elif PROCESS == 0:
    total(x).block_until_ready()
threading.Event().wait()
"""

SAID = {
    "collective": "Devices 4, 5, 6 and 7 of process 1 have not come to psum at <string>:{psum}, for which 4 devices "
    "wait; they came last to all_gather at <string>:{all_gather}.",
    "program": "Devices 4, 5, 6 and 7 of process 1 have not begun the program total at <string>:{total}, which was "
    "called for 4 devices and has not ended; they came last to the program total at <string>:{total}.",
}


@pytest.mark.parametrize("left_out", SAID)
def test_process_that_leaves_out_what_others_wait_for(left_out, tmp_path):
    """A collective, by a condition in Python; or a program in which XLA's partitioner makes one."""
    processes = run_processes(PROGRAM.format(folder=str(tmp_path), left_out=left_out), 2, devices=4)
    assert all("said" in process.report for process in processes), processes[0].output[-4000:]
    said = processes[0].report["said"][-1]
    pattern = SAID[left_out]
    numbers = [int(part.split(";")[0].split(",")[0].rstrip(".")) for part in said.split("<string>:")[1:]]
    names = dict(zip(["psum", "all_gather"] if left_out == "collective" else ["total", "total"], numbers, strict=True))
    assert said == pattern.format(**names)
    assert "psum" not in names or names["psum"] == names["all_gather"] + 1
