"""The parts of a record that consists of others, such as the log of a compiled kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from effects._model.site import Site
from effects._model.wire import ALL_DEVICES, PHASE, CallbackRecord, RecordsBetween, in_region, write_header
from effects.lowering.sites import known_sites

log_capacity_needed: dict[Any, int] = {}
"""The number of words that a kernel's log needed, by jitted function, for functions with overflowed logs. Drain threads
write it, and calls of the function read it."""


def parts_of(
    records: Iterable[tuple[Site, Any]], token: tuple[int, ...], device: int, time: float
) -> Iterator[tuple[Any, ...]]:
    """The parts of an item for a record that consists of these records, in order."""
    data, count = bytearray(), 0
    for site, payload in records:
        if not known_sites.filter_of(site).native.shows(device if in_region(token[PHASE]) else ALL_DEVICES):
            continue
        if not site.content.delivered_individually:
            data += write_header(site.id, token, device, len(payload), time) + payload
            count += 1
            continue
        if count:
            yield RecordsBetween(bytes(data), count)
            data, count = bytearray(), 0
        yield CallbackRecord(site.id, token, device, 0, False, payload, time)
    if count:
        yield RecordsBetween(bytes(data), count)
