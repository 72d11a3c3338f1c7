"""The runtime: the one object that has what lives between programs and belongs to none of them."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from effects import _errors as errors
from effects import _jax
from effects._config import config
from effects.dispatch.runtime.background import finish_interrupted, uninterrupted
from effects.dispatch.runtime.drain import Drain
from effects.dispatch.runtime.failures import Failures, LeftOut, first_of_each_line, is_one_line, shown_list
from effects.dispatch.runtime.observers import Observers
from effects.dispatch.runtime.output_tokens import FailurePoll
from effects.dispatch.runtime.outputs import shown_beside_text, write_prints_at_once
from effects.dispatch.runtime.streams import Streams
from effects.dispatch.runtime.waiting import Waiting
from effects.lowering.native_module import native
from effects.lowering.sites import KnownSites, known_sites

# The end of the process: it waits for effects, says for which, and gives up the rest on Ctrl-C.

MSG_WAITS = (
    "The process is about to end and has waited {seconds:g} s for effects: {outstanding}. It ends when all of them "
    "have been carried out. Wait, or press Ctrl-C to give them up. {waits}"
)
MSG_GIVEN_UP = (
    "Interrupted while the process ended: {total} effects were given up{where}{running}{unended}. A process that ends "
    "carries out all effects that were issued before, unless it is interrupted. Let it wait, if they matter."
)

MSG_LEFT_OUT = (
    "Effects of other threads were left out while the process ended: {left_out}. The process waits for what was issued "
    "before. End such threads first, if these effects matter."
)

_QUIET = 3.0
"""Seconds after which the process says what it waits for."""

_PATIENCE = 0.2
"""Seconds for which to wait, three times at most, for what still runs when the rest is given up."""

INTERRUPTED = 130
"""The code with which a process ends that Ctrl-C has ended, as shells have it."""


def stop_before_child_ends(stop: Callable[[], None]) -> None:
    """In a process that `multiprocessing` has started, has `stop` called when its function has returned. If the process
    was forked, Python calls no exit handler then, or from 3.13 on those that were registered since."""
    processes = sys.modules.get("multiprocessing.process")
    if processes is None or processes.parent_process() is None:
        return
    from multiprocessing.util import Finalize

    def stop_once() -> None:
        atexit.unregister(stop_once)
        finalizer.cancel()
        stop()

    atexit.unregister(stop)
    atexit.register(stop_once)
    finalizer = Finalize(None, stop_once, exitpriority=_BEFORE_QUEUES_CLOSE)


_BEFORE_QUEUES_CLOSE = 1000
"""A priority of what `multiprocessing` calls at the end of a process. It closes its queues with 10."""


def end_drain(waiting: Waiting, drain: Drain) -> bool:
    """Shows all effects and ends the drain. Returns whether the user has interrupted that."""
    try:
        finish_interrupted()
        _wait(waiting, drain)
        if said := uninterrupted(drain.beside.end_plain):
            _tell(said)
        _finish(drain, drain.beside.wait)
        _wait(waiting, drain)
        waiting.for_thread(_QUIET)  # with order="process" our effects may come after a call that does not return
        drain.discarded_at_exit = LeftOut()  # of what comes now: other threads may go on forever
        _finish(drain, drain.stop)
        if drain.discarded_at_exit:
            _tell(MSG_LEFT_OUT.format(left_out=drain.discarded_at_exit.by_line()))
        drain.discarded_at_exit = None  # what exit handlers issue is carried out
    except KeyboardInterrupt:
        try:
            left_out = drain.give_up(_PATIENCE)
        except KeyboardInterrupt:  # once more
            left_out = drain.discarded_at_exit
        drain.ended, drain.discarded_at_exit = True, None  # what exit handlers issue is carried out
        running = shown_list(drain.functions())
        unended = waiting.count_unended()
        waiting.forget_all()
        total = left_out.total() if left_out else 0
        _tell(
            MSG_GIVEN_UP.format(
                total=total,
                where=f": {left_out.by_line()}" if total and left_out else "",
                running=f"; this had not returned: {running}" if running else "",
                unended=f"; {unended} programs had not ended" if unended else "",
            )
        )
        return True
    return False


def _wait(waiting: Waiting, drain: Drain) -> None:
    if outstanding := waiting.for_all(_QUIET):
        _tell_waits(drain, shown_list(outstanding))
        waiting.for_all()


def _finish(drain: Drain, wait: Callable[[float | None], bool]) -> None:
    if not wait(_QUIET):
        _tell_waits(drain, shown_list(drain.functions()) or "what other threads' calls wait for")
        wait(None)


def _tell_waits(drain: Drain, outstanding: str) -> None:
    _tell(MSG_WAITS.format(seconds=_QUIET, outstanding=outstanding, waits=drain.supervisor.waits()))


def _tell(text: str) -> None:
    if sys.stderr is not None:
        print(text, file=sys.stderr, flush=True)


MSG_FORKED = (
    "Effects were used in a process that was forked from one which has effects. Only the thread that forks goes on in "
    "a forked child: the threads that show effects are not there, nor are those on which XLA computes, so what is "
    "printed, logged or called back would be lost. Start the process afresh, with "
    "`multiprocessing.get_context('spawn')` or `'forkserver'`."
)


class _Lost:
    """What a forked child has in place of a part of its parent's runtime."""

    def __getattr__(self, name: str) -> NoReturn:
        raise errors.EffectError(MSG_FORKED)


class Runtime:
    """Streams, drain, failures, observers and sites, each of which knows only those that it uses.

    There is one in a process, as there is one native module, which has the rings that the drain empties. It starts the
    drain, stops it when the process ends, and has a forked child raise instead of losing effects.
    """

    def __init__(self, sites: KnownSites) -> None:
        self.sites = sites
        self.streams: Streams = Streams()
        self.failures: Failures = Failures(self.streams)
        self.observers: Observers = Observers()
        self.failure_poll: FailurePoll = FailurePoll(self.streams, self.failures)
        self.drain: Drain = Drain(self.streams, self.failures, self.observers, self.sites, self.failure_poll)
        self.drain.before_start = self._before_start
        self.waiting: Waiting = Waiting(self.streams, self.drain, self.failure_poll)
        self.is_lost: bool = False  # in a forked child
        # A program that JAX dispatches says nothing when it is called, but it has been lowered.
        self.sites.listeners.append(self.start)

    def start(self, _: object = None) -> None:
        """Starts the drain, if it does not run yet: before a program is called that may publish."""
        self.drain.start()

    def _before_start(self) -> None:
        stop_before_child_ends(self.stop)
        write_prints_at_once()

    def after_fork(self) -> None:
        """In a forked child, where only the thread that forked goes on: without a drain whatever is published would be
        lost. So any use of effects raises.

        A drain that has not started yet can start in the child. No lock may be taken there that one of the parent's
        threads may have had, and nothing is left to do when the child ends: its parent shows what it has issued.
        """
        if not self.drain.has_started:
            return
        self.is_lost = True
        native.refuse(MSG_FORKED)
        native.raise_attention()
        lost: Any = _Lost()
        self.streams = self.failures = self.observers = self.drain = self.failure_poll = lost
        self.waiting = lost

    def stop(self) -> None:
        """Shows all effects, ends the drain, closes handlers, and reports what effects raised and no caller was given.

        At the end of the process. Effects of exit handlers that come later are replayed where they are called.
        """
        if self.is_lost:
            return
        interrupted, unseen = False, list[BaseException]()
        try:
            interrupted = end_drain(self.waiting, self.drain)
        finally:
            self.drain.ended = True
            # Nothing runs in the background from here on, so what later exit handlers call waits for its effects.
            config.sync = True
            unseen += [*self.failures.raising, *self.failures.take(unended=True)]
            self.failures.keep_from_jax()
            shown_beside_text().close()
            for handler in self.observers.handlers:
                try:
                    handler.close()
                except KeyboardInterrupt as error:  # each is closed, whatever comes
                    interrupted = True
                    unseen.append(error)
                except BaseException as error:
                    unseen.append(error)
            for failure in first_of_each_line(unseen):
                if is_one_line(failure):
                    failure.__cause__ = None
                _jax.hide_frames(failure)
                sys.excepthook(type(failure), failure, failure.__traceback__)
            native.watch_exit(config.exit_code)
            if interrupted:
                native.end_with(INTERRUPTED, always=True)
            elif unseen:
                native.end_with(config.exit_code)


runtime: Runtime = Runtime(known_sites)
os.register_at_fork(after_in_child=runtime.after_fork)
atexit.register(runtime.stop)  # JAX's own handlers were there before, and so come later: they let go of the devices


# `fx.stats`.


def stats() -> dict[str, int]:
    """Counts since the process started.

    Returns:
        `published`: records that devices published; `released`: those that left in order; `dropped`: lost because a
        ring was full; `discarded`: other devices' copies of the same record, and what came of a program that had
        failed before. After a barrier of all threads, `published` is the sum of these three. `cancelled`: callbacks
        that did not run because their program had failed; `waited`: times a device waited for room; `bytes`: published,
        headers included; `high_water`: the most bytes that one ring held.

    Example:
        >>> import effects as fx
        >>> sorted(fx.stats())
        ['bytes', 'cancelled', 'discarded', 'dropped', 'high_water', 'published', 'released', 'waited']
    """
    return native.stats()
