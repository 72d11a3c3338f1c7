"""Waiting until effects are visible on the host."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

from dispatch._drain import drain
from dispatch._failures import failures
from dispatch._processes import next_meeting
from dispatch._sink import native
from dispatch._streams import Stream, is_nested, own_streams, streams
from effects import _errors as errors
from effects import _jax as compat
from effects._registry import OF_JAX, effect_names
from effects._types import Order
from effects._wire import UNTRACKED_THREAD


def effects_barrier(
    *, timeout: float | None = None, effects: Any = None, all_threads: bool = False, scope: str = "local"
) -> None:
    """Returns when every effect that was issued before is visible on the host.

    Args:
        timeout: Seconds to wait at most; None waits for as long as it takes.
        effects: Names of effects, or `Effect`s, to wait for; by default all.
        all_threads: Whether to wait for the effects of all threads, instead of the calling thread's.
        scope: `"local"`: this process. `"global"`: all processes of `jax.distributed`, each of which must call this, in
            the same thread if there are several. It then returns when what each of them waits for is visible there.

    Raises:
        BarrierTimeout: if the time ran out; it names what is outstanding, and with `scope="global"` the processes that
            have not come. That goes for a process that has died too. Without a timeout JAX notices that it has, after
            the `heartbeat_timeout_seconds` of `jax.distributed.initialize`, and ends the other processes.
        EffectError: what an effect raised on the host since the last barrier; several as an `ExceptionGroup`.

    Example:
        >>> import effects as fx
        >>> fx.jit(lambda x: fx.print("x = {}", x))(1)
        >>> fx.effects_barrier(timeout=10)
        x = 1
    """
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0):
        raise ValueError(errors.MSG_TIMEOUT_VALUE.format(timeout=timeout))
    if scope not in ("local", "global"):
        raise ValueError(errors.MSG_SCOPE.format(scope=scope))
    names = None if effects is None else effect_names(effects)
    deadline = None if timeout is None or timeout > threading.TIMEOUT_MAX else time.monotonic() + timeout
    meeting = next_meeting() if scope == "global" else None
    outstanding = _wait(list(streams.values()) if all_threads else own_streams(), names, deadline)
    if outstanding:
        if meeting is not None:
            meeting.give_up()
        raise errors.BarrierTimeout(
            errors.MSG_BARRIER_TIMEOUT.format(timeout=timeout, outstanding="; ".join(outstanding))
        )
    if meeting is not None:
        meeting.wait(timeout, deadline)  # first, lest the others wait for a process that raises
    raise_failures(None if all_threads else {*(stream.thread for stream in own_streams()), UNTRACKED_THREAD})


def wait_for_thread() -> None:
    """Waits for the calling thread's effects, and raises nothing."""
    _wait(own_streams(), None, None)


def settle_order() -> None:
    """Before a program is called: what the calling thread called under another `order` becomes visible first. Calls of
    others that have not returned are not waited for."""
    *former, _ = own_streams()
    if any(stream.calls for stream in former):
        _wait(former, None, None, returned=True)


def wait_for_all() -> None:
    """Waits for every thread's effects, and raises nothing. Calls that have not returned are not waited for."""
    _wait(list(streams.values()), None, None, returned=True)


def raise_failures(threads: set[int] | None) -> None:
    """Raises what effects of these threads' programs raised, or of all, and nobody has reported."""
    if not failures:
        return
    raised = failures.take(threads)
    forget_plain_failures()
    if len(raised) == 1:
        raise raised[0]
    if raised:
        raise BaseExceptionGroup("Several effects could not be carried out on the host.", raised)


def _wait(
    which: list[Stream], names: frozenset[str] | None, deadline: float | None, *, returned: bool = False
) -> list[str]:
    """Waits for what has been issued; with `returned`, before the first call that has not returned. Returns what is
    outstanding when the time is up."""
    nested = is_nested()
    # Records of programs that JAX dispatched do not say which thread that was. One that runs functions of effects knows
    # whether it has dispatched any.
    for_plain = not nested or bool(compat.jax_tokens.current_tokens)
    if not wait_for_plain_programs(deadline):
        return ["programs with effects that were not dispatched by fx.jit"]
    own = own_streams()
    # The newest epoch that counts, of each stream: a stream's epochs end in their order.
    last = []
    for stream in which:
        if nested and stream not in own and drain.holds(stream.thread):
            continue  # it goes on when the effects that are being replayed are done, and we may be one of them
        numbers = list(stream.calls)
        # Such a call is ours or may never return: what it opened and what came after waits for it.
        ignored = stream.unreturned() if returned or drain.ended else stream.dispatching if stream in own else []
        numbers = _before(numbers, ignored)
        for number in reversed(numbers):
            effects = _effects_of(stream, number)
            if names is None or effects is None or names & set(effects):
                last.append((stream, number))
                break
    plain = native.untracked_published() if for_plain else 0

    def done() -> bool:
        # What is replayed right now is not what one of the functions in it waits for. Whoever else waits for records
        # without an epoch waits for that too: later ones may have passed it, so that their number alone does not tell.
        plain_released = drain.plain_released
        if nested:
            plain_released += drain.plain_in_runs
        elif plain and drain.plain_in_runs:
            return False
        return plain_released >= plain and not any(number in stream.calls for stream, number in last)

    if drain.ended:
        drain.finish(done)
        return []
    drain.start()  # a program that failed while it was traced has an epoch too
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    if done() or drain.wait(done, left, for_plain=for_plain):
        if (names is None or names & _OF_JAX) and not _wait_for_unordered(deadline):
            return ["programs with unordered effects that were left to JAX"]
        return []
    outstanding = list(map(str, drain.functions().values()))
    for stream, number in last:
        for earlier in list(stream.calls):
            if number in stream.calls and (call := stream.calls.get(earlier)) is not None:
                effects = ", ".join(_effects_of(stream, earlier) or ["effects"])
                outstanding.append(f"{effects} of `{call[0].name}` (thread {stream.thread}, dispatch {earlier})")
    return outstanding or ["records that are not replayed yet"]


def _before(numbers: list[int], others: list[int]) -> list[int]:
    """The numbers before the first that is one of the others."""
    return list(itertools.takewhile(lambda number: number not in others, numbers)) if others else numbers


def _effects_of(stream: Stream, number: int) -> tuple[str, ...] | None:
    """Names of the effects of an epoch that has not ended, if they are known."""
    if (running := stream.running.get(number)) is not None:
        return running[0].effects
    if (site := stream.eager.get(number)) is not None:
        return (site.effect.name,)
    call = stream.calls.get(number)
    traits = call[0].traits if call is not None else None
    return traits.effects if traits is not None else None


def forget_plain_failures() -> None:
    """What a callback raised in a program that JAX dispatched, we say. JAX is not to say it again in a later one."""
    if failures.plain_ended:
        failures.plain_ended = False
        compat.forget_failed_tokens(lambda text: errors.WAITED in text)


def wait_for_plain_programs(deadline: float | None = None) -> bool:
    """Waits for programs with our effects that JAX dispatched on this thread. False if the time ran out.

    JAX knows when they have run; their order is kept by its tokens.
    """
    tokens = compat.jax_tokens.current_tokens
    for effect, token in list(tokens.items()):
        while deadline is not None and not compat.is_token_ready(token):
            if time.monotonic() > deadline:
                return False
            left = max(0.0, deadline - time.monotonic())
            drain.wait(lambda token=token: compat.is_token_ready(token), min(0.01, left))
        if deadline is None:
            compat.block_until_token(token)
        if isinstance(effect, Order):
            del tokens[effect]  # nothing is left to wait for; the next program begins anew
    return True


_OF_JAX = frozenset(effect.name for effect in OF_JAX.values())


def _wait_for_unordered(deadline: float | None) -> bool:
    """Waits for unordered effects that were left to JAX. False if the time ran out."""
    tokens = compat.unordered_tokens()
    if not tokens or deadline is None:
        for token in tokens:
            compat.block_until_token(token)
        return True
    # These tokens do not say whether they are ready.
    waiting = threading.Thread(target=lambda: [*map(compat.block_until_token, tokens)], daemon=True)
    waiting.start()
    waiting.join(max(0.0, deadline - time.monotonic()))
    return not waiting.is_alive()


compat.on_barrier(effects_barrier)  # `jax.effects_barrier()` covers what went through us
