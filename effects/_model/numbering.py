"""Numbers for objects of one name: functions that are closures of one code, and classes that are defined again.

The numbers, unlike addresses, are the same in each process that meets the objects in the same order. So programs that
describe an object by name and number are found again in JAX's persistent compilation cache, and two objects stay two.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterator
from typing import Any


class Numbering:
    """By name: the objects that have been met, from 0 on."""

    def __init__(self) -> None:
        self._next: dict[str, Iterator[int]] = {}
        # By name and identity. An entry is removed before its object's memory is freed, so that no later object at that
        # address finds it. There is no lock, since an object may die at any time, also in a thread that holds the lock.
        self._numbers: dict[Any, tuple[weakref.ref[Any], int]] = {}

    def number_of(self, name: str, owner: Any, part: Any = None) -> int:
        """The number of an object (or of a part that its owner keeps alive) among the objects numbered under this
        name."""
        identity = name, id(owner), id(part)
        if (known := self._numbers.get(identity)) is not None:
            return known[1]
        number = next(self._next.setdefault(name, itertools.count()))
        with contextlib.suppress(TypeError):  # no weak reference: each call gets a new number
            entry = weakref.ref(owner, lambda _: self._numbers.pop(identity, None)), number
            return self._numbers.setdefault(identity, entry)[1]  # another thread may have added it
        return number
