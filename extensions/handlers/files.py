"""A file of lines that has whole lines only, also when the disk is full."""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from effects import _errors as errors

MSG_LOST = (
    "{count} of {path!r} could not be written ({error}). A handler writes each batch of records as it comes, whole "
    "lines only, and goes on with the next if it cannot. Free some space, or write elsewhere."
)


class LineFile:
    """Lines are with the operating system when they have been written. Several threads may write."""

    def __init__(self, path: str | os.PathLike[str], append: bool, quote: bytes = b""):
        """`quote`: what stands around cells in which lines may end."""
        self._path = os.fsdecode(path)
        self._file = open(path, "ab" if append else "wb", buffering=0)  # noqa: SIM115 - closed by `close`
        if append and self._file.seekable():
            self._end_last_line(quote)
        self._lock = threading.Lock()  # held while writing: the lines of one call stay together and whole
        self._lost = 0
        self._error: OSError | None = None  # the first

    def _end_last_line(self, quote: bytes) -> None:
        """Ends the partial line, and its open quotes, of a killed process."""
        line, quotes = b"\n", 0
        with open(self._path, "rb") as file:
            for line in file:
                quotes += line.count(quote) if quote else 0
        if quotes % 2 or not line.endswith(b"\n"):
            self._file.write(quote * (quotes % 2) + b"\n")

    def write(self, text: bytes, ends: Sequence[int]) -> None:
        """Writes as many lines as there is room for, and counts the others.

        Args:
            text: Lines one behind the other.
            ends: The position of the end of each line.

        Raises:
            OSError: if not all could be written.
        """
        with self._lock:
            written = 0
            try:
                while written < len(text):
                    written += self._file.write(text[written:] if written else text) or 0
            except OSError as error:
                self._error = self._error or error
                count = bisect_right(ends, written)
                whole = int(ends[count - 1]) if count else 0
                self._lost += len(ends) - count
                if written > whole and self._file.seekable():  # a partial line is removed
                    self._file.truncate(self._file.tell() - (written - whole))
                    self._file.seek(0, os.SEEK_END)
                raise

    def sync(self) -> None:
        """Has the disk keep them."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Reports lost records.

        Raises:
            OSError: if lines could not be written.
        """
        self._file.close()
        if (error := self._error) is not None:
            self._error = None
            count = errors.counted(self._lost, "line")
            raise OSError(error.errno, MSG_LOST.format(count=count, path=self._path, error=error)) from None


# Batches of records: a refused record does not keep the others back.


def each(things: Iterable[Any], take: Callable[[Any], object]) -> None:
    """Takes each. If one raises, the others are still taken; the first error is raised at the end."""
    first: BaseException | None = None
    for thing in things:
        try:
            take(thing)
        except BaseException as error:
            first = first or error
    if first is not None:
        raise first
