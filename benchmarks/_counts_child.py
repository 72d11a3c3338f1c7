"""Counts what a call and a record take, and says it as JSON: `python -m benchmarks._counts_child COUNTER LIBRARY`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import effects as fx
from benchmarks import _counters

CALLS, RECORDS = 1000, 10_000


def _plain(x: Any) -> Any:
    return x + 1


def _printing(emit: Callable[..., None]) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        emit("x = {}", x)
        return x + 1

    return call


def _looping(body: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda steps: jax.lax.fori_loop(0, steps, lambda _, x: body(x), jnp.float32(0))


def _programs() -> dict[str, tuple[Callable[[Any], Any], int]]:
    """By name, a jitted function, and how many records a call has; 0 if it is calls that count."""

    def jaxs(*args: Any) -> None:
        jax.debug.print(*args, ordered=True)

    return {
        "call, jax.jit": (jax.jit(_plain), 0),
        "call, fx.jit": (fx.jit(_plain), 0),
        "call with fx.print": (fx.jit(_printing(fx.print)), 0),
        "call with jax.debug.print": (jax.jit(_printing(jaxs)), 0),
        "step, jax.jit": (jax.jit(_looping(_plain)), RECORDS),
        "step with fx.print": (fx.jit(_looping(_printing(fx.print))), RECORDS),
    }


def main(counter: _counters.Counter) -> None:
    """Each program has run before it is counted, and its effects are over at the end of the count."""
    report, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    found: dict[str, dict[str, float]] = {}
    for name, (run, records) in _programs().items():
        argument = jnp.int32(records) if records else jnp.float32(1)
        calls = 1 if records else CALLS

        def go(run: Any = run, argument: Any = argument, calls: int = calls) -> None:
            for _ in range(calls):
                run(argument)
            jax.effects_barrier()

        go()
        counter.begin()
        go()
        counts = counter.end()
        found[name] = {of: count / (records or CALLS) for of, count in counts.items()}
    json.dump(found, report)


if __name__ == "__main__":
    main(getattr(_counters, sys.argv[1])(sys.argv[2]))
