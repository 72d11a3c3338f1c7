"""Programs over several devices: `python -m benchmarks._devices_child REPEATS` measures with all that there are, `...
REPEATS COUNT...` with so many of them, `... REPEATS watch` watched steps. All say what they found as JSON."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import effects as fx
from benchmarks._measure import Figure, interleave, timed
from benchmarks._output import stdout_in_file
from benchmarks._watch import on_devices

DEVICES = jax.device_count()
CALLS = 200
"""In a row, with a barrier at the end."""


def main(repeats: int, measured: list[str]) -> None:
    with stdout_in_file() as written:
        if measured == ["watch"]:
            found = {"watch": interleave(on_devices(), repeats)}
        elif counts := [*map(int, measured)]:
            points = {
                f"{name} {count}": measure
                for count in counts
                for name, measure in _together(written.expect, count, 1).items()
            }
            found = {"scale": interleave(points, repeats)}
        else:
            found = {
                "together": interleave(_together(written.expect, DEVICES, 1), repeats),
                "arrays": interleave(_together(written.expect, DEVICES, 4), repeats),
                "in turn": _in_turn(repeats, written.expect),
            }
    described = {name: {of: dataclasses.asdict(figure) for of, figure in all_.items()} for name, all_ in found.items()}
    json.dump(described, sys.stdout)


def _contender(f: Any, xs: list[Any], prints: int | None, expect: Callable[[int | None], None]) -> Callable[[], float]:
    """Calls with one argument after the other, and again; `prints` is how many lines a call gives, None
    where that is not certain."""

    def calls() -> None:
        outs = [f(x) for x in itertools.islice(itertools.cycle(xs), CALLS)]
        jax.block_until_ready(outs)
        fx.effects_barrier()
        jax.effects_barrier()

    def measure() -> float:
        seconds = timed(calls) / CALLS
        expect(None if prints is None else prints * CALLS)
        return seconds

    return measure


def _together(expect: Callable[[int | None], None], count: int, size: int) -> dict[str, Callable[[], float]]:
    """One program over so many devices, with a print on each: of a number, or of an array of this size."""
    devices = jax.devices()[:count]
    mesh = jax.make_mesh((count,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=devices)
    xs = [jax.device_put(jnp.zeros(count * 1024), jax.NamedSharding(mesh, jax.P("x")))]

    def on_each(emit: Callable[[Any], None]) -> Any:
        def body(x: Any) -> Any:
            emit(x[0] if size == 1 else x[:size])
            return x * 2 + 1

        return jax.shard_map(body, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))

    ours, jaxs = on_each(lambda x: fx.print("{}", x)), on_each(lambda x: jax.debug.print("{}", x))
    return {
        "plain": _contender(jax.jit(on_each(lambda x: None)), xs, 0, expect),
        "fx.print": _contender(fx.jit(ours), xs, count, expect),
        # From several threads at a time: now and then one loses another's line.
        "jax.debug.print, unordered": _contender(jax.jit(jaxs), xs, None, expect),
    }


def _in_turn(repeats: int, expect: Callable[[int | None], None]) -> dict[str, Figure]:
    """A program on one device, with a print or without: always the same device, or another at each call."""

    def ours(x: Any) -> Any:
        fx.print("{}", x[0])
        return x * 2 + 1

    xs = [jax.device_put(jnp.zeros(1024), device) for device in jax.devices()]
    plain, prints = jax.jit(lambda x: x * 2 + 1), fx.jit(ours)
    contenders = {
        "plain, one device": _contender(plain, xs[:1], 0, expect),
        "plain, another each time": _contender(plain, xs, 0, expect),
        "fx.print, one device": _contender(prints, xs[:1], 1, expect),
        "fx.print, another each time": _contender(prints, xs, 1, expect),
    }
    return interleave(contenders, repeats)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
