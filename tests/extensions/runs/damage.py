"""Damaged run files: flipped bits, cuts, zeros and swapped parts. What is read is an error that names the file, or
records that the program printed, each once and in order; and where one is missing in between, that is counted.

python -m tests.extensions.runs.damage --files 20000
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import effects as fx
from tests.helpers import run_python

_RECORDED = """
import jax, jax.numpy as jnp, effects as fx
from jax.sharding import AxisType, PartitionSpec as P
mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
loop = lambda x: jax.lax.fori_loop(0, {count}, lambda i, _: fx.print("{{}} {{:>8.3f}}", i, x), None)
def shard(x):
    fx.print("shard {{:,}}", x[0])
    return x
f = fx.jit(lambda x: (loop(x), fx.log("end", x=jnp.full(5, x)), fx.callback(lambda x: None, None, x)))
g = fx.jit(jax.shard_map(shard, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
recording = fx.record({path!r}, max_bytes=1 << 16)
for i in range({programs}):
    f(i / 3)
    g(jnp.arange(2) + 1000 * i)
fx.effects_barrier()
if {is_killed}:
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
recording.close()
"""


class Sample(NamedTuple):
    """A run file, and what is read of it while it is whole."""

    data: bytes
    texts: list[str]


def samples(folder: Path) -> list[Sample]:
    """One that was closed, one of a process that was killed, and one that was filled several times."""
    made = []
    for number, (programs, count, is_killed) in enumerate([(2, 20, False), (2, 20, True), (9, 300, False)]):
        path = folder / f"whole-{number}.fx"
        code = _RECORDED.format(path=str(path), programs=programs, count=count, is_killed=is_killed)
        run_python(code, env={"XLA_FLAGS": "--xla_force_host_platform_device_count=2"})
        run = fx.runs.read(path)
        assert run.processes[0].torn == 0
        made.append(Sample(path.read_bytes(), [record.text for record in run]))
        assert len(made[-1].texts) > 40
    return made


def damaged(data: bytes, numbers: random.Random) -> bytes:
    """The file with a few things wrong."""
    new = bytearray(data)
    filled = [at for at in range(0, len(data), 512) if any(data[at : at + 512])]

    def place() -> int:
        is_in_first_page = numbers.random() < 0.2
        at = numbers.randrange(80) if is_in_first_page else numbers.choice(filled) + numbers.randrange(512)
        return min(at, len(new) - 1)

    for _ in range(numbers.choice([1, 1, 1, 2, 5])):
        if not new:
            break
        at, other, size = place(), place(), numbers.choice([1, 8, 64, 72, 512, 4096])
        match numbers.randrange(6):
            case 0 | 1:
                new[at] ^= 1 << numbers.randrange(8)
            case 2:
                new[at : at + size] = bytes(len(new[at : at + size]))
            case 3:
                part = numbers.randbytes(len(new[at : at + size]))
                new[at : at + size] = part
            case 4:
                size = min(size, len(new) - max(at, other))
                new[at : at + size], new[other : other + size] = new[other : other + size], new[at : at + size]
            case 5 if numbers.random() < 0.3:
                del new[at:]
    return bytes(new)


def check(path: Path, texts: list[str]) -> str:
    """Reads a damaged file. Returns if it is an error, has fewer records, or all of them."""
    try:
        run = fx.runs.read(path)
    except fx.runs.RunError as error:
        assert str(path) in str(error) and "\n" not in str(error), error
        return "errors"
    read = [text for text in (record.text for record in run) if not text.startswith("[not shown")]
    at = iter(texts)
    assert all(text in at for text in read), "a line that was not printed, or not there"
    process = run.processes[0]
    begin = texts.index(read[0]) if read else 0
    has_hole = read != texts[begin : begin + len(read)]
    assert not has_hole or process.torn or process.unknown, "a record is missing, and nothing counts it"
    [*run.events()], run.newest(), run.counts()
    return "whole" if len(read) == len(texts) else "fewer"


def check_files(folder: Path, count: int, seed: int = 0) -> dict[str, int]:
    """Reads so many damaged files. Returns how many were an error, had fewer records, all of them, or failed."""
    whole, counts = samples(folder), {"errors": 0, "fewer": 0, "whole": 0, "failed": 0}
    for number in range(count):
        numbers = random.Random(f"{seed} {number}")
        sample = numbers.choice(whole)
        path = folder / "damaged.fx"
        path.write_bytes(damaged(sample.data, numbers))
        try:
            counts[check(path, sample.texts)] += 1
        except Exception as error:
            counts["failed"] += 1
            print(f"file {number} of seed {seed}: {type(error).__name__}: {error}"[:500], flush=True)
        if (number + 1) % 1000 == 0:
            print(counts, flush=True)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.extensions.runs.damage", description=__doc__)
    parser.add_argument("--files", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts = check_files(Path(folder), options.files, options.seed)
    print(", ".join(f"{name} {count}" for name, count in counts.items()))
    return int(counts["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
