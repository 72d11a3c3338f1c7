"""Work in threads of its own, which no interrupt reaches.

Python runs the handlers of signals in the main thread, between any two steps of its code. One that raises, as Ctrl-C
does, leaves what the thread was at half done: a lock that it has just taken is never given back, and what it has just
taken out of a table is lost. What must be done whole is therefore done by native code, or here. That includes starting
a `threading.Thread`, which waits for the thread to begin.
"""

from __future__ import annotations

import _thread
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


class Background:
    """Work that a thread of its own has begun. One thread may wait for its end."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._work = work
        self._unfinished = threading.Lock()
        self._unfinished.acquire()
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:
            self.error = error
        finally:
            self._unfinished.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether the work has ended, within so many seconds. Called once."""
        return self._unfinished.acquire(timeout=-1 if timeout is None else timeout)


def in_main_thread() -> bool:
    """Whether the calling thread is the one that runs the handlers of signals."""
    return threading.get_ident() == threading.main_thread().ident


def uninterrupted(work: Callable[[], _T]) -> _T:
    """The result of something that is done whole. The calling thread may be interrupted while it waits for that."""
    if not in_main_thread():
        return work()
    background = Background(work)
    background.wait()
    if background.error is not None:
        raise background.error
    return background.result


class Workers:
    """Threads that run things which may wait for each other: each has one for itself, and is used again."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = 0  # threads that wait, or are about to
        self._lock = threading.Lock()

    def run(self, work: Callable[[], None]) -> None:
        """Runs this at once. Called by threads that no interrupt reaches."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        self._work.put(work)

    def _serve(self) -> None:
        while True:
            self._work.get()()
            with self._lock:
                self._idle += 1
