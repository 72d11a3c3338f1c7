"""The runtime: the one object that has what lives between programs and belongs to none of them.

It starts, threads wait until what they issued is visible (`fx.effects_barrier`), and it ends with the process.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from numbers import Real
from time import monotonic
from typing import Any, NoReturn

from effects import _errors as errors
from effects import _jax
from effects._config import config
from effects._model.effect import OF_JAX, Order, effect_names, keys_of_effects
from effects._model.wire import PLAIN_THREAD, Kind, ProgramTraits, stream_of
from effects.dispatch.runtime.background import Background, finish_interrupted, uninterrupted
from effects.dispatch.runtime.drain import Drain
from effects.dispatch.runtime.failures import Failures, first_of_each_line, is_one_line, shown_list
from effects.dispatch.runtime.observers import Observers
from effects.dispatch.runtime.output_tokens import FailurePoll
from effects.dispatch.runtime.outputs import shown_beside_text
from effects.dispatch.runtime.streams import Stream, Streams, traits_of
from effects.dispatch.runtime.supervisor import shown_program
from effects.lowering.native_module import native
from effects.lowering.sites import KnownSites, known_sites

# The barriers of threads.

_MOMENT = 0.05
"""Seconds in which a thread can start and find that there is nothing to wait for."""


class Waiting:
    """The waits of threads that want effects to be visible: those of their own programs, or of all."""

    def __init__(self, streams: Streams, drain: Drain, failure_poll: FailurePoll) -> None:
        self._streams = streams
        self._drain = drain
        self._failure_poll = failure_poll

    def for_thread(self, timeout: float | None = None) -> None:
        """Waits for the effects of the calling thread and of those that have ended, and raises nothing."""
        deadline = None if timeout is None else monotonic() + timeout
        self.wait([*self._streams.of_this_thread(), *self._streams.ended()], None, deadline)

    def for_calls(self) -> None:
        """Waits for our effects of the programs whose calls the calling thread has made. A function that a program of
        JAX's calls back does not wait: its own may be the last."""
        if not _jax.is_called_back():
            plain_too = any(isinstance(effect, Order) for effect in _jax.jax_tokens.current_tokens)
            self.wait([*self._streams.of_this_thread()], None, None, returned=True, plain_too=plain_too)

    def for_all(self, timeout: float | None = None) -> list[str]:
        """Waits for every thread's effects, and raises nothing. Calls that have not returned are not waited for.
        Returns what is outstanding when the time is up."""
        deadline = None if timeout is None else monotonic() + timeout
        return self.wait(self._streams.all(), None, deadline, returned=True)

    def forget_all(self) -> None:
        """Forgets all calls so far, so that no thread waits for them any more."""
        for stream in self._streams.all():
            stream.calls.clear()
            stream.running.clear()
            stream.unpolled.clear()

    def drain_former_order(self) -> None:
        """Before a program is called: waits for what the calling thread called under another `order`. Calls of other
        threads that have not returned are not waited for."""
        *former, _ = self._streams.of_this_thread()
        if any(stream.calls for stream in former):
            self.wait(former, None, None, returned=True)

    def wait(
        self,
        which: list[Stream],
        names: frozenset[str] | None,
        deadline: float | None,
        *,
        returned: bool = False,
        plain_too: bool = True,
    ) -> list[str]:
        """Waits for what has been issued; with `returned`, before the first call that has not returned; unless
        `plain_too`, by calls of our programs alone. Returns what is outstanding when the time is up."""
        nested = native.is_nested()
        streams_here = self._streams.of_this_thread()
        if plain_too and not self.for_plain_programs(deadline):
            programs = [
                shown_program(stream, number, call[0].name, traits_of(stream, number))
                for stream in streams_here
                for number, call in list(stream.calls.items())
            ]
            return programs or ["programs with callbacks of JAX's own, or that `fx.jit` has not dispatched"]
        # By stream, the newest epoch to wait for: a stream's epochs end in order.
        last = []
        for stream in which:
            if nested and stream not in streams_here and self._drain.has_functions_of(stream.thread):
                continue  # its stream continues when these functions have returned, and this may be one of them
            if stream.async_caller == PLAIN_THREAD and stream not in streams_here:
                continue  # held until a done, which may never come: this thread's programs of JAX are over
            numbers = list(stream.calls)
            # An ignored call is this thread's, or may never return. Its epoch and later ones wait for it.
            all_unreturned = returned or self._drain.ended
            ignored = stream.unreturned() if all_unreturned else stream.dispatching if stream in streams_here else []
            if ignored:
                numbers = numbers[: next((at for at, number in enumerate(numbers) if number in ignored), None)]
            for number in reversed(numbers):
                traits = traits_of(stream, number)
                if names is None or traits is None or names & {*traits.effects}:
                    last.append((stream, number))
                    break
        # A nested function that runs for a plain epoch would wait for itself: a deadlock.
        plain = native.plain_opened() if plain_too and not nested else None
        keys = keys_of_effects(names or ())

        def is_over(stream: Stream, number: int) -> bool:
            if number not in stream.calls:
                return True
            left = stream.unreleased.get(number) if keys else None
            return left is not None and left.isdisjoint(keys) and not self._drain.replays(stream.thread, keys)

        def done() -> bool:
            if plain is not None and not native.plain_has_ended(plain):
                return False
            return all(is_over(*each) for each in last)

        if self._drain.ended:
            self._drain.finish(done)
            return self._poll(which, names, None)

        def is_done_in_time() -> bool:
            left = None if deadline is None else max(0.0, deadline - monotonic())
            return done() or self._drain.wait(done, left)

        if is_done_in_time():
            if unpolled := self._poll(which, names, deadline):
                return unpolled
            if not (plain_too and _jax.unordered_tokens()) or (names is not None and not names & OF_JAX):
                return []
            if not _wait_for_unordered(deadline):
                return ["programs with unordered effects that were left to JAX"]
            # The effects that such programs have published meanwhile count too. Otherwise:
            #   1. The barrier reads how many plain epochs have been opened.
            #   2. Such a program publishes one more effect, and ends.
            #   3. The barrier finds the program's token ready, and returns ahead of that effect.
            plain = None if nested else native.plain_opened()
            if is_done_in_time():
                return []
        outstanding = self._drain.functions()
        for stream, number in last:
            for earlier in list(stream.calls):
                if not is_over(stream, number) and (call := stream.calls.get(earlier)) is not None:
                    outstanding.append(shown_program(stream, earlier, call[0].name, traits_of(stream, earlier)))
        return outstanding or ["records that are not replayed yet"]

    def _poll(self, which: list[Stream], names: frozenset[str] | None, deadline: float | None) -> list[str]:
        """Waits for programs that call handlers, all of whose effects are visible. Returns what is outstanding when the
        time is up."""
        streams_here = self._streams.of_this_thread()
        for stream in which:
            waits = self._drain.has_functions_of if native.is_nested() else self._drain.is_suspended
            if not stream.unpolled or (stream not in streams_here and waits(stream.thread)):
                continue
            if (number := self._failure_poll.poll_all(stream, names, deadline, self._drain.wait)) is not None:
                name, traits, _ = stream.unpolled.get(number, ("", ProgramTraits((), False, False), None))
                return [shown_program(stream, number, name, traits)]
        return []

    def for_plain_programs(self, deadline: float | None = None) -> bool:
        """Waits for programs with our effects that JAX dispatched on this thread. False if the time ran out.

        JAX knows when they have run; their order is kept by its tokens.
        """
        tokens = _jax.jax_tokens.current_tokens
        for effect, token in list(tokens.items()):
            while deadline is not None and not _jax.is_token_ready(token):
                if monotonic() > deadline:
                    return False
                left = max(0.0, deadline - monotonic())
                is_ready, left = functools.partial(_jax.is_token_ready, token), min(0.01, left)
                # A drain that starts here would forget the names of programs without effects.
                self._drain.wait(is_ready, left) if self._drain.has_started else native.wait(is_ready, left, False)
            if deadline is None:
                _jax.block_until_token(token)
            if isinstance(effect, Order):
                del tokens[effect]  # nothing is left to wait for; the next program resets this
        return True


def _wait_for_unordered(deadline: float | None) -> bool:
    """Waits for unordered effects that were left to JAX. False if the time ran out."""
    tokens = _jax.unordered_tokens()
    if not tokens or deadline is None:
        for token in tokens:
            _jax.block_until_token(token)
        return True
    # These tokens have no `is_ready`: a thread waits for them, which takes a moment if they are ready.
    waiting = Background(lambda: [*map(_jax.block_until_token, tokens)])
    waiting.start()
    return waiting.wait(max(_MOMENT, deadline - monotonic()))


# The end of the process: waits for effects, reports for which, and gives up on Ctrl-C.

MSG_WAITS = (
    "The process is about to end and has waited {seconds:g} s for effects: {outstanding}. It ends when all of them "
    "have been carried out. Wait, or press Ctrl-C to give them up. {waits}"
)
MSG_GIVEN_UP = (
    "Interrupted while the process ended: the effects that were left were given up{running}. A process that "
    "ends carries out all effects that were issued before, unless it is interrupted. Let it wait, if they matter."
)

MSG_LEFT_OUT = (
    "Effects of other threads were left out while the process ended. The process waits for what was issued before. End "
    "such threads first, if these effects matter."
)

_QUIET = 3.0
"""Seconds after which an ending process reports what it waits for."""

_PATIENCE = 0.2
"""Seconds for which to wait, three times at most, for what still runs when the rest is given up."""

INTERRUPTED = 130
"""The exit code of a process that Ctrl-C has ended, as shells have it."""


def stop_before_child_ends(stop: Callable[[], None]) -> None:
    """In a process started by `multiprocessing`, registers a call of `stop` for when the process's function has
    returned. If the process was forked, Python calls no exit handlers then; from 3.13 on, only those registered since
    the fork."""
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


class _EndsProcess:
    """Ends an interrupted process when Python has called all exit handlers and frees them. Python's finalization would
    come next: in it, a thread that returns from a program that was given up makes the process abort."""

    def __del__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(INTERRUPTED)


def _no_handler(_: object) -> None:
    pass


_BEFORE_QUEUES_CLOSE = 1000
"""The priority of a finalizer that `multiprocessing` calls at the end of a process. It closes its queues with 10."""


def end_drain(waiting: Waiting, drain: Drain) -> bool:
    """Shows all effects and ends the drain. Returns True if the user has interrupted that."""
    try:
        finish_interrupted()
        _wait(waiting, drain)
        if said := uninterrupted(drain.beside.end_plain):
            _tell(said)
        _finish(drain, drain.beside.wait)
        _wait(waiting, drain)
        waiting.for_thread(_QUIET)  # with order="process" effects may wait for a call that does not return
        drain.discards = True  # other threads may run forever
        _finish(drain, drain.stop)
        if drain.has_discarded:
            _tell(MSG_LEFT_OUT)
        drain.discards = False  # effects of exit handlers are carried out
    except KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt):  # once more
            drain.give_up(_PATIENCE)
        drain.ended, drain.discards = True, False  # effects of exit handlers are carried out
        running = shown_list(drain.functions())
        waiting.forget_all()
        _tell(
            MSG_GIVEN_UP.format(
                running=f"; this had not returned: {running}" if running else "",
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


# The runtime itself.

MSG_FORKED = (
    "Effects were used in a process that was forked from one which has effects. Only the thread that forks goes on in "
    "a forked child: the threads that show effects are not there, nor are those on which XLA computes, so what is "
    "printed, logged or called back would be lost. Start the process afresh, with "
    "`multiprocessing.get_context('spawn')` or `'forkserver'`."
)


class _Lost:
    """The stand-in for a part of the parent's runtime in a forked child."""

    def __getattr__(self, name: str) -> NoReturn:
        raise errors.EffectError(MSG_FORKED)


class Runtime:
    """Streams, drain, failures, observers and sites. Each refers only to those that it uses.

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
        self.drain.before_start = lambda: stop_before_child_ends(self.stop)
        self.waiting: Waiting = Waiting(self.streams, self.drain, self.failure_poll)
        self.is_lost: bool = False  # in a forked child
        self._at_end: list[Callable[[], object]] = []
        # A program that JAX dispatches gives no notice of its calls, only of its lowering.
        self.sites.listen(self.start)

    def call_at_end(self, close: Callable[[], object]) -> None:
        """Calls the function when the process ends and all effects have been shown."""
        self._at_end.append(close)

    def start(self, _: object = None) -> None:
        """Starts the drain, if it does not run yet: before a program is called that may publish."""
        self.drain.start()

    def after_fork(self) -> None:
        """In a forked child, which has only the thread that forked: without a drain all records would be lost. So any
        use of effects raises.

        A drain that has not started yet can start in the child. No lock may be taken there that one of the parent's
        threads may have had, and nothing is left to do when the child ends: its parent shows the effects issued before.
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
            # Nothing runs in the background from here on, so calls by later exit handlers wait for their effects.
            config.sync = True
            unseen += [*self.failures.raising, *self.failures.take(unended=True)]
            self.failures.keep_from_jax()
            shown_beside_text().close()
            for handler in self.observers.handlers:
                try:
                    handler.close()
                except KeyboardInterrupt as error:  # each is closed, whatever another raises
                    interrupted = True
                    unseen.append(error)
                except BaseException as error:
                    unseen.append(error)
            for failure in first_of_each_line(unseen):
                if is_one_line(failure):
                    failure.__cause__ = None
                _jax.hide_frames(failure)
                sys.excepthook(type(failure), failure, failure.__traceback__)
            for close in self._at_end:
                close()
            if interrupted:
                native.end_with(INTERRUPTED, always=True)
                atexit.register(_no_handler, _EndsProcess())
            elif unseen:
                native.end_with(config.exit_code)


runtime: Runtime = Runtime(known_sites)
os.register_at_fork(after_in_child=runtime.after_fork)
atexit.register(runtime.stop)  # before JAX's own exit handlers, which were registered first and release the devices


# `fx.effects_barrier`.

MSG_TIMEOUT_VALUE = (
    "`effects_barrier` was given the timeout {timeout!r}. A timeout is a number of seconds, zero or more, or None to "
    "wait for as long as it takes. Pass, say, `timeout=10`."
)
MSG_SCOPE = (
    "`effects_barrier` was given the scope {scope!r}. A barrier is of this process, or of all processes of "
    "`jax.distributed`. Pass `scope='local'` or `scope='global'`."
)
MSG_WHILE_TRACING = (
    "`{call}` was called while a function is traced. What the function issues happens when its program runs, and is "
    "still to come then. Call it around the call of the jitted function."
)
MSG_BARRIER_TIMEOUT = (
    "The barrier waited {timeout:g} s and these have not ended: {outstanding}. A barrier returns when all that was "
    "issued before it is visible on the host. Pass a longer `timeout`, or end what keeps them. {waits}"
)


@_jax.for_users
def effects_barrier(
    *, timeout: float | None = None, effects: Any = None, all_threads: bool = False, scope: str = "local"
) -> None:
    """Returns when every effect that the calling thread, or one that has ended, has issued is visible on the host.

    Inside a callback it waits for what that callback has issued.

    Args:
        timeout: Seconds to wait at most; None waits for as long as it takes.
        effects: Names of effects, or objects of `Effect`, to wait for, with those of their domains; by default all.
        all_threads: Whether to wait for the effects of all threads, those that live too.
        scope: `"local"`: this process. `"global"`: all processes of `jax.distributed`, each of which must call this, in
            the same thread if there are several. It then returns when what each of them waits for is visible there.

    Raises:
        BarrierTimeout: if the time ran out; it names what is outstanding, of functions and custom calls with their
            lines, and with `scope="global"` the processes that have not come. That goes for a process that has died
            too. Without a timeout JAX notices that it has, after the `heartbeat_timeout_seconds` of
            `jax.distributed.initialize`, and ends the other processes.
        RuntimeError: while a function is traced, whose effects are still to come.
        EffectError: what an effect raised on the host since the last barrier. Several at one line of the source are one
            error, which has all of them in `failures`; at several lines they are an exception group, which is itself
            of their common class, as `CheckError`.

    Example:
        >>> import effects as fx
        >>> fx.jit(lambda x: fx.print("x = {}", x))(1)
        >>> fx.effects_barrier(timeout=10)
        x = 1
    """
    if timeout is not None:
        if isinstance(timeout, bool) or not isinstance(timeout, Real) or not timeout >= 0:
            raise errors.value_error(MSG_TIMEOUT_VALUE.format(timeout=timeout))
        timeout = float(timeout)
    if scope not in ("local", "global"):
        raise errors.value_error(MSG_SCOPE.format(scope=scope))
    if _jax.is_being_traced():
        raise errors.runtime_error(MSG_WHILE_TRACING.format(call="fx.effects_barrier"))
    names = None if effects is None else effect_names(effects)
    if runtime.is_lost:
        return  # nothing was issued here, since that raises
    finish_interrupted()
    deadline = None if timeout is None or timeout > threading.TIMEOUT_MAX else monotonic() + timeout
    meeting = _next_meeting() if scope == "global" else None
    streams = runtime.streams
    streams_here = [*streams.of_this_thread()]
    here = stream_of(streams_here[-1].thread), 0, 0, 0
    native.note(Kind.BARRIER, here)
    outstanding = runtime.waiting.wait(
        streams.all() if all_threads else [*streams_here, *streams.ended()], names, deadline
    )
    native.note(Kind.BARRIER_DONE, here)
    if outstanding:
        shown, waits = "; ".join(outstanding), runtime.drain.supervisor.waits()
        raise errors.BarrierTimeout(
            MSG_BARRIER_TIMEOUT.format(timeout=timeout, outstanding=shown, waits=waits).rstrip()
        )
    if meeting is not None:
        meeting(timeout, deadline)  # first, so that other processes do not wait for one that raises
    _raise_failures(None if all_threads else {*(stream.thread for stream in streams.of_this_thread()), PLAIN_THREAD})


GlobalBarrier = Callable[[float | None, float | None], None]
"""A barrier of all processes, given a timeout and its deadline. It returns when each process has come to it, with its
own effects visible."""


def _next_meeting() -> GlobalBarrier | None:
    """The calling thread's next barrier of all processes; None if this is the only process."""
    return None


def meet_with(next_meeting: Callable[[], GlobalBarrier | None]) -> None:
    """Sets the function that returns the calling thread's next barrier of all processes."""
    global _next_meeting
    _next_meeting = next_meeting


def _raise_failures(threads: set[int] | None) -> None:
    """Raises the failures of these threads' programs, or of all programs, that have not been reported."""
    if native.has_host_failures():
        uninterrupted(runtime.failures.take_from_host_functions)
    if not runtime.failures:
        return
    runtime.failures.keep_from_jax()
    runtime.failures.raise_taken(threads)


@_jax.patches.implements("effects_barrier")
def _waiting_for_ours(block: Callable[[Any], None]) -> Callable[[Any], None]:
    """Ends `jax.effects_barrier` with our own barrier, also when JAX's raises."""

    def block_until_ready(tokens: Any) -> None:
        try:
            block(tokens)
        finally:
            if not _jax.is_being_traced():
                effects_barrier()

    return block_until_ready


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
