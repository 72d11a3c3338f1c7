"""Records that a handler gathers, and writes piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, Timer

MSG_LOST = (
    "{count} records are not in {path!r}: they could not be written ({error}). A handler writes a piece as a whole, "
    "and goes on with the next if it cannot. Free some space, or write elsewhere."
)

_LARGE = 1 << 22
"""Bytes of records that are a piece, whatever the time."""


class Pieces:
    """Says when what has been gathered is written: so many seconds after the first of it has come, or as soon as it is
    large. Who calls its methods has the lock, and so has who calls `write`.

    Args:
        path: Where, for messages.
        every: The seconds. 0: at once.
        write: Writes what has been gathered, and forgets it.
    """

    def __init__(self, path: str, every: float, write: Callable[[], None]):
        self.lock = Lock()
        self._path, self._every, self._do_write = path, every, write
        self._size = 0
        self._timer: Timer | None = None
        self._unseen: Exception | None = None  # what the timer's thread has come to
        self._error: Exception | None = None  # the first that a piece was lost by
        self._lost = 0

    def came(self, size: int) -> None:
        """So many bytes more have been gathered."""
        self._size += size
        if self._size >= _LARGE or not self._every:
            self.write()
        elif self._timer is None:
            self._timer = Timer(self._every, self._on_time)
            self._timer.daemon = True
            self._timer.start()
        if (error := self._unseen) is not None:
            self._unseen = None
            raise error

    def write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._size = 0
        self._do_write()

    def lose(self, count: int, error: Exception) -> None:
        """So many records could not be written."""
        self._lost += count
        self._error = self._error or error

    def close(self) -> None:
        """Says what has been lost."""
        if (error := self._error) is not None:
            self._error = self._unseen = None
            count, self._lost = self._lost, 0
            raise OSError(MSG_LOST.format(count=count, path=self._path, error=error)) from error

    def _on_time(self) -> None:
        with self.lock:
            try:
                self.write()
            except Exception as error:
                self._unseen = error  # the next to come raises it
