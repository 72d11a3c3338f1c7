"""Work in separate threads, which no interrupt reaches.

Python runs the handlers of signals in the main thread, between any two steps of its code. One that raises, as for
Ctrl-C, leaves the thread's present operation half done: a lock that was just taken is never released, and an entry that
was just taken out of a table is lost. What must be done whole is therefore done by native code, or here. That includes
starting a `threading.Thread`, which waits for the thread to begin.
"""

from __future__ import annotations

import _thread
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

MSG_NO_THREAD = (
    "No thread can be started. Effects need one, and the process has as many as it may have. End other threads, or "
    "raise the limit (`ulimit -u`)."
)

_T = TypeVar("_T")


class Background:
    """Work for a separate thread. The thread that wants it done may be interrupted anywhere."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.has_ended: bool = False
        self._work = work
        self._unclaimed = threading.Lock()
        self._unfinished = threading.Lock()
        self._unfinished.acquire()

    def start(self) -> None:
        """Has the work done, once: an interrupt may hide that this was called before."""
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError:  # the interpreter ends
            self._run()

    def _run(self) -> None:
        if not self._unclaimed.acquire(blocking=False):
            return
        try:
            self.result = self._work()
        except BaseException as error:
            self.error = error
        finally:
            self.has_ended = True
            self._unfinished.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the work to end, for `timeout` seconds at most. Returns True if it has ended."""
        if not self.has_ended and self._unfinished.acquire(timeout=-1 if timeout is None else timeout):
            self._unfinished.release()  # a signal handler may wait for it too
        return self.has_ended


def in_main_thread() -> bool:
    """True if the calling thread is the one that runs the handlers of signals."""
    return threading.get_ident() == threading.main_thread().ident


_left: list[Background] = []
"""Work of the main thread, which may have been interrupted before, while or after the work was done."""


def uninterrupted(work: Callable[[], _T]) -> _T:
    """Runs work that no interrupt leaves half done, and returns its result. An interrupt may end the wait for it."""
    if not in_main_thread():
        return work()
    finish_interrupted()
    background = Background(work)
    _left.append(background)
    background.start()
    background.wait()
    _forget(background)
    if background.error is not None:
        raise background.error
    return background.result


def finish_interrupted() -> None:
    """Waits for work that the main thread was interrupted in. Other threads look at shared state whenever they come."""
    while _left and in_main_thread():
        background = _left[0]
        if not background.has_ended:
            background.start()
            background.wait()
        _forget(background)


def _forget(background: Background) -> None:
    if background in _left:  # a signal handler may have waited for it and removed it
        _left.remove(background)


class Workers:
    """Threads that run things which may wait for each other: each has one for itself, and is used again."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = 0  # threads that wait, or are about to wait
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
