"""`fx.effects_barrier`."""

from __future__ import annotations

import numbers
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

from effects import _errors as errors
from effects._jax import for_users, is_being_traced, patches
from effects._model.effect import effect_names
from effects._model.wire import PLAIN_THREAD, Kind, stream_of
from effects.dispatch.runtime.background import finish_interrupted, uninterrupted
from effects.dispatch.runtime.runtime import runtime
from effects.lowering.native_module import native

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
    "issued before it is visible on the host. Wait longer, or look at what keeps them. {waits}"
)


@for_users
def effects_barrier(
    *, timeout: float | None = None, effects: Any = None, all_threads: bool = False, scope: str = "local"
) -> None:
    """Returns when every effect that the calling thread, or one that has ended, has issued is visible on the host.

    Inside a callback it waits for what that callback has issued.

    Args:
        timeout: Seconds to wait at most; None waits for as long as it takes.
        effects: Names of effects, or objects of `Effect`, to wait for; by default all.
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
        if isinstance(timeout, bool) or not isinstance(timeout, numbers.Real) or not timeout >= 0:
            raise ValueError(MSG_TIMEOUT_VALUE.format(timeout=timeout))
        timeout = float(timeout)
    if scope not in ("local", "global"):
        raise ValueError(MSG_SCOPE.format(scope=scope))
    if is_being_traced():
        raise RuntimeError(MSG_WHILE_TRACING.format(call="fx.effects_barrier"))
    names = None if effects is None else effect_names(effects)
    if runtime.is_lost:
        return  # nothing was issued here: that raises
    finish_interrupted()
    deadline = None if timeout is None or timeout > threading.TIMEOUT_MAX else monotonic() + timeout
    meeting = _next_meeting() if scope == "global" else None
    streams = runtime.streams
    own = [*streams.own()]
    here = stream_of(own[-1].thread), 0, 0, 0
    native.note(Kind.BARRIER, here)
    outstanding = runtime.waiting.wait(streams.all() if all_threads else [*own, *streams.ended()], names, deadline)
    native.note(Kind.BARRIER_DONE, here)
    if outstanding:
        if meeting is not None:
            meeting.give_up()
        shown, waits = "; ".join(outstanding), runtime.drain.supervisor.waits()
        raise errors.BarrierTimeout(
            MSG_BARRIER_TIMEOUT.format(timeout=timeout, outstanding=shown, waits=waits).rstrip()
        )
    if meeting is not None:
        meeting.wait(timeout, deadline)  # first, lest the others wait for a process that raises
    _raise_failures(None if all_threads else {*(stream.thread for stream in streams.own()), PLAIN_THREAD})


class GlobalBarrier(Protocol):
    """A barrier of all processes."""

    def wait(self, timeout: float | None, deadline: float | None) -> None:
        """Waits until all processes are here, whose own effects are visible by then."""

    def give_up(self) -> None:
        """This process does not come: its own effects have not ended in time."""


def _next_meeting() -> GlobalBarrier | None:
    """The calling thread's next barrier of all processes; None if this is the only process."""
    return None


def meet_with(next_meeting: Callable[[], GlobalBarrier | None]) -> None:
    """Asks there, from now on, for the calling thread's next barrier of all processes."""
    global _next_meeting
    _next_meeting = next_meeting


def _raise_failures(threads: set[int] | None) -> None:
    """Raises what effects of these threads' programs raised, or of all, and has not been reported."""
    if native.has_host_failures():
        uninterrupted(runtime.failures.take_from_host_functions)
    if not runtime.failures:
        return
    runtime.failures.keep_from_jax()
    runtime.failures.raise_taken(threads)


@patches.implements("effects_barrier")
def _waiting_for_ours(block: Callable[[Any], None]) -> Callable[[Any], None]:
    """Waits for what went through us at the end of `jax.effects_barrier`, also when that raises."""

    def block_until_ready(tokens: Any) -> None:
        try:
            block(tokens)
        finally:
            if not is_being_traced():
                effects_barrier()

    return block_until_ready
