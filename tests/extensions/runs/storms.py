"""Storms of threads, devices and processes that are killed while they record: what had been published is in the files.

python -m tests.extensions.runs.storms 200 --processes 3
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import effects as fx
from tests.processes import run_processes

# Threads and devices of each process log until it kills itself at a step. A thread writes each of its steps to a file
# when the step's program has ended, and so has published its effects. What several processes log of one program, value
# by value, a run has once, so that each logs its number.
_STORM = """
start()
import os, signal, threading
import jax.numpy as jnp, effects as fx
from jax.sharding import AxisType, PartitionSpec as P
fx.add_handler(fx.ListHandler())
mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,), devices=jax.local_devices())

@fx.jit
def whole(thread, i):
    jax.lax.fori_loop(0, 5, lambda turn, _: fx.log("turn", by=thread, i=i, turn=turn), None)
    return i

@fx.jit
def sharded(thread, i):
    def shard(x):
        fx.log("shard", by=thread, i=i, x=x[0])
        return x
    return jax.shard_map(shard, mesh=mesh, in_specs=P("d"), out_specs=P("d"))(jnp.arange(2) + i)

said = os.open(os.path.join(FOLDER, f"{PROCESS}.txt"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
ended = []

def run(thread):
    for i in range(10**6):
        (whole if thread else sharded)(10 * PROCESS + thread, i).block_until_ready()
        os.write(said, b"%d %d\\n" % (thread, i))
        ended.append(i)
        if len(ended) >= STEPS[PROCESS]:
            os.kill(os.getpid(), signal.SIGKILL)

recording = fx.record(os.path.join(FOLDER, f"{PROCESS}.fx"))
for thread in range(3):
    threading.Thread(target=run, args=(thread,)).start()
"""


def check_storm(folder: Path, steps: Sequence[int]) -> tuple[int, int]:
    """Runs a storm in which each process is killed after so many steps. What had run to its end by then is in its file,
    in order, once. Where one of several processes is gone, JAX may end the others at any moment. Returns how many steps
    had ended, and how many records are torn."""
    code = f"STEPS, FOLDER = {[*steps]}, {str(folder)!r}\n{_STORM}"
    processes = run_processes(code, len(steps), devices=2)
    assert any(process.returncode == -signal.SIGKILL for process in processes), processes
    run = fx.runs.read(folder)
    seen: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for record in run:
        fields = record.fields
        place = int(fields["i"]), int(fields["turn"]) if "turn" in fields else record.device % 2
        seen.setdefault(divmod(int(fields["by"]), 10), []).append(place)
    ended = 0
    for number in range(len(steps)):
        file = folder / f"{number}.txt"  # there is none if JAX ended the process before it began
        said = [tuple(map(int, line.split())) for line in file.read_text().splitlines()] if file.exists() else []
        ended += len(said)
        for thread in range(3):
            done, each = sum(by == thread for by, _ in said), 5 if thread else 2
            places = seen.get((number, thread), [])
            assert places[: each * done] == [(i, of) for i in range(done) for of in range(each)], (number, thread, done)
            # One program may have been on its way, and its devices not equally far.
            left = [(done + i, of) for i in range(2) for of in range(each)]
            assert places[each * done :] == [place for place in left if place in places[each * done :]], places[-12:]
    for each in run.processes:
        assert each.unknown == 0 and not each.is_closed
    return ended, sum(each.torn for each in run.processes)


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.extensions.runs.storms", description=__doc__.split("\n")[0])
    parser.add_argument("storms", type=int)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    steps = torn = failed = 0
    for storm in range(options.storms):
        numbers = random.Random(f"{options.seed} {storm}")
        with tempfile.TemporaryDirectory() as folder:
            try:
                of_one = check_storm(Path(folder), [numbers.randrange(1, 3000) for _ in range(options.processes)])
            except Exception as error:
                failed += 1
                print(f"storm {storm} of seed {options.seed}: {type(error).__name__}: {error}"[:2000])
                continue
            steps, torn = steps + of_one[0], torn + of_one[1]
        if (storm + 1) % 20 == 0:
            print(f"{storm + 1} storms, {steps:,} steps, {torn} torn, failed {failed}", flush=True)
    print(f"{options.storms} storms, {steps:,} steps, {torn} torn, failed {failed}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
