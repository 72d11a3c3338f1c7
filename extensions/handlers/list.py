"""Records in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from effects import _errors as errors
from effects._model.device import device_place
from effects._model.record import Record, Records, as_numpys, is_number, site_of
from effects._model.site import Site

MSG_COLUMNS = (
    "The event {event!r} was logged with the fields {expected}, and at {where} with {got}. The records of an event are "
    "rows of one table, so their fields have the same names and shapes. Give the two events names of their own."
)
MSG_NO_EVENT = (
    "No record of the event {event!r} has come; events that have: {known}. Records come when their program has run and "
    "the drain has replayed them. Correct the name, or call `fx.effects_barrier()` first."
)


class ListHandler:
    """Keeps records in memory, as they come; their contents are read at their first use.

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
        self._records: list[Record] = []  # the records of the first `_read` chunks
        self._read = 0  # the number of chunks in `_records`

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

        A field that is a pytree has a column for each of its leaves, such as `state.x`; None has no leaves. Under
        `vmap` there is a column `lane`, of several numbers each under several; and if the records are of several
        devices a column `device`. Where there is no lane, or no one device, it is -1.

        Raises:
            ValueError: if no such event has come, or its fields differ in name or shape from one call to another.
        """
        rows, known = list[_Rows](), set[str]()
        for chunk in self._chunks[:]:
            for each in _rows(chunk):
                known.add(name := each.site.content.labels["event"])
                rows += [each] * (name == event)
        if not rows:
            shown = ", ".join(map(repr, sorted(known))) or "none"
            raise errors.value_error(MSG_NO_EVENT.format(event=event, known=shown))
        expected = _shown_fields(rows[0].columns)
        for each in rows:
            if (got := _shown_fields(each.columns)) != expected:
                raise errors.value_error(
                    MSG_COLUMNS.format(event=event, expected=expected, where=each.site.where, got=got)
                )
        joined = {name: _joined([each.columns[name] for each in rows]) for name in rows[0].columns}
        if depth := max(len(each.lane) for each in rows):
            lanes = [(*each.lane, *[-1] * (depth - len(each.lane))) for each in rows for _ in each.devices]
            joined["lane"] = np.array(lanes)[:, 0] if depth == 1 else np.array(lanes)
        devices = np.concatenate([each.devices for each in rows])
        return joined | {"device": devices} if (devices != devices[:1]).any() else joined

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def __bool__(self) -> bool:
        return True  # true also if the list is empty

    def clear(self) -> None:
        """Removes all records."""
        self._chunks, self._records, self._read = [], [], 0


class _Rows(NamedTuple):
    """Records of a site and a lane."""

    site: Site
    columns: Mapping[str, np.ndarray]  # of fields; the records are the first axis
    lane: tuple[int, ...]
    devices: np.ndarray


def _rows(records: Sequence[Record]) -> Iterator[_Rows]:
    """The fields of records of logs: of all together if they are of one site without lanes, else of each."""
    if isinstance(records, Records) and (columns := records.columns()) is not None:
        if (site := records.only_site) is not None and "event" in site.content.labels:
            numbers, places = np.unique(records.header_column("device", site), return_inverse=True)
            yield _Rows(site, columns, (), np.array([device_place(int(number)) for number in numbers])[places])
        return
    for record in records:
        if record.event is not None:
            leaves = jax.tree.leaves((record.args, record.fields))
            names = (site := site_of(record)).leaf_names
            columns = {name: np.asarray(leaf)[None] for name, leaf in zip(names, leaves, strict=True)}
            yield _Rows(site, columns, record.lane, np.array([record.device]))


def _shown_fields(columns: Mapping[str, np.ndarray]) -> str:
    shapes = {name: list(column.shape[1:]) for name, column in columns.items()}
    return ", ".join(f"`{name}`{shape or ''}" for name, shape in shapes.items()) or "none"


def _joined(columns: list[np.ndarray]) -> np.ndarray:
    """Concatenates columns, as a copy."""
    if len({is_number(column.dtype) for column in columns}) > 1:
        columns = [column.astype(object) for column in columns]  # numbers do not become text
    try:
        return np.concatenate(columns)
    except TypeError:  # no common type without loss, such as for bfloat16 and float16
        return np.concatenate([as_numpys(column) for column in columns])
