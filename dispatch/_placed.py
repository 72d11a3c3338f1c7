"""Runtime tokens on several devices.

To put an array on devices takes longer than to call a small program. But devices that use the host's memory read a
token where it lies. So once a program is over, its token is written anew for another.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from effects._jax_compat import Array, Placing, sharding_of_call
from lowering._record import DOMAIN_BITS, EPOCH, STREAM, TOKEN_LENGTH


class Placed:
    """A token on several devices, which one program at a time has."""

    __slots__ = ("_output_token", "_pool", "array", "free", "memory")

    def __init__(self, pool: _Pool, memory: np.ndarray, array: Any):
        self._pool = pool
        self._output_token: Any = None
        self.free = pool.free  # where it goes when the program that had it is over
        self.memory = memory.data
        self.array = array

    def free_after(self, output_token: Any) -> None:
        """Another program may have it when this one is over."""
        self._output_token = output_token
        self._pool.in_use.append(self)

    def is_over(self) -> bool:
        """Whether the program that has it is."""
        return self._output_token.is_ready()


class PlacedTokens:
    """A stream's tokens on several devices."""

    def __init__(self, thread: int):
        self._thread = thread
        self._pools: dict[Any, _Pool] = {}  # by sharding
        self._sharding: Any = None  # that of the newest
        self._newest = _Pool(thread, None)

    # This is the way of every dispatch over several devices, hence one function.
    def take(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Placed | None:
        """That of an epoch, on all devices that run its program; None if that is one. They are those of the program's
        arguments."""
        for x in args:
            if type(x) is Array and x.sharding is self._sharding:
                break
        else:
            sharding = sharding_of_call(args, kwargs)
            if sharding is None:
                return None
            self._newest, self._sharding = self._pool_of(sharding), sharding
        pool = self._newest
        placed = pool.free.pop() if pool.free else pool.find(number)
        placed.memory[EPOCH] = number
        return placed

    def _pool_of(self, sharding: Any) -> _Pool:
        pool = self._pools.get(sharding)
        if pool is None:
            if len(self._pools) == _SHARDINGS:
                self._pools.clear()
            pool = self._pools[sharding] = _Pool(self._thread, Placing(sharding))
        return pool


class SharedPlacedTokens(PlacedTokens):
    """Those of the stream of all threads."""

    def __init__(self, thread: int):
        super().__init__(thread)
        self._lock = threading.Lock()

    def take(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Placed | None:
        with self._lock:
            return super().take(number, args, kwargs)


_SHARDINGS = 16
"""For how many shardings a stream keeps tokens."""


class _Pool:
    """Those on the devices of one sharding that programs had and others may have."""

    def __init__(self, thread: int, placing: Any):
        self.free: collections.deque[Placed] = collections.deque(maxlen=_KEPT)
        self.in_use: collections.deque[Placed] = collections.deque(maxlen=_KEPT)  # the oldest first
        self._thread = thread
        self._placing = placing

    def find(self, number: int) -> Placed:
        """One that is free by now, or a new one for an epoch."""
        if self.in_use:
            oldest = self.in_use.popleft()  # first: another thread may put one there
            if oldest.is_over():
                return oldest
            self.in_use.appendleft(oldest)
        [memory] = token_memory(self._thread, [number])
        array = self._placing.place(memory)
        shared = self._placing.shares_memory(array, memory)
        return Placed(self if shared else _Pool(self._thread, None), memory, array)  # nobody else has copies


_KEPT = 64
"""How many tokens a pool keeps."""


def token_memory(thread: int, numbers: Sequence[int]) -> np.ndarray:
    """Runtime tokens of these epochs, each where XLA takes it as it is: aligned to 64 bytes."""
    memory = np.zeros((len(numbers) + 1) * 64, np.uint8)
    start = -memory.ctypes.data % 64
    tokens = memory[start : start + len(numbers) * 64].view(np.uint32).reshape(-1, 16)[:, :TOKEN_LENGTH]
    tokens[:, STREAM] = thread << DOMAIN_BITS
    tokens[:, EPOCH] = numbers
    return tokens
