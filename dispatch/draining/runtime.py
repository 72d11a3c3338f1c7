"""The runtime: the one object that has what lives between programs and belongs to none of them."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any, NoReturn

from effects import _errors as errors
from effects import _jax
from effects._config import config
from effects.dispatch.draining.drain import Drain
from effects.dispatch.draining.ending import INTERRUPTED, end_drain, stop_before_child_ends
from effects.dispatch.draining.failure_log import first_of_each_line, is_one_line
from effects.dispatch.draining.failures import Failures
from effects.dispatch.draining.observers import Observers
from effects.dispatch.draining.settling import Settling
from effects.dispatch.draining.waiting import Waiting
from effects.dispatch.draining.whole_prints import write_prints_at_once
from effects.dispatch.streams.outputs import shown_beside_text
from effects.dispatch.streams.table import Streams
from effects.lowering.native_module import native
from effects.lowering.sites import KnownSites, known_sites

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
        self.settling: Settling = Settling(self.streams, self.failures)
        self.drain: Drain = Drain(self.streams, self.failures, self.observers, self.sites, self.settling)
        self.drain.before_start = self._before_start
        self.waiting: Waiting = Waiting(self.streams, self.drain, self.settling)
        self.is_lost: bool = False  # in a forked child
        # A program that JAX dispatches says nothing when it is called, but it has been lowered.
        self.sites.listen(self.start)

    def start(self) -> None:
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
        native.configure_quick_calls(None)
        lost: Any = _Lost()
        self.streams = self.failures = self.observers = self.drain = self.settling = lost
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
