"""Healthy programs, whose callbacks sleep, compute, save and call programs: the supervisor ends and names none."""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import effects as fx

THREADS = 4
FLOAT = jax.ShapeDtypeStruct((), np.float32)
EIGHT = jax.ShapeDtypeStruct((8,), np.float32)

_inner = fx.jit(lambda x: (fx.print("inner {}", x), x + 1)[1])
_matmul = jax.jit(lambda a: (a @ a).sum())


def _sleep(chance: random.Random) -> None:
    threading.Event().wait(0.5 if chance.random() < 0.01 else 0.002)


def _save(chance: random.Random) -> None:
    with tempfile.TemporaryFile() as file:
        np.save(file, np.zeros(chance.randrange(100_000), np.float32))
        file.flush()
        os.fsync(file.fileno())


ACTS: list[Callable[[random.Random], Any]] = [
    _sleep,
    _save,
    lambda chance: np.linalg.norm(np.ones((chance.randrange(1, 300),) * 2)),
    lambda chance: float(_matmul(jnp.ones((64, 64)))),
    lambda chance: np.asarray(_inner(jnp.float32(1))),
    lambda chance: fx.print("eager"),
    lambda chance: fx.effects_barrier(),
]


def _program(act: Callable[[], Any], *, asks: bool, asynchronous: bool) -> Any:
    def called(x: np.ndarray) -> np.ndarray | None:
        act()
        return x if asks or asynchronous else None

    def program(x: jax.Array) -> jax.Array:
        fx.print("{}", x.sum())
        shape = FLOAT if x.ndim == 0 else EIGHT
        if asynchronous:
            x = fx.async_done(fx.async_callback(called, shape, x))
        else:
            y = fx.callback(called, shape if asks else None, x)
            x = y if asks else x
        fx.print("{}", x.sum())
        return x * 2

    return fx.jit(program)


def run(count: int, seed: int) -> None:
    """Calls so many programs. Writes, as one line of JSON now and then, how far it is. Fails if anything was said."""
    said: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("effects").addHandler(listener)
    report, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = jax.device_put(jnp.arange(8.0), jax.NamedSharding(mesh, jax.P("x")))
    failures: list[BaseException] = []

    def work(number: int) -> None:
        chance = random.Random(seed * THREADS + number)
        kinds = [(act, asks, far) for act in ACTS for asks, far in [(True, False), (False, False), (True, True)]]
        programs = [
            _program(lambda act=act: act(chance), asks=asks, asynchronous=far)  # type: ignore[misc]
            for act, asks, far in kinds
        ]
        try:
            for turn in range(count // THREADS):
                # What computes in a callback must not be waited for by all devices.
                at = chance.randrange(len(programs))
                may_wait = kinds[at][0] in (ACTS[3], ACTS[4])
                x = sharded if chance.random() < 0.3 and not may_wait else jnp.float32(turn)
                programs[at](x)
                if chance.random() < 0.1:
                    fx.effects_barrier()
                if number == 0 and turn % 100 == 0:
                    print(json.dumps({"programs": turn * THREADS}), file=report, flush=True)
            fx.effects_barrier()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"programs": count}), file=report, flush=True)
    if failures or said:
        print(*failures, *said, sep="\n", file=sys.stderr, flush=True)
        os._exit(1)
