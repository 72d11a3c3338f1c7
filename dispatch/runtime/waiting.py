"""Waiting until effects are visible on the host."""

from __future__ import annotations

import itertools
from time import monotonic

from effects import _jax
from effects._model.effect import OF_JAX, Order
from effects._model.wire import PLAIN_THREAD, ProgramTraits
from effects.dispatch.runtime.background import Background
from effects.dispatch.runtime.drain import Drain
from effects.dispatch.runtime.output_tokens import FailurePoll
from effects.dispatch.runtime.streams import Stream, Streams, traits_of
from effects.dispatch.runtime.supervisor import shown_program
from effects.lowering.native_module import native

_MOMENT = 0.05
"""Seconds in which a thread can start and find that there is nothing to wait for."""


class Waiting:
    """What threads wait for that want effects to be visible: those of their own programs, or of all."""

    def __init__(self, streams: Streams, drain: Drain, failure_poll: FailurePoll) -> None:
        self._streams = streams
        self._drain = drain
        self._failure_poll = failure_poll

    def for_thread(self, timeout: float | None = None) -> None:
        """Waits for the effects of the calling thread and of those that have ended, and raises nothing."""
        deadline = None if timeout is None else monotonic() + timeout
        self.wait([*self._streams.own(), *self._streams.ended()], None, deadline)

    def for_all(self, timeout: float | None = None) -> list[str]:
        """Waits for every thread's effects, and raises nothing. Calls that have not returned are not waited for.
        Returns what is outstanding when the time is up."""
        deadline = None if timeout is None else monotonic() + timeout
        return self.wait(self._streams.all(), None, deadline, returned=True)

    def forget_all(self) -> None:
        """Nobody waits any more for what has been called so far."""
        for stream in self._streams.all():
            stream.calls.clear()
            stream.running.clear()
            stream.unpolled.clear()

    def count_unended(self) -> int:
        """How many programs have been called and have not ended."""
        return sum(len(stream.calls) for stream in self._streams.all())

    def drain_former_order(self) -> None:
        """Before a program is called: what the calling thread called under another `order` becomes visible first. Calls
        of others that have not returned are not waited for."""
        *former, _ = self._streams.own()
        if any(stream.calls for stream in former):
            self.wait(former, None, None, returned=True)

    def wait(
        self, which: list[Stream], names: frozenset[str] | None, deadline: float | None, *, returned: bool = False
    ) -> list[str]:
        """Waits for what has been issued; with `returned`, before the first call that has not returned. Returns what is
        outstanding when the time is up."""
        nested = native.is_nested()
        own = self._streams.own()
        if not self.for_plain_programs(deadline):
            programs = [
                shown_program(stream, number, call[0].name, traits_of(stream, number))
                for stream in own
                for number, call in list(stream.calls.items())
            ]
            return programs or ["programs with callbacks of JAX's own, or that `fx.jit` has not dispatched"]
        # The newest epoch that counts, of each stream: a stream's epochs end in their order.
        last = []
        for stream in which:
            if nested and stream not in own and self._drain.has_functions_of(stream.thread):
                continue  # it goes on when these functions have returned, and we may be one of them
            if stream.held_for == PLAIN_THREAD and stream not in own:
                continue  # it goes on with a done, which may never come: what JAX dispatched on this thread is over
            numbers = list(stream.calls)
            # Such a call is ours or may never return: what it opened and what came after waits for it.
            all_unreturned = returned or self._drain.ended
            ignored = stream.unreturned() if all_unreturned else stream.dispatching if stream in own else []
            numbers = _before(numbers, ignored)
            for number in reversed(numbers):
                traits = traits_of(stream, number)
                if names is None or traits is None or names & {*traits.effects}:
                    last.append((stream, number))
                    break
        # A function that is nested may run for a plain epoch, and would wait for itself.
        plain = None if nested else native.plain_opened()

        def done() -> bool:
            if plain is not None and not native.plain_has_ended(plain):
                return False
            return not any(number in stream.calls for stream, number in last)

        if self._drain.ended:
            self._drain.finish(done)
            return self._poll(which, names, None)
        self._drain.start()  # a program that failed while it was traced has an epoch too

        def is_done_in_time() -> bool:
            left = None if deadline is None else max(0.0, deadline - monotonic())
            return done() or self._drain.wait(done, left)

        if is_done_in_time():
            if unpolled := self._poll(which, names, deadline):
                return unpolled
            if not _jax.unordered_tokens() or (names is not None and not names & OF_JAX):
                return []
            if not _wait_for_unordered(deadline):
                return ["programs with unordered effects that were left to JAX"]
            # What such programs have published meanwhile counts too. Otherwise:
            #   1. The barrier reads how many plain epochs have been opened.
            #   2. Such a program publishes an effect more, and ends.
            #   3. The barrier finds its token ready, and returns ahead of that effect.
            plain = None if nested else native.plain_opened()
            if is_done_in_time():
                return []
        outstanding = self._drain.functions()
        for stream, number in last:
            for earlier in list(stream.calls):
                if number in stream.calls and (call := stream.calls.get(earlier)) is not None:
                    outstanding.append(shown_program(stream, earlier, call[0].name, traits_of(stream, earlier)))
        return outstanding or ["records that are not replayed yet"]

    def _poll(self, which: list[Stream], names: frozenset[str] | None, deadline: float | None) -> list[str]:
        """Waits for programs that call handlers, all of whose effects are visible. Returns what is outstanding when the
        time is up."""
        own = self._streams.own()
        for stream in which:
            waits = self._drain.has_functions_of if native.is_nested() else self._drain.is_suspended
            if not stream.unpolled or (stream not in own and waits(stream.thread)):
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
                self._drain.wait(lambda token=token: _jax.is_token_ready(token), min(0.01, left))
            if deadline is None:
                _jax.block_until_token(token)
            if isinstance(effect, Order):
                del tokens[effect]  # nothing is left to wait for; the next program begins anew
        return True


def _before(numbers: list[int], others: list[int]) -> list[int]:
    """The numbers before the first that is one of the others."""
    return list(itertools.takewhile(lambda number: number not in others, numbers)) if others else numbers


def _wait_for_unordered(deadline: float | None) -> bool:
    """Waits for unordered effects that were left to JAX. False if the time ran out."""
    tokens = _jax.unordered_tokens()
    if not tokens or deadline is None:
        for token in tokens:
            _jax.block_until_token(token)
        return True
    # These tokens do not say whether they are ready: a thread finds out, which takes a moment if they are.
    waiting = Background(lambda: [*map(_jax.block_until_token, tokens)])
    waiting.start()
    return waiting.wait(max(_MOMENT, deadline - monotonic()))
