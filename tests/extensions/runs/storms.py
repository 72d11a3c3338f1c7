"""Storms of threads, devices and processes that are killed while they record.

Threads call random programs of the oracle's, whose prints have random formats, until the process kills itself at a
random line. What was printed is in its file. What is in the file is what each thread and device prints, from the first
line on or, where the file is full, from a later one on, without a hole; or the places that are not whole are counted.

python -m tests.extensions.runs.storms 200 --processes 3
"""

from __future__ import annotations

import argparse
import collections
import functools
import io
import itertools
import os
import random
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import effects as fx
from tests.internals import wire
from tests.oracle.generator import Generator
from tests.oracle.host import Host
from tests.oracle.jax_ import to_jax
from tests.oracle.language import EFFECTS, MODULUS, REGISTERS, Case, Run, kinds_of_labels, label_of
from tests.oracle.observe import expect
from tests.oracle.place import RandomDraw
from tests.oracle.runners import library
from tests.oracle.runs.recorded import RecordedReading
from tests.processes import run_processes

FORMATS = ("{}", "{:>10}", "{:<6}|", "{:^9}", "{:,}", "{:+d}", "{:#x}", "{:08.3f}", "{:e}", "{:5.1f}%")
TURNS = 2  # of the loop in a region
_CHILD = "start()\nfrom tests.extensions.runs.storms import record_until\n"


def format_of(label: str, are_whole: Iterable[bool]) -> str:
    """The format of a label with these numbers."""
    numbers = random.Random(label)
    return " ".join([label, *(numbers.choice(FORMATS) if is_whole else "{}" for is_whole in are_whole)])


def line_of(label: str, *values: int | str) -> str:
    """A print as Python writes it. What is no whole number is text."""
    return format_of(label, [isinstance(value, int) for value in values]).format(*values)


def emit(ordered: bool, label: str, operands: Sequence[Any]) -> None:
    fmt = format_of(label, [jnp.issubdtype(jnp.result_type(each), jnp.integer) for each in operands])
    fx.print(fmt, *operands, ordered=ordered)


@functools.cache
def case_of(seed: str, process: int, thread: int) -> Case:
    """The programs that a thread calls again and again."""
    rng = random.Random(f"{seed} {process} {thread}")
    draw = RandomDraw(rng)
    programs = [
        Generator(draw, f"p{process}t{thread}{name}", frozenset({"vmap"}), "none").program(rng.randint(4, 10))
        for name in "AB"
    ]
    runs = (Run(program, tuple(rng.randrange(MODULUS) for _ in REGISTERS)) for program in programs)
    return Case(tuple(runs))


def record_until(folder: str, seed: str, process: int, threads: int, size: int, lines: int) -> None:
    """Records, and kills the process as soon as it has written so many lines."""
    written = os.open(os.path.join(folder, f"{process}.txt"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    class Output(io.StringIO):
        count = 0

        def write(self, text: str) -> int:
            os.write(written, text.encode())
            self.count += text.count("\n")
            if self.count >= lines:
                os.kill(os.getpid(), signal.SIGKILL)
            return len(text)

    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,), devices=jax.local_devices())
    runner = library()
    runner = replace(runner, emit={name: functools.partial(emit, EFFECTS[name]) for name in ("ordered", "unordered")})

    def region(x: Any) -> Any:
        emit(True, f"p{process}R", [x[0]])
        lax.fori_loop(0, TURNS, lambda i, _: emit(True, f"p{process}L", [x[0], i]), None)
        return x

    sharded = fx.jit(jax.shard_map(region, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d")))

    def run(thread: int) -> None:
        case, host = case_of(seed, process, thread), Host(print, runner.actions)
        programs = {run.program: fx.jit(to_jax(run.program, runner, host)) for run in case.runs}
        count = fx.jit(lambda turn: emit(True, f"p{process}t{thread}I", [turn]))
        for turn in itertools.count():
            count(np.int32(turn))
            for number, each in enumerate(case.runs):
                programs[each.program](np.int32(number), *map(np.int32, each.state))
            if thread == 0:
                sharded(jnp.arange(2, dtype=jnp.int32) + 2 * turn)

    sys.stdout = Output()
    fx.record(os.path.join(folder, f"{process}.fx"), max_bytes=size)
    for thread in range(threads):
        threading.Thread(target=run, args=(thread,)).start()


_CALLS = 3  # of a thread in each turn: its number, and its programs; one more where it has the region


def _printed(seed: str, process: int, thread: int, device: int, turns: range) -> Iterator[str]:
    """The lines that a thread prints in these turns: on both devices, or in the region on one of them."""
    case = case_of(seed, process, thread)
    kinds = kinds_of_labels(case.runs)
    lines = [line.split(" ") for line in expect(case, RecordedReading).lines if EFFECTS[kinds[label_of(line)]]]
    for turn in turns:
        if device < 0:
            yield line_of(f"p{process}t{thread}I", turn)
            yield from (
                line_of(label, *(int(each) if "." not in each else each for each in values)) for label, *values in lines
            )
        else:
            yield line_of(f"p{process}R", device + 2 * turn)
            yield from (line_of(f"p{process}L", device + 2 * turn, i) for i in range(TURNS))


def check_file(run: fx.runs.Run, written: Sequence[str], seed: str, process: int, threads: int) -> None:
    """Checks what one process has left."""
    [of] = run.processes
    assert of.unknown == of.lost == 0 and not of.is_closed
    read: dict[tuple[int, int], list[Any]] = collections.defaultdict(list)
    for record in run:
        if record.ordered:
            label = label_of(record.text).removeprefix(f"p{process}")
            thread = int(label[1]) if label.startswith("t") else 0
            device = record.device % 2 if wire.in_region(record.token[wire.PHASE]) else -1
            read[thread, device].append(record)
    for (thread, device), records in read.items():
        calls = _CALLS + (thread == 0)
        first = records[0].token[wire.EPOCH] // calls if of._file.is_cut else 0
        last = max(record.token[wire.EPOCH] for record in records) // calls + 1
        wanted = [*_printed(seed, process, thread, device, range(first, last))]
        texts = [record.text for record in records]
        place = (process, thread, device, of.torn)
        if of.torn:
            at = iter(wanted)
            assert all(text in at for text in texts), place
            continue
        begins = range(len(wanted) - len(texts) + 1) if of._file.is_cut else [0]
        begin = next((at for at in begins if wanted[at : at + len(texts)] == texts), None)
        assert begin is not None, (place, texts[:3], texts[-3:])
        if device < 0:
            own = [line for line in written if line.startswith(f"p{process}t{thread}") and line in {*wanted}]
            before = len([*_printed(seed, process, thread, device, range(first))])
            assert len(own) <= before + begin + len(texts), (place, own[-3:], texts[-3:])
    if not of.torn and not of._file.is_cut:
        texts = collections.Counter(record.text for record in run)
        assert not collections.Counter(written) - texts, [*(collections.Counter(written) - texts)][:3]


def check_storm(folder: Path, seed: str, processes: int, most: int = 2000) -> tuple[int, int]:
    """Runs a storm in which each process is killed. When one of several is gone, JAX may end the others at any moment.
    Returns how many lines were written, and how many places are torn."""
    rng = random.Random(seed)
    threads, size = rng.choice((1, 3, 4)), rng.choice((1 << 16, 1 << 16, 1 << 20, 1 << 26))
    lines = [rng.randrange(1, most) for _ in range(processes)]
    given = f"record_until({str(folder)!r}, {seed!r}, PROCESS, {threads}, {size}, {lines}[PROCESS])"
    done = run_processes(_CHILD + given, processes, devices=2)
    assert any(each.returncode == -signal.SIGKILL for each in done), done
    written = torn = 0
    for process in range(processes):
        output = folder / f"{process}.txt"  # there is none if JAX ended the process before it began
        whole = output.read_text().split("\n")[:-1] if output.exists() else []
        written += len(whole)
        if (folder / f"{process}.fx").exists():
            run = fx.runs.read(folder / f"{process}.fx")
            torn += run.processes[0].torn
            check_file(run, whole, seed, process, threads)
    together = collections.Counter(record.text for record in fx.runs.read(folder))
    assert not together - collections.Counter(
        record.text for path in folder.glob("*.fx") for record in fx.runs.read(path)
    )
    return written, torn


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.extensions.runs.storms", description=__doc__.split("\n")[0])
    parser.add_argument("storms", type=int)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    written = torn = failed = 0
    for storm in range(options.storms):
        with tempfile.TemporaryDirectory() as folder:
            try:
                of_one = check_storm(Path(folder), f"{options.seed} {storm}", options.processes)
            except Exception as error:
                failed += 1
                print(f"storm {storm} of seed {options.seed}: {type(error).__name__}: {error}"[:2000], flush=True)
                continue
            written, torn = written + of_one[0], torn + of_one[1]
        if (storm + 1) % 20 == 0:
            print(f"{storm + 1} storms, {written:,} lines, {torn} torn, failed {failed}", flush=True)
    print(f"{options.storms} storms, {written:,} lines, {torn} torn, failed {failed}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
