"""What the output tokens of programs say: whether a program is over, whether it failed, and where it ran."""

from __future__ import annotations

from typing import Any

from effects.dispatch.streams.table import Streams


def failure_of(output_token: Any) -> Exception | None:
    """What JAX says of the program that returned this output token, if it failed. Waits until it is over."""
    try:
        output_token.block_until_ready()
    except Exception as error:
        return error
    return None


def close_failed(streams: Streams) -> None:
    """Ends epochs whose programs have failed or run elsewhere, which never close themselves."""
    for stream in streams.all():
        for number in list(stream.running):
            # What waits behind one that has not failed waits for it.
            _, output_token = stream.running.get(number, (None, None))
            if output_token is None or output_token.is_deleted() or not output_token.is_ready():
                break  # if the user has deleted all arrays of JAX's, it cannot be known
            if _runs_here(output_token) and failure_of(output_token) is None:
                break  # it has ended, and its marker is about to come
            stream.running.pop(number, None)
            stream.fail(number)


def _runs_here(output_token: Any) -> bool:
    """Whether devices of this process run the program. Those of others publish nothing here."""
    return output_token.is_fully_addressable or bool(output_token.addressable_shards)
