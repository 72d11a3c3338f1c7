"""Records of logs as columns: by event, one row for each record."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

import jax
import numpy as np

from effects._model.operand import Static
from effects._model.record import Record, Records, as_numpys, is_number, payload_of, site_of
from effects._model.site import Site

MSG_COLUMNS = (
    "The event {event!r} was logged with the fields {expected}, and at {where} with {got}. The records of an event are "
    "rows of one table, so their fields have the same names and shapes. Give the two events names of their own."
)


@dataclasses.dataclass
class Piece:
    """Records of one site that came together."""

    site: Site
    columns: dict[str, np.ndarray]  # by field
    positions: Sequence[int] = ()  # of the records among all that came together, if not all are of this site

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: column.shape[1:] for name, column in self.columns.items()}


class Table:
    """The records of one event as columns, in order."""

    def __init__(self, event: str):
        self._event = event
        self._parts: list[dict[str, np.ndarray]] = []
        self._shapes: dict[str, tuple[int, ...]] | None = None  # those of one record, by column, from the first on

    def add(self, pieces: list[Piece]) -> None:
        """Adds records that came together, but for those that do not fit, which are an error."""
        if self._shapes is None:
            self._shapes = pieces[0].shapes
        fitting = [piece for piece in pieces if piece.shapes == self._shapes]
        if fitting:
            part = _join([piece.columns for piece in fitting])
            if len(fitting) > 1:
                order = np.argsort(np.concatenate([piece.positions for piece in fitting]), kind="stable")
                part = {name: column[order] for name, column in part.items()}
            self._parts.append(part)
        for piece in pieces:
            if piece.shapes != self._shapes:
                expected, got = _show_shapes(self._shapes), _show_shapes(piece.shapes)
                raise ValueError(
                    MSG_COLUMNS.format(event=self._event, expected=expected, where=piece.site.where, got=got)
                )

    def columns(self) -> dict[str, np.ndarray]:
        return _join(self._parts)


def pieces_of(records: Sequence[Record]) -> dict[str, list[Piece]]:
    """The records of logs as columns: by event, and there by site."""
    if isinstance(records, Records) and (columns := records.columns()) is not None:
        site = cast(Site, records.only_site)
        event = site.content.labels.get("event")
        return {} if event is None else {event: [Piece(site, columns)]}
    of_site: dict[Site, tuple[list[int], list[Record]]] = {}
    for position, record in enumerate(records):
        if record.event is not None:
            positions, some = of_site.setdefault(site_of(record), ([], []))
            positions.append(position)
            some.append(record)
    pieces: dict[str, list[Piece]] = {}
    for site, (positions, some) in of_site.items():
        columns = _columns(site, some)
        pieces.setdefault(site.content.labels["event"], []).append(Piece(site, columns, positions))
    return pieces


def _columns(site: Site, records: list[Record]) -> dict[str, np.ndarray]:
    """The fields of records of one site; what `Records.columns` is for those that follow each other in memory."""
    if site.lanes or site.hidden:
        rows = [jax.tree.leaves((record.args, record.fields)) for record in records]
        leaves = [[row[i] for row in rows] for i in range(len(site.leaves))]
        return {name: np.stack(leaf) for name, leaf in zip(site.leaf_names, leaves, strict=True)}
    data = b"".join(map(payload_of, records))
    operands = iter(zip(site.operands, site.offsets, strict=True))
    columns = {}
    for name, leaf in zip(site.leaf_names, site.leaves, strict=True):
        if isinstance(leaf, Static):
            columns[name] = np.full(len(records), leaf.value)
        else:
            operand, at = next(operands)
            strides = (site.payload_size, *np.empty(operand.shape, operand.stored).strides)
            column = np.ndarray((len(records), *operand.shape), operand.stored, data, at, strides)
            columns[name] = column.astype(operand.dtype, copy=False)
    return columns


def _join(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Columns one below the other, in memory of their own."""
    return {name: _concatenate([part[name] for part in parts]) for name in (parts[0] if parts else ())}


def _concatenate(columns: list[np.ndarray]) -> np.ndarray:
    dtypes = {column.dtype for column in columns}
    if len(dtypes) > 1 and len({is_number(dtype) for dtype in dtypes}) > 1:
        columns = [column.astype(object) for column in columns]  # numbers do not become text
    try:
        return np.concatenate(columns)
    except TypeError:  # two types of which neither holds the other, such as bfloat16 and float16
        return np.concatenate([as_numpys(column) for column in columns])


def _show_shapes(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"`{name}`{list(shape) if shape else ''}" for name, shape in shapes.items()) or "none"
