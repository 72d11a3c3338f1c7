"""Records that consist of others, such as the log of a compiled kernel, taken apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from effects._model.site import Site
from effects._wire import CallbackRecord, RecordsBetween, write_header

outgrown: dict[Any, int] = {}
"""By a jitted function a log of whose kernels has had too little room: the words that logs had needed by then. Drain
threads write it, and calls of the function read it."""


def parts_of(site: Site, token: tuple[int, ...], device: int, payload: Any) -> list[tuple[Any, ...]] | None:
    """The parts of an item that a record of this site stands for, in order; None if it is a record by itself."""
    inner = site.content.parts(site, payload)
    return None if inner is None else [*_parts(inner, token, device)]


def _parts(inner: Any, token: tuple[int, ...], device: int) -> Iterator[tuple[Any, ...]]:
    data, count = bytearray(), 0
    for site, payload in inner:
        if not site.content.comes_alone:
            data += write_header(site.id, token, device, len(payload)) + payload
            count += 1
            continue
        if count:
            yield RecordsBetween(bytes(data), count)
            data, count = bytearray(), 0
        yield CallbackRecord(site.id, token, device, 0, False, payload)
    if count:
        yield RecordsBetween(bytes(data), count)
