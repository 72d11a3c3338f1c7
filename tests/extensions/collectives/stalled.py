"""Random programs of several devices, one of which is kept from a collective. Run by `test_notes.py` in a process whose
programs are noted.

A program is a list of statements: a collective, a `scan`, a `cond` in which all devices take the same branch, or a
jitted function with statements in it. Each collective has a line of its own. A device is kept in a `pure_callback`
ahead of one.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import effects as fx
from effects.extensions.collectives.notes import note_programs
from effects.extensions.runs.last import last_of

SOURCES = [
    "lax.psum(x, {axes}{groups}) / 4",
    "lax.pmax(x, {axes}{groups})",
    "lax.all_gather(x, {axes}{groups}).reshape(-1, 4).max(0)",
    "lax.all_to_all(x, {axes}, 0, 0, tiled=True{groups})",
    "lax.psum_scatter(lax.all_gather(x, {axes}, tiled=True{groups}), {axes}, tiled=True{groups})",
    "jax.vjp(lambda x: lax.psum(x, {axes}{groups}), x)[1](x)[0]",
    "lax.ppermute(x, {axes}, [(i, (i + 1) % SIZES[{axes}]) for i in range(SIZES[{axes}])])",
]
SIZES = {("a",): 2, ("b",): 2, ("a", "b"): 4, ("x",): 4}
GROUPS = ["", ", axis_index_groups=[[0, 1], [2, 3]]", ", axis_index_groups=[[0, 3], [1, 2]]"]
"""Which devices take part together, of a mesh with one axis."""
DEVICES = 4

MESH: Any = None
asked, let_go = threading.Event(), threading.Event()


def wait(x: Any) -> Any:
    asked.set()
    assert let_go.wait(100)
    return np.asarray(x)


def statements(choose: random.Random, depth: int, count: itertools.count[int]) -> list[Any]:
    """Statements, each collective with its number."""
    made: list[Any] = []
    for _ in range(choose.randint(1, 3)):
        kind = choose.choice(["scan", "cond", "jit"]) if depth and choose.random() < 0.4 else "collective"
        if kind == "collective":
            along = choose.choice([each for each in SIZES if {*each} <= {*MESH.axis_names}])
            groups = choose.choice(GROUPS) if along == ("x",) else ""
            source = choose.choice(SOURCES).format(axes=along, groups=groups)
            made.append((kind, next(count), source))
        else:
            made.append((kind, statements(choose, depth - 1, count)))
    return made


def collectives(program: list[Any]) -> list[tuple[int, str]]:
    """The collectives of a program, as their numbers and sources."""
    return [each for kind, *rest in program for each in ([rest] if kind == "collective" else collectives(rest[0]))]


def run(program: list[Any], x: Any, device: int, kept_from: int, turns: Any) -> Any:
    """Runs statements on a device. In a loop the device is kept in the second turn."""
    for statement in program:
        x = run_one(statement, x, device, kept_from, turns)
    return x


def run_one(statement: Any, x: Any, device: int, kept_from: int, turns: Any) -> Any:
    kind, *rest = statement

    def inside(x: Any, turns: Any = turns) -> Any:
        return run(rest[0], x, device, kept_from, turns)

    if kind == "scan":
        return lax.scan(lambda x, i: (inside(x, turns & (i == 1)), None), x, jnp.arange(2))[0]
    if kind == "cond":
        return lax.cond(x.sum() > -1e9, inside, lambda x: x, x)
    if kind == "jit":
        return jax.jit(inside)(x)
    number, source = rest
    if number == kept_from:
        here = turns & (lax.axis_index(MESH.axis_names) == device)
        x = lax.cond(here, lambda x: jax.pure_callback(wait, x, x), lambda x: x, x)
    scope = {"lax": lax, "jax": jax, "x": x, "SIZES": SIZES}
    exec(compile("\n" * number + f"y = {source}", "case.py", "exec"), scope)
    return scope["y"].astype(jnp.float32)


def check(seed: int, path: Path, overwritten: bool) -> None:
    """Keeps a device from a collective, and looks until the report names it; then lets it go on to the end.

    With `overwritten` the file has lost its beginning, and how often devices have come to something is not known."""
    global MESH
    choose = random.Random(seed)
    shape, names = choose.choice([((2, 2), ("a", "b")), ((4,), ("x",))])
    MESH = jax.make_mesh(shape, names, axis_types=(jax.sharding.AxisType.Auto,) * len(shape))
    program = statements(choose, 2, itertools.count())
    known = [number for number, source in collectives(program) if not (overwritten and "ppermute" in source)]
    if not known:  # a device may have the result of a `ppermute` before others have come
        return
    kept_from, device = choose.choice(known), choose.randrange(DEVICES)
    asked.clear()
    let_go.clear()

    def body(x: Any) -> Any:
        if overwritten:
            x = lax.fori_loop(0, 300, lambda _, x: lax.pmin(x, MESH.axis_names) * 1.0, x)
        x = run(program, x, device, kept_from, jnp.bool_(True))
        return lax.pmax(x, MESH.axis_names)  # all devices come here, and wait for the one that is kept

    spec = jax.P(MESH.axis_names)
    x = jax.device_put(jnp.arange(4.0 * DEVICES), jax.NamedSharding(MESH, spec))
    step = fx.jit(jax.shard_map(body, mesh=MESH, in_specs=spec, out_specs=spec, check_vma=False))
    caller = threading.Thread(target=lambda: jax.block_until_ready(step(x)))
    with fx.record(path, max_bytes=1 << 16 if overwritten else 64 << 20):
        caller.start()
        assert asked.wait(100), (seed, program)
        deadline = time.monotonic() + 100
        while True:
            read = fx.runs.read(path)
            found = last_of(read)["awaited"]
            missing = {each["device"]: of["name"] for of in found for each in of["missing"]}
            waiting = {each["device"] for of in found for each in of["waiting"]}
            is_known = kept_from in [int(of["name"].rpartition(":")[2]) - 1 for of in found]
            # Before, some are on their way, or have no result yet of an earlier collective, and others wait for these.
            if waiting == {*range(DEVICES)} - {device} and missing.keys() == {device} and is_known:
                break
            assert time.monotonic() < deadline, (seed, program, device, kept_from, found)
        assert read.processes[0].is_cut == overwritten
        let_go.set()
        caller.join(100)
        assert not caller.is_alive()
    assert last_of(fx.runs.read(path))["awaited"] == [], seed


def main(first: int, count: int, folder: str) -> None:
    jax.config.update("jax_num_cpu_devices", DEVICES)
    note_programs()
    for seed in range(first, first + count):
        check(seed, Path(folder, f"{seed}.fx"), overwritten=seed % 3 == 2)
        print("checked", seed, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
