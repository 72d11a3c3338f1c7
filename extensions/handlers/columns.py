"""Records of logs as columns: by event, one row for each record."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

from effects._model.device import device_place
from effects._model.operand import Static
from effects._model.record import Record, Records, is_number, is_numpys, payload_of, site_of
from effects._model.site import Site

MSG_COLUMNS = (
    "The event {event!r} was logged with the fields {expected}, and at {where} with {got}. The records of an event are "
    "rows of one table, so their fields have the same names and shapes. Give the two events names of their own."
)


@dataclasses.dataclass
class Piece:
    """Records of one site that came together."""

    site: Site
    columns: dict[str, np.ndarray]  # the fields, and `token`
    records: Sequence[Record]
    positions: Sequence[int] = ()  # of the records among all that came together, if not all are of this site

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns.values())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: column.shape[1:] for name, column in self.columns.items()}


class Table:
    """The records of one event as columns, in order. `shapes` are those of one record, by column, if they are known."""

    def __init__(self, event: str, shapes: dict[str, tuple[int, ...]] | None = None):
        self._event = event
        self._parts: list[dict[str, np.ndarray]] = []
        self._shapes = shapes or {}

    def add(self, pieces: list[Piece]) -> None:
        """Adds records that came together, but for those that do not fit, which are an error."""
        self._shapes = self._shapes or pieces[0].shapes
        fitting = [piece for piece in pieces if piece.shapes == self._shapes]
        if fitting:
            part = join([piece.columns for piece in fitting])
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
        return join(self._parts)

    def take(self) -> dict[str, np.ndarray]:
        """The columns, which are forgotten. Those that come later have the same shapes."""
        columns, self._parts = self.columns(), []
        return columns


def places_of(piece: Piece) -> dict[str, np.ndarray]:
    """What records say beside their fields and tokens, as columns: level, time, device and lane."""
    records, site = piece.records, piece.site
    if isinstance(records, Records):
        numbers = records.header_column("device", site).tolist()
        time, lane = records.header_column("time", site), np.empty((len(numbers), 0), np.int32)
        places = {number: device_place(number) for number in set(numbers)}
        device = [places[number] for number in numbers]
    else:
        time = np.array([record.time for record in records])
        lane = np.array([record.lane for record in records], np.int32)
        device = [record.device for record in records]
    level = np.full(len(device), site.content.labels["level"], np.int32)
    return {"level": level, "time": time, "device": np.array(device, np.int32), "lane": lane}


def pieces_of(records: Sequence[Record]) -> dict[str, list[Piece]]:
    """The records of logs as columns: by event, and there by site."""
    if isinstance(records, Records) and (columns := records.columns()) is not None:
        site = cast(Site, records.only_site)
        columns["token"] = records.header_column("token", site)
        event = site.content.labels.get("event")
        return {} if event is None else {event: [Piece(site, columns, records)]}
    of_site: dict[Site, tuple[list[int], list[Record]]] = {}
    for position, record in enumerate(records):
        if record.event is not None:
            positions, some = of_site.setdefault(site_of(record), ([], []))
            positions.append(position)
            some.append(record)
    pieces: dict[str, list[Piece]] = {}
    for site, (positions, some) in of_site.items():
        columns = _columns(site, some)
        columns["token"] = np.array([record.token for record in some], np.uint32)
        pieces.setdefault(site.content.labels["event"], []).append(Piece(site, columns, some, positions))
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


def join(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Columns one below the other, in memory of their own."""
    return {name: _concatenate([part[name] for part in parts]) for name in (parts[0] if parts else ())}


def _concatenate(columns: list[np.ndarray]) -> np.ndarray:
    dtypes = {column.dtype for column in columns}
    if len(dtypes) > 1 and len({is_number(dtype) for dtype in dtypes}) > 1:
        columns = [column.astype(object) for column in columns]  # numbers do not become text
    try:
        return np.concatenate(columns)
    except TypeError:  # two types of which neither holds the other, such as bfloat16 and float16
        return np.concatenate([native(column) for column in columns])


def native(column: np.ndarray) -> np.ndarray:
    """The values in a type that NumPy itself has, and that a file keeps."""
    dtype = column.dtype
    if is_numpys(dtype) and dtype.kind != "O":
        return column
    for kind, wide in ((np.floating, np.float32), (np.signedinteger, np.int8), (np.unsignedinteger, np.uint8)):
        if jnp.issubdtype(dtype, kind):
            return column.astype(wide)
    return column.astype(str)


def _show_shapes(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"`{name}`{list(shape) if shape else ''}" for name, shape in shapes.items() if name != "token")
