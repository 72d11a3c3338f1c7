"""What the output tokens of programs say: whether a program is over, whether it failed, and where it ran."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from effects._model.device import device_number
from effects.dispatch.streams.table import Streams


def failures_of(output_token: Any) -> list[Exception]:
    """What JAX says of the program that returned this output token, of each device on which it failed: one of these
    may have failed only because another one has. Waits until it is over."""
    if _failure_of_part(output_token) is None:
        return []
    return [failure for part in _parts(output_token) if (failure := _failure_of_part(part)) is not None]


Reader = Callable[[Iterable[BaseException], str], Exception | None]
"""`reader(said, function)`: what has ended a program of this name of which JAX has said this, or None."""

_readers: list[Reader] = []


def read_failures_with(reader: Reader) -> None:
    """Asks this reader, from now on, what JAX means by what it says of a program that failed."""
    _readers.append(reader)


def failure_in(said: Iterable[BaseException], function: str) -> Exception | None:
    """The error that stands behind what JAX has said of a program, if no caller has been given it yet."""
    said = list(said)
    return next((failure for reader in _readers if (failure := reader(said, function)) is not None), None)


def _failure_of_part(part: Any) -> Exception | None:
    try:
        part.block_until_ready()
    except Exception as error:
        return error
    return None


def _parts(output_token: Any) -> list[Any]:
    """The output token of each device of this process."""
    if len(output_token.sharding.device_set) == 1:
        return [output_token]
    return [shard.data for shard in output_token.addressable_shards] or [output_token]


def close_failed(streams: Streams) -> None:
    """Ends epochs whose programs have failed or run elsewhere, which never close themselves."""
    for stream in streams.all():
        for number in list(stream.running):
            # What waits behind one that has not failed waits for it.
            _, output_token = stream.running.get(number, (None, None))
            if output_token is None or output_token.is_deleted() or not output_token.is_ready():
                break  # if the user has deleted all arrays of JAX's, it cannot be known
            if _runs_here(output_token) and not failures_of(output_token):
                break  # it has ended, and its marker is about to come
            stream.running.pop(number, None)
            stream.fail(number)


class FailedOnSome(NamedTuple):
    """A program that has failed on some of its devices and is not over on others, by their numbers."""

    program: tuple[int, int]  # thread and epoch
    devices: list[int]
    others: list[int]
    failure: Exception  # JAX's, of one of them


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
                yield FailedOnSome((stream.thread, number), [*failed], others, next(iter(failed.values())))


def _runs_here(output_token: Any) -> bool:
    """Whether devices of this process run the program. Those of others publish nothing here."""
    return output_token.is_fully_addressable or bool(output_token.addressable_shards)
