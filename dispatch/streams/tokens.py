"""Runtime tokens: the host's memory, and arrays on devices.

A stream's native part keeps the latter, and writes them anew for program after program; see `Pool` in
`dispatch/native/python/stream.h`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from effects._jax import Placing, only_device, sharding_of_call
from effects._wire import EPOCH, STREAM, TOKEN_LENGTH, stream_of
from effects.lowering.host.native import native


class PlacedTokens:
    """A stream's tokens on devices."""

    def __init__(self, thread: int):
        self._thread = thread
        self._pools: dict[Any, native.Pool] = {}  # by sharding

    def find_pool(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, native.Pool] | None:
        """The sharding of a call's arguments and the tokens on all of its devices, which run the program; None if that
        is one device."""
        sharding = sharding_of_call(args, kwargs)
        if sharding is None:
            return None
        pool = self._pools.get(sharding)
        if pool is None:
            if len(self._pools) == _SHARDINGS:
                self._pools.clear()
            pool = self._pools[sharding] = native.Pool(functools.partial(_place, self._thread, Placing(sharding)))
        return sharding, pool

    def find_pool_of_one(self) -> native.Pool | None:
        """The tokens on the only device that there is, if it reads them where they lie in the host's memory."""
        device = only_device()
        if device is None:
            return None
        place = functools.partial(_place, self._thread, Placing(device))
        _, memory, _ = place(0)
        return None if memory is None else native.Pool(place)


def _place(thread: int, placing: Placing, number: int) -> tuple[Any, np.ndarray | None, int]:
    """A token on devices, and the host's memory, and its address, if they read it there."""
    memory = token_memory(thread, number, 1)[0]
    array = placing.place(memory)
    return (array, memory, memory.ctypes.data) if placing.shares_memory(array, memory) else (array, None, 0)


_SHARDINGS = 16
"""For how many shardings a stream keeps tokens."""


def token_memory(thread: int, first: int, count: int) -> np.ndarray:
    """Runtime tokens of so many epochs, each where XLA takes it as it is: aligned to 64 bytes."""
    memory = np.zeros((count + 1) * 64, np.uint8)
    start = -memory.ctypes.data % 64
    tokens = memory[start : start + count * 64].view(np.uint32).reshape(-1, 16)[:, :TOKEN_LENGTH]
    tokens[:, STREAM] = stream_of(thread)
    tokens[:, EPOCH] = np.arange(first, first + count)
    return tokens
