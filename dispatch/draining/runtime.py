"""The runtime: the one object that has what lives between programs and belongs to none of them."""

from __future__ import annotations

import atexit
import sys

from effects._api.config import config
from effects.dispatch.draining.drain import Drain
from effects.dispatch.draining.ending import INTERRUPTED, end_drain
from effects.dispatch.draining.failures import Failures
from effects.dispatch.draining.observers import Observers
from effects.dispatch.draining.processes import Meetings
from effects.dispatch.draining.waiting import Waiting
from effects.dispatch.streams.table import Streams
from effects.lowering.host.native import native
from effects.lowering.host.sites import KnownSites, known_sites


class Runtime:
    """Streams, drain, failures, observers and sites, each of which knows only those that it uses.

    There is one in a process, as there is one native module, which has the rings that the drain empties.

    A forked child has no drain, since only the thread that forked goes on there: what its programs publish stays in the
    rings, and a barrier deadlocks. JAX, too, does not work there, so nothing is done about it: a child that has effects
    is to be spawned.
    """

    def __init__(self, sites: KnownSites) -> None:
        self.sites = sites
        self.streams = Streams()
        self.failures = Failures(self.streams)
        self.observers = Observers()
        self.drain = Drain(self.streams, self.failures, self.observers, self.sites)
        self.waiting = Waiting(self.streams, self.drain)
        self.meetings = Meetings(self.streams, self.drain)
        # A program that JAX dispatches says nothing when it is called, but it has been lowered.
        self.sites.listen(self.start)

    def start(self) -> None:
        """Starts the drain, if it does not run yet: before a program is called that may publish."""
        self.drain.start()

    def stop(self) -> None:
        """Shows all effects, ends the drain, closes handlers, and reports what effects raised and no caller was given.

        At the end of the process. Effects of exit handlers that come later are replayed where they are called.
        """
        interrupted, unseen = False, list[BaseException]()
        try:
            interrupted = end_drain(self.waiting, self.drain)
        finally:
            self.drain.ended = True
            # Nothing runs in the background from here on, so what later exit handlers call waits for its effects.
            config.sync = True
            unseen += self.failures.take(unended=True)
            self.failures.keep_from_jax()
            for handler in self.observers.handlers:
                try:
                    handler.close()
                except KeyboardInterrupt as error:  # each is closed, whatever comes
                    interrupted = True
                    unseen.append(error)
                except BaseException as error:
                    unseen.append(error)
            for failure in unseen:
                sys.excepthook(type(failure), failure, failure.__traceback__)
            native.watch_exit(config.exit_code)
            if interrupted:
                native.end_with(INTERRUPTED, always=True)
            elif unseen:
                native.end_with(config.exit_code)


runtime = Runtime(known_sites)
atexit.register(runtime.stop)  # JAX's own handlers were there before, and so come later: they let go of the devices
