"""The drain: one host thread that takes what devices published, in order, and replays it.

Native code restores the order and formats what it can, without Python's lock; this thread writes text, and replays the
records that need Python. It is the only thread that does, so effects never run at the same time.
"""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable
from typing import Any

from dispatch import _streams
from dispatch._sink import native
from dispatch._streams import Call, streams
from effects import _errors as errors
from effects._format import fill
from effects._sites import Site, find_site

_PATIENCE = 0.005
"""Seconds after which the drain looks for programs that failed, while any are running."""


class Drain:
    """The thread and what others may know of it. Fields are written by the drain thread under `progress`."""

    def __init__(self) -> None:
        self.progress = threading.Condition()  # notified after every batch
        self.plain_released = 0  # how many records without an epoch have been replayed
        self.failures: list[BaseException] = []  # what effects raised and no barrier has reported yet
        self.ended = False  # the process is about to end, and nothing runs in the background any more
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()

    def start(self) -> None:
        """Starts the thread, if it does not run yet."""
        if self._thread is not None:
            return
        with self._start_lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="effects-drain", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Ends the thread after what was published has been replayed."""
        native.stop()
        if self._thread is not None:
            self._thread.join()
        self.ended = True

    def is_current_thread(self) -> bool:
        """Whether the caller is an effect that is being replayed."""
        return threading.current_thread() is self._thread

    def wait(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Waits until `done()`, looked at after every batch. False if the time ran out."""
        native.barrier_begins()
        try:
            with self.progress:
                return self.progress.wait_for(done, timeout)
        finally:
            native.barrier_ends()

    def finish(self, done: Callable[[], bool]) -> None:
        """After the thread has ended: replays what came since, in the calling thread."""
        while not done():
            replayed, _ = self._take_batch()
            if not replayed:
                self._close_failed()

    def _run(self) -> None:
        replayed, stopped = False, False
        while replayed or not stopped:
            replayed, stopped = self._take_batch()
            if not stopped:
                self._close_failed()
                _streams.forget_ended()

    def _take_batch(self) -> tuple[bool, bool]:
        """Replays a batch. Returns whether there was anything in it, and whether the drain is to end."""
        items, finished, plain_released, stopped = native.next_batch(_PATIENCE)
        for item in items:
            self._replay(*item)
        for thread, first, count in finished:
            streams[thread].drop(first, count)
        with self.progress:
            self.plain_released = plain_released
            self.progress.notify_all()
        return bool(items or finished), stopped

    def _replay(self, thread: int, number: int, content: Any, site_id: int | None = None, *place: Any) -> None:
        call, site = _outside_epochs(), None
        try:
            stream = streams.get(thread)
            if stream is not None:
                call = Call(*stream.calls[number])
            if site_id is not None:
                site = (stream and stream.eager.get(number)) or find_site(site_id, native.site_description)
            call.context.run(_show, call, site, content)
        except BaseException as error:  # whatever it is, the effects after it go on
            self.failures.append(_failure(error, call, site))

    def _close_failed(self) -> None:
        """Ends epochs whose programs have failed, which never close themselves."""
        for stream in list(streams.values()):
            for number in list(stream.running):
                output_token = stream.running[number].output_token
                if not output_token.is_ready():
                    break  # what waits behind it waits for it
                del stream.running[number]
                if failed(output_token):
                    stream.fail(number)


def failed(output_token: Any) -> bool:
    """Whether the program that returned a ready output token failed. Why, the program's own results say."""
    try:
        output_token.block_until_ready()
    except Exception:
        return True
    return False


def _show(call: Call, site: Site | None, content: Any) -> None:
    """Writes text, or a record's text. Runs in the caller's context."""
    text: str = content if site is None else fill(site, content, "\n")
    for out in (call.stdout, sys.stdout):
        if out is None or not getattr(out, "closed", False):
            if out is not None:
                out.write(text)
            return
    raise ValueError(errors.MSG_OUTPUT_CLOSED)


def _outside_epochs() -> Call:
    """What is in force for a record of a program that JAX dispatched: the present."""
    return Call("a program outside fx.jit", sys.stdout, contextvars.copy_context())


def _failure(error: BaseException, call: Call, site: Site | None) -> BaseException:
    try:
        shown = repr(error)
    except Exception:
        shown = type(error).__name__
    failure = errors.EffectError(
        errors.MSG_REPLAY.format(
            effect=site.effect.name if site else "print",
            where=site.where if site else "its call",
            function=f"`{call.function}`",
            error=shown,
        )
    )
    failure.__cause__ = error
    return failure


drain = Drain()


def stats() -> dict[str, int]:
    """Counts since the process started.

    Returns:
        `published`: records taken from devices; `released`: replayed in order; `dropped`: lost because a ring was
        full; `waited`: times a device waited for room; `bytes`: published, headers included; `high_water`: the most
        bytes that one ring held.

    Example:
        >>> import effects as fx
        >>> sorted(fx.stats())
        ['bytes', 'dropped', 'high_water', 'published', 'released', 'waited']
    """
    return native.stats()
