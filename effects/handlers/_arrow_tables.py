"""Records of one event as a table of Arrow's. Each function takes the library `pyarrow` as its last argument."""

from __future__ import annotations

from typing import Any

import numpy as np

from effects._model.site import Site
from effects.handlers._columns import Piece, join, native, places_of

MSG_TYPES = (
    "The event {event!r} was logged with fields `{name}` of the types {types}, and no column holds both. The records "
    "of an event are rows of one table. Give the two events names of their own, or the fields."
)


def table_of(event: str, batches: list[list[Piece]], arrow: Any) -> Any:
    """The records of an event, in order. Those of a batch came together, by site."""
    of_site: dict[Site, list[dict[str, np.ndarray]]] = {}
    positions: dict[Site, list[np.ndarray]] = {}
    start = 0
    for pieces in batches:
        count = 0
        for piece in pieces:
            of_site.setdefault(piece.site, []).append(piece.columns | places_of(piece))
            rows = len(piece.columns["token"])
            positions.setdefault(piece.site, []).append(start + np.asarray(piece.positions or range(rows)))
            count = max(count, positions[piece.site][-1][-1] + 1 - start)
        start += count
    tables = [
        arrow.table({name: _column(name, column, arrow) for name, column in join(columns).items()})
        for columns in of_site.values()
    ]
    schema = common_schema(event, [table.schema for table in tables], arrow)
    table = arrow.concat_tables([fitted(table, schema, arrow) for table in tables])
    if len(tables) == 1:
        return table
    return table.take(np.argsort(np.concatenate([rows for some in positions.values() for rows in some])))


def _column(name: str, column: np.ndarray, arrow: Any) -> Any:
    if name == "time":
        return arrow.array(np.rint(column * 1e6).astype(np.int64)).cast(arrow.timestamp("us", "UTC"))
    column = native(column)
    if column.dtype.kind == "c":
        column = np.stack([np.real(column), np.imag(column)], -1)
    values = arrow.array(column.reshape(-1).tolist() if column.dtype.kind in "US" else column.reshape(-1))
    for axis in range(column.ndim - 1, 0, -1):
        count, size = int(np.prod(column.shape[:axis])), column.shape[axis]
        values = arrow.ListArray.from_arrays(np.arange(count + 1, dtype=np.int32) * size, values)
    return values


def common_schema(event: str, schemas: list[Any], arrow: Any) -> Any:
    """Columns that hold those of all these; numbers among text are text."""
    types: dict[str, Any] = {}
    for schema in schemas:
        for field in schema:
            types[field.name] = _common(event, field.name, types.get(field.name, field.type), field.type, arrow)
    return arrow.schema(types.items())


def _common(event: str, name: str, one: Any, other: Any, arrow: Any) -> Any:
    if one == other:
        return one
    schemas = [arrow.schema([(name, each)]) for each in (one, other)]
    try:
        return arrow.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (arrow.ArrowTypeError, arrow.ArrowInvalid):
        if any(arrow.types.is_nested(each) for each in (one, other)):
            raise ValueError(MSG_TYPES.format(event=event, name=name, types=f"{one} and {other}")) from None
        return arrow.string()


def fitted(table: Any, schema: Any, arrow: Any) -> Any:
    """A table with these columns; what it does not have is null, and whole numbers among others are rounded to them."""
    columns = [
        table[field.name].cast(field.type, safe=not arrow.types.is_floating(field.type))
        if field.name in table.column_names
        else arrow.nulls(len(table), field.type)
        for field in schema
    ]
    return arrow.table(columns, schema=schema)
