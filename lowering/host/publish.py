"""Publishing from the host: effects outside of programs, and those of programs on platforms without native handlers,
which come here through JAX's Python callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from effects import _jax
from effects._model.site import Site
from effects._model.wire import INDEX, UNTRACKED_THREAD, stream_of
from effects.lowering.host.native import native


def publish(
    site: Site,
    token: tuple[int, ...],
    operands: Sequence[Any],
    device: int | None = None,
    reply: native.HostReply | None = None,
) -> None:
    """Publishes one record."""
    native.publish(
        site.id,
        site.effect.ordered,
        token,
        _jax.host_device() if device is None else device,
        [to_bytes(np.asarray(x)) for x in operands],
        site.content.comes_alone,
        0 if reply is None else reply.number,
    )


def publish_and_wait(
    site: Site, token: tuple[int, ...], operands: Sequence[Any], device: int | None = None
) -> list[np.ndarray]:
    """Publishes a record; returns what a callback returns, once it has run in its place."""
    reply = None if site.results is None else native.HostReply()
    publish(site, token, operands, device, reply)
    if reply is None:
        return []
    if native.is_nested():
        native.set_offer_urgent()
    results = zip(site.results or (), reply.wait(), strict=True)
    return [np.ndarray(result.shape, result.stored, data) for result, data in results]


def publish_in_program(site: Site, token: np.ndarray, operands: Sequence[Any]) -> list[Any]:
    """Publishes a record of a program; returns the next token, and what a callback returns."""
    results = publish_and_wait(site, tuple(map(int, token)), operands)
    token = np.array(token)
    if site.effect.ordered:
        token[INDEX] += 1
    return [token, *results]


def publish_end(tokens: Sequence[np.ndarray]) -> np.ndarray:
    """Publishes the end of a program; returns its output token."""
    native.close([tuple(map(int, token)) for token in tokens], 0)
    return np.array(tokens[0])


def publish_untracked(site: Site, operands: Sequence[Any]) -> list[Any]:
    """Publishes a record of a program that JAX dispatched; returns what a callback returns."""
    return publish_and_wait(site, _UNTRACKED, operands)


_UNTRACKED = (stream_of(UNTRACKED_THREAD), 0, 0, 0)
"""The token of records that belong to no epoch."""


def to_bytes(x: np.ndarray) -> Any:
    """An array's bytes in C order, for native code; large ones where they lie."""
    if x.nbytes < _SMALL:
        return x.tobytes()
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8)


_SMALL = 1 << 12
