"""Numbers for objects of one name: functions that are closures of one code, and classes that are defined again.

They are the same in each process that meets the objects in the same order, where an address is not. So what is
described by name and number is found again in JAX's persistent compilation cache, and two objects stay two.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import weakref
from typing import Any


class Numbering:
    """By name: the objects that have been met, from 0 on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: collections.Counter[str] = collections.Counter()
        # By name and identity, as long as the object is alive. An entry goes with its object, so that none is met under
        # an address that another had before.
        self._numbers: dict[Any, tuple[weakref.ref[Any], int]] = {}

    def number_of(self, name: str, owner: Any, part: Any = None) -> int:
        """The number of an object, or of a part that its owner keeps alive, among those of this name."""
        identity = name, id(owner), id(part)
        with self._lock:
            known = self._numbers.get(identity)
            if known is not None and known[0]() is owner:
                return known[1]
            number = self._counts[name]
            self._counts[name] += 1
            with contextlib.suppress(TypeError):  # what cannot be referred to weakly is another one each time
                # There is no lock in what is called when the owner goes, which may be at any time.
                self._numbers[identity] = weakref.ref(owner, lambda _: self._numbers.pop(identity, None)), number
            return number
