"""What can be counted in a process, between a begin and an end."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Counter(Protocol):
    """Counts something."""

    def begin(self) -> None:
        """Counts from here on."""

    def end(self) -> dict[str, float]:
        """Returns what there has been since the begin, by its name."""
        ...


class Instructions:
    """Of all threads, in a process under callgrind, which writes files into the working directory."""

    def __init__(self, library: str):
        self._requests = ctypes.CDLL(library)

    def begin(self) -> None:
        self._requests.begin()

    def end(self) -> dict[str, float]:
        self._requests.end()
        [file] = Path().glob("callgrind.out.*.*")
        [total] = [line for line in file.read_text().splitlines() if line.startswith("totals:")]
        file.unlink()
        return {"instructions": int(total.split()[1])}


class Allocations:
    """Of all threads. Python's are among them if `PYTHONMALLOC` is malloc."""

    def __init__(self, library: str):
        self._read = ctypes.CDLL(library).allocations
        self._read.restype = ctypes.c_long
        self._begin = 0

    def begin(self) -> None:
        self._begin = self._read()

    def end(self) -> dict[str, float]:
        return {"allocations": self._read() - self._begin}


class Calls:
    """Of Python functions, in the calling thread and in others, which must begin after this is made."""

    def __init__(self, library: str):
        self._counting = False
        self._counts: dict[str, float] = {}
        self._note = self._noting("Python calls")
        threading.setprofile(self._noting("Python calls in other threads"))

    def _noting(self, name: str) -> Callable[[Any, str, Any], None]:
        def note(frame: Any, event: str, argument: Any) -> None:
            if self._counting and event == "call":
                self._counts[name] += 1

        return note

    def begin(self) -> None:
        self._counts = {"Python calls": 0, "Python calls in other threads": 0}
        self._counting = True
        sys.setprofile(self._note)

    def end(self) -> dict[str, float]:
        sys.setprofile(None)
        self._counting = False
        self._counts["Python calls"] -= 1  # of this function
        return self._counts
