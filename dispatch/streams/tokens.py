"""Runtime tokens: the host's memory, and arrays on devices.

A stream's native part keeps the latter for program after program; see `Pool` in
`dispatch/native/python/placed_tokens.h`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from effects._jax import Placing, array_device_of_call, default_device, sharding_of_call
from effects._wire import EPOCH, PLACED_THREAD, STREAM, TOKEN_LENGTH, stream_of
from effects.lowering.host.native import native


class PlacedTokens:
    """A thread's tokens on devices."""

    def __init__(self, thread: int):
        self._thread = thread
        self._pools: dict[Any, native.Pool] = {}  # by sharding, or device

    def find_pool(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, native.Pool | None]:
        """The sharding of a call's arguments, None if that is one device, and the tokens there."""
        sharding = sharding_of_call(args, kwargs)
        if sharding is not None:
            return sharding, self._pool(sharding)
        return None, self.find_pool_on(array_device_of_call(args, kwargs))

    def find_pool_on(self, device: Any) -> native.Pool | None:
        """The tokens on this device; if it is None on the one that runs programs whose arguments name none."""
        if device is None:
            device = default_device()
        return None if device is None else self._pool(device)

    def _pool(self, where: Any) -> native.Pool:
        pool = self._pools.get(where)
        if pool is None:
            if len(self._pools) == _PLACES:
                self._pools.clear()
            make = functools.partial(_place, self._thread, Placing(where))
            pool = self._pools[where] = native.Pool(self._thread, make)
        return pool


def _place(thread: int, placing: Placing, cell: int, number: int) -> Any:
    """A token on devices: that of a cell, or if this is 0 that of an epoch."""
    token = token_memory(PLACED_THREAD, cell, 1) if cell else token_memory(thread, number, 1)
    return placing.place(token[0])


_PLACES = 32
"""For how many shardings and devices a thread keeps tokens."""


def token_memory(thread: int, first: int, count: int) -> np.ndarray:
    """Runtime tokens of so many epochs, each where XLA takes it as it is: aligned to 64 bytes."""
    memory = np.zeros((count + 1) * 64, np.uint8)
    start = -memory.ctypes.data % 64
    tokens = memory[start : start + count * 64].view(np.uint32).reshape(-1, 16)[:, :TOKEN_LENGTH]
    tokens[:, STREAM] = stream_of(thread)
    tokens[:, EPOCH] = np.arange(first, first + count)
    return tokens
