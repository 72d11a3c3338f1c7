"""Runtime tokens: the host's memory, and arrays on devices.

A stream's native part keeps the latter for program after program; see `Pool` in
`dispatch/native/python/placed_tokens.h`.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from effects._jax import (
    Placing,
    committed_device_of_call,
    default_device,
    is_addressable,
    only_device,
    sharding_of_call,
)
from effects._model.wire import EPOCH, PLACED_THREAD, STREAM, TOKEN_LENGTH, stream_of
from effects.lowering.native_module import native


class PlacedTokens:
    """A thread's tokens on devices."""

    def __init__(self, thread: int):
        self._thread = thread
        self._pools: dict[Any, native.Pool | None] = {}  # by sharding, or device

    def find_pool(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, native.Pool | None]:
        """The sharding of a call's arguments, if they lie on several devices, and the tokens on the devices that they
        name; None if they name none."""
        sharding, device = sharding_of_call(args, kwargs), None
        if sharding is None:
            device = committed_device_of_call(args, kwargs)
        return sharding, self._pool(device if sharding is None else sharding)

    def find_pool_on(self, sharding: Any) -> native.Pool | None:
        """The tokens on the one device of a sharding. None if it has several: tokens there would be committed, and
        decide where a program runs."""
        return self._pool(next(iter(sharding.device_set))) if sharding.num_devices == 1 else None

    def find_first_pool(self) -> native.Pool | None:
        """The tokens on the device of programs that name none. None with several processes: of a program on another
        one's device alone, JAX's fast path takes no array that lies here."""
        return self._pool(default_device()) if jax.process_count() == 1 else None

    def find_pool_of_one(self) -> native.Pool | None:
        """The tokens on the only device that there is."""
        return self._pool(only_device())

    def _pool(self, where: Any) -> native.Pool | None:
        if where is None:
            return None
        if where not in self._pools:
            if len(self._pools) == _PLACES:
                self._pools.clear()
            make = functools.partial(_place, self._thread, Placing(where))
            # Where no device is this process's, none reads the token.
            self._pools[where] = native.Pool(self._thread, make) if is_addressable(where) else None
        return self._pools[where]


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
