"""The end of the process: it waits for effects, says for which, and gives up the rest on Ctrl-C."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable

from effects.dispatch.draining.background import finish_interrupted, uninterrupted
from effects.dispatch.draining.drain import Drain
from effects.dispatch.draining.left_out import LeftOut, shown_list
from effects.dispatch.draining.waiting import Waiting

MSG_WAITS = (
    "The process is about to end and has waited {seconds:g} s for effects: {outstanding}. It ends when all of them "
    "have been carried out. Wait, or press Ctrl-C to give them up."
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
        _wait(waiting)
        if said := uninterrupted(drain.beside.end_untracked):
            _tell(said)
        _finish(drain, drain.beside.wait)
        _wait(waiting)
        waiting.for_thread(_QUIET)  # with order="process" our effects may come after a call that does not return
        drain.given_up = LeftOut()  # of what comes now: other threads may go on forever
        _finish(drain, drain.stop)
        if drain.given_up:
            _tell(MSG_LEFT_OUT.format(left_out=drain.given_up.by_line()))
        drain.given_up = None  # what exit handlers issue is carried out
    except KeyboardInterrupt:
        try:
            left_out = drain.give_up(_PATIENCE)
        except KeyboardInterrupt:  # once more
            left_out = drain.given_up
        drain.ended, drain.given_up = True, None  # what exit handlers issue is carried out
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


def _wait(waiting: Waiting) -> None:
    if outstanding := waiting.for_all(_QUIET):
        _tell(MSG_WAITS.format(seconds=_QUIET, outstanding=shown_list(outstanding)))
        waiting.for_all()


def _finish(drain: Drain, wait: Callable[[float | None], bool]) -> None:
    if not wait(_QUIET):
        functions = shown_list(drain.functions())
        _tell(MSG_WAITS.format(seconds=_QUIET, outstanding=functions or "what other threads' calls wait for"))
        wait(None)


def _tell(text: str) -> None:
    if sys.stderr is not None:
        print(text, file=sys.stderr, flush=True)
