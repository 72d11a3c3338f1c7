"""The output tokens of programs: they tell if a program is over, if it failed, and where it ran."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import Any, NamedTuple

from effects._model.device import device_number
from effects.dispatch.runtime.background import uninterrupted
from effects.dispatch.runtime.failures import Failures
from effects.dispatch.runtime.streams import Stream, Streams


def failures_of(output_token: Any) -> list[Exception]:
    """JAX's errors of the program that returned this output token, one for each device on which it failed: a device may
    have failed only because another one has. Waits until the program is over."""
    if _failure_of_part(output_token) is None:
        return []
    return [failure for part in _parts(output_token) if (failure := _failure_of_part(part)) is not None]


Reader = Callable[[Iterable[BaseException], str], Exception | None]
"""`reader(jax_errors, function)`: the error behind the errors that JAX raised for a program of this name, or None."""

_readers: list[Reader] = []


def read_failures_with(reader: Reader) -> None:
    """Adds a reader of JAX's errors of programs that failed."""
    _readers.append(reader)


def failure_in(jax_errors: Iterable[BaseException], function: str) -> Exception | None:
    """The error behind JAX's errors of a program, if no caller has been given it yet."""
    jax_errors = list(jax_errors)
    return next((failure for reader in _readers if (failure := reader(jax_errors, function)) is not None), None)


def _failure_of_part(part: Any) -> Exception | None:
    try:
        part.block_until_ready()
    except Exception as error:
        return error
    return None


def _parts(output_token: Any) -> list[Any]:
    """The output token of each device of this process."""
    return [shard.data for shard in output_token.addressable_shards] or [output_token]


def close_failed(streams: Streams) -> None:
    """Ends epochs whose programs have failed or run elsewhere, which never close themselves."""
    for stream in streams.all():
        for number in list(stream.running):
            # Later programs wait for one that has not failed.
            _, output_token = stream.running.get(number, (None, None))
            if output_token is None or output_token.is_deleted() or not output_token.is_ready():
                break  # unknown if the user has deleted all of JAX's arrays
            runs_here = output_token.is_fully_addressable or output_token.addressable_shards
            if runs_here and not failures_of(output_token):  # on other processes' devices it publishes nothing here
                break  # the program has ended, and its close marker is about to come
            stream.running.pop(number, None)
            stream.fail(number)


def unready_devices(output_token: Any) -> list[int]:
    """The numbers of those devices on which a program is not over."""
    if output_token.is_deleted() or output_token.is_ready():
        return []
    return [device_number(part.device) for part in _parts(output_token) if not part.is_ready()]


class FailedOnSome(NamedTuple):
    """A program that has failed on some of its devices and is not over on others."""

    program: tuple[int, int]  # thread and epoch
    devices: list[int]  # the devices on which it has failed
    failure: Exception  # JAX's error, of one of these devices


def failed_on_some_devices(streams: Streams, are_exchanging: bool) -> Iterator[FailedOnSome]:
    """Programs over several devices that have failed on some of them and are not over on others, if devices may wait
    for each other: for a callback's place, or where some `are_exchanging`; or the user's handlers may have failed."""
    for stream in streams.all():
        for number, (traits, output_token) in [*stream.running.items()]:
            may_wait = traits.awaits_results or traits.has_custom_calls or are_exchanging
            if not may_wait or output_token.is_deleted() or output_token.is_ready():
                continue
            parts = {device_number(part.device): part for part in _parts(output_token)}
            others = [device for device, part in parts.items() if not part.is_ready()]
            failures = {device: _failure_of_part(parts[device]) for device in parts if device not in others}
            failed = {device: failure for device, failure in failures.items() if failure is not None}
            if failed:
                yield FailedOnSome((stream.thread, number), [*failed], next(iter(failed.values())))


# Programs that call native handlers of the user and whose calls have returned. Polling finds a handler's failure, which
# is kept until the thread's next call or barrier raises it.

Wait = Callable[..., bool]
"""`wait(done, seconds=None)`, as `Drain.wait`."""

_LOOK = 0.005
"""The interval in seconds at which a waiting thread polls a program."""


class FailurePoll:
    """Polls programs for a handler's failure: at each once, in one thread."""

    def __init__(self, streams: Streams, failures: Failures) -> None:
        self._streams = streams
        self._failures = failures

    def look(self) -> None:
        """Ends the epochs of programs that have failed, and polls the programs of threads that have ended. The leader
        of the drain calls it."""
        close_failed(self._streams)
        for stream in self._streams.ended():
            if stream.unpolled:
                self.poll_over(stream)

    def poll_over(self, stream: Stream, wait: Wait | None = None) -> bool:
        """Settles the programs of a stream that are over. Returns True if any has failed by a handler; with `wait`,
        once its other effects are done."""
        over = [number for number in [*stream.unpolled] if is_over(stream, number)]
        failed = [number for number in over if self._poll(stream, number, wait)]
        return bool(failed)

    def poll_all(self, stream: Stream, names: frozenset[str] | None, deadline: float | None, wait: Wait) -> int | None:
        """Waits for the programs of a stream, or those with effects of these names, and polls them. Returns the
        number of one that is not over when the time is up."""
        for number, (_, traits, _) in [*stream.unpolled.items()]:
            if names is not None and not names & {*traits.effects}:
                continue
            while not is_over(stream, number):
                left = _LOOK if deadline is None else min(_LOOK, deadline - monotonic())
                if left < 0:
                    return number
                wait(lambda number=number: is_over(stream, number), left)
            self._poll(stream, number, wait)
        return None

    def _poll(self, stream: Stream, number: int, wait: Wait | None) -> bool:
        if (program := stream.unpolled.get(number)) is None:
            return False  # another thread has taken it
        output_token = program[2]
        if output_token.is_deleted() or not (jax_errors := failures_of(output_token)):
            stream.claim(number)
            return False
        if wait is not None:
            wait(lambda: number not in stream.calls)
        return uninterrupted(lambda: self._keep_failure(stream, number, jax_errors))

    def _keep_failure(self, stream: Stream, number: int, jax_errors: list[Exception]) -> bool:
        if (program := stream.claim(number)) is None:
            return False
        if (failure := failure_in(jax_errors, program[0])) is None:
            return False  # not a handler's: the program's results raise it
        self._failures.add((stream.thread, number), failure, stops=False)
        return True


def is_over(stream: Stream, number: int) -> bool:
    """True if a program is over, or was polled."""
    program: Any = stream.unpolled.get(number)
    return program is None or program[2].is_deleted() or program[2].is_ready()
