"""Effects that were recorded and not carried out: how many of which, and where."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from effects._model.record import Records, count_lanes
from effects._model.site import Site
from effects._model.wire import TEXT_RUN, CallbackRecord, Item, ItemKind, RecordsBetween, read_header
from effects.dispatch.draining.logs import parts_of


class LeftOut:
    """A count of them, by effect and by the user's line, in the order in which they came."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, site: Site, count: int) -> None:
        """Counts effects of one site; a lane counts as one."""
        if count:
            key = site.effect.name, str(site.where)
            with self._lock:
                self._counts[key] = self._counts.get(key, 0) + count

    def add_item(self, item: Item, find_site: Callable[[int], Site]) -> None:
        """Counts what is left of an item of the drain's. It takes the callbacks that it counts out of the item, as the
        thread does that replays them, so that two threads may have the item."""
        if item.has_callbacks:
            while item.data:
                part = item.data.pop()
                if len(part) == len(RecordsBetween._fields):
                    self._add_records(Records(*part, find_site))
                else:
                    record = CallbackRecord._make(part)
                    site, payload = find_site(record.site), record.payload
                    if site.content.has_parts:
                        item.data.extend(reversed([*parts_of(site, record.token, record.device, payload, record.time)]))
                    else:
                        self.add(site, count_lanes(site.of_record(payload), payload))
        elif item.kind == ItemKind.TEXT:
            for site, _, _, count in np.frombuffer(item.block, TEXT_RUN).tolist():
                self.add(find_site(site), count)
        elif item.kind == ItemKind.RECORDS:
            self._add_records(Records(item.data, item.count, find_site))
        else:
            header = read_header(item.data)
            self._add_records(Records.of_one(find_site(header.site), header, item.block))

    def _add_records(self, records: Records) -> None:
        for site, _, _, payload, _ in records.parts():
            self.add(site, count_lanes(site, payload))

    def total(self) -> int:
        return sum(self._counts.values())

    def by_effect(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for (effect, _), count in self._counts.items():
            counts[effect] += count
        return counts

    def __str__(self) -> str:
        """How many of which effect, and where the first of them is."""
        counts = [f"{count} `{effect}`" for effect, count in self.by_effect().items()]
        first = next(iter(self._counts))[1]
        return (
            f"{counts[0]} effect, at {first}"
            if self.total() == 1
            else f"{' and '.join(counts)} effects, from {first} on"
        )

    def by_line(self, most: int = 8) -> str:
        """How many of which effect, for each line."""
        lines = [f"{count} `{effect}` at {where}" for (effect, where), count in self._counts.items()]
        return shown_list(lines, most)


def shown_list(things: Iterable[Any], most: int = 8) -> str:
    """The first few of them, and how many there are more."""
    shown = [str(thing) for thing in things]
    more = [f"{len(shown) - most} more"] if len(shown) > most else []
    return ", ".join([*shown[:most], *more])
