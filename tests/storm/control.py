"""The same storm over programs of plain JAX, which have no effects: it does not import this library."""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.storm.interrupts import Attempt


class Control:
    """Programs over several devices with a collective, and what they must have returned."""

    def __init__(self, devices: int) -> None:
        mesh = jax.make_mesh((devices,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        self._x = jax.device_put(jnp.ones(4 * devices), jax.NamedSharding(mesh, jax.P("x")))
        self._total = 4 * devices
        self._program = jax.jit(lambda x, k: x.sum() + k)
        self._newest: tuple[int, Any] | None = None

    def begin(self) -> None:
        self._newest = None

    def choose(self, number: int, chance: random.Random) -> tuple[Any, Any]:
        def call() -> Any:
            result = self._program(self._x, np.int32(number))
            return result.block_until_ready() if waits else result

        def note(attempt: Attempt) -> None:
            if attempt.error is not None and not attempt.interrupted:
                raise attempt.error
            if attempt.returned:
                self._newest = number, attempt.result

        waits = chance.random() < 0.3
        return call, note

    def end(self) -> None:
        if self._newest is not None:
            number, result = self._newest
            assert int(result) == self._total + number
