"""Records in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from effects._model.record import Record
from effects.extensions.handlers.columns import Table, pieces_of

MSG_NO_EVENT = (
    "No record of the event {event!r} has come; events that have: {known}. Records come when their program has run and "
    "the drain has replayed them. Correct the name, or call `fx.effects_barrier()` first."
)


class ListHandler:
    """Keeps records in memory, as they come; what is in them is read when it is asked for.

    Example:
        >>> import effects as fx, jax
        >>> handler = fx.ListHandler()
        >>> added = fx.add_handler(handler, effects="log")
        >>> count = fx.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, _: fx.log("step", i=i), None))
        >>> count(1000)
        >>> fx.remove_handler(added)
        >>> len(handler), handler.records[1].fields, handler.columns("step")["i"].sum()
        (1000, {'i': array(1, dtype=int32)}, np.int64(499500))
    """

    def __init__(self) -> None:
        self._chunks: list[Sequence[Record]] = []  # the drain appends
        self._records: list[Record] = []  # of the first chunks
        self._read = 0  # how many those are

    def handle(self, record: Record) -> None:
        self._chunks.append([record])

    def handle_many(self, records: Sequence[Record]) -> None:
        self._chunks.append(records)

    @property
    def records(self) -> list[Record]:
        """The records that have come. The same list at every asking, longer when more have come."""
        for chunk in self._chunks[self._read :]:
            self._records.extend(chunk)
            self._read += 1
        return self._records

    def columns(self, event: str) -> dict[str, np.ndarray]:
        """The fields of all records of an event, by name. The first axis are the records, in order.

        A field that is a pytree has a column for each of its leaves, such as `state.x`; None has no leaves.

        Raises:
            ValueError: if no such event has come, or its fields differ in name or shape from one call to another.
        """
        table, known = Table(event), set()
        for chunk in self._chunks[:]:
            pieces = pieces_of(chunk)
            known |= set(pieces)
            if event in pieces:
                table.add(pieces[event])
        if event not in known:
            shown = ", ".join(map(repr, sorted(known))) or "none"
            raise ValueError(MSG_NO_EVENT.format(event=event, known=shown))
        return table.columns()

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def __bool__(self) -> bool:
        return True  # a handler that has got nothing yet is a handler

    def clear(self) -> None:
        """Forgets what has come."""
        self._chunks, self._records, self._read = [], [], 0
