"""Records as tables in Parquet files."""

from __future__ import annotations

import os
import re
import urllib.parse
from typing import Any

import numpy as np

from effects._model.site import Site
from effects.extensions.handlers.columns import Piece, join, native, places_of
from effects.extensions.handlers.files import Gathering, each, library, whole_file

# Records of one event as a table of Arrow's. Each function takes the library `pyarrow` as its last argument.

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
        arrow.table({name: arrow_column(name, column, arrow) for name, column in join(columns).items()})
        for columns in of_site.values()
    ]
    schema = common_schema(event, [table.schema for table in tables], arrow)
    table = arrow.concat_tables([fitted(table, schema, arrow) for table in tables])
    if len(tables) == 1:
        return table
    return table.take(np.argsort(np.concatenate([rows for some in positions.values() for rows in some])))


def arrow_column(name: str, column: np.ndarray, arrow: Any) -> Any:
    """A column as an array of Arrow's: the `time` as a timestamp, complex numbers as two, what has axes as lists."""
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


class ParquetHandler(Gathering):
    """Writes the records of logs as tables of Parquet, one for each event: `pip install 'token-effects[parquet]'`.

    `pyarrow.parquet.read_table("run/event=step")` reads the table of the event `step` from the folder `run`, and so do
    DuckDB and Polars; the tables of several events have columns of their own. A table has a column for each field, a
    field that is a pytree one for each of its leaves, such as `state.x`, and `level`, `time`, `device`, `lane` and
    `token` (the four numbers of a record's place in program order). Arrays are lists, and complex numbers lists of two
    numbers. Fields that a record has not are null; where records of an event differ in a type, the column has one that
    holds both, and whole numbers among others are rounded. Records of other effects are not written.

    A table is a folder of files, each a piece that is written as a whole, so a process that is killed loses no more
    than the last piece.

    Args:
        path: The folder, which is made if it is not there. Tables that such a handler has written there are replaced.
        append: Whether records are added to the tables that are there instead, as when a run is resumed.
        every: Seconds after which what has come is written, as a piece. Many records are one sooner; with 0, those
            that come together are. Each piece is a file, so that short times make many.

    Raises:
        ImportError: if there is no pyarrow.
        OSError: if the folder cannot be written.

    Example:
        >>> import effects as fx, pathlib, pyarrow.parquet, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp(), "run")
        >>> with fx.add_handler(fx.ParquetHandler(folder), effects="log"):
        ...     fx.jit(lambda x: fx.log("step", loss=x))(0.5)
        >>> pyarrow.parquet.read_table(folder / "event=step", columns=["loss", "device"]).to_pylist()
        [{'loss': 0.5, 'device': 0}]
    """

    def __init__(self, path: str | os.PathLike[str], *, append: bool = False, every: float = 10.0):
        self._arrow = library("pyarrow", "ParquetHandler", "parquet")
        self._parquet = library("pyarrow.parquet", "ParquetHandler", "parquet")
        super().__init__(os.path.abspath(os.fsdecode(path)), every)  # wherever the process goes
        self._pending: dict[str, list[list[Piece]]] = {}  # by event; each list came together
        self._schemas: dict[str, Any] = {}  # by event
        self._next: dict[str, int] = {}  # by event: the number of its next file
        os.makedirs(self._path, exist_ok=True)
        for folder in os.listdir(self._path):
            if folder.startswith(_FOLDER):
                self._take_up(urllib.parse.unquote(folder.removeprefix(_FOLDER)), append)

    def _take_up(self, event: str, append: bool) -> None:
        """Goes on with a table that is there, or removes it."""
        numbers = [int(found[1]) for name in os.listdir(self._folder(event)) if (found := _FILE.fullmatch(name))]
        if append and numbers:
            self._schemas[event] = self._parquet.read_schema(self._file(event, min(numbers)))
            self._next[event] = max(numbers) + 1
        elif not append:
            for number in numbers:
                os.unlink(self._file(event, number))

    def _gather(self, of_event: dict[str, list[Piece]]) -> None:
        for event, pieces in of_event.items():
            self._pending.setdefault(event, []).append(pieces)

    def _write(self) -> None:
        pending, self._pending = self._pending, {}
        each(pending.items(), lambda item: self._write_event(*item))

    def _write_event(self, event: str, batches: list[list[Piece]]) -> None:
        try:
            table = table_of(event, batches, self._arrow)
            known = self._schemas.get(event, table.schema)
            schema = common_schema(event, [known, table.schema], self._arrow)
            number = self._next.get(event, 0)
            if schema != known:  # all files have the same columns, which some readers ask for
                for path in filter(os.path.exists, (self._file(event, before) for before in range(number))):
                    before = self._parquet.read_table(path, partitioning=None)
                    self._write_file(path, fitted(before, schema, self._arrow))
            self._schemas[event] = schema
            self._write_file(self._file(event, number), fitted(table, schema, self._arrow))
            self._next[event] = number + 1
        except Exception as error:
            self._lose(sum(len(piece.columns["token"]) for pieces in batches for piece in pieces), error)
            raise

    def _write_file(self, path: str, table: Any) -> None:
        folder, name = os.path.split(path)
        with whole_file(path, os.path.join(folder, f".{name}")) as part:  # which readers leave out
            self._parquet.write_table(table, part)

    def _folder(self, event: str) -> str:
        return os.path.join(self._path, _FOLDER + urllib.parse.quote(event, safe=" "))

    def _file(self, event: str, number: int) -> str:
        return os.path.join(self._folder(event), f"part-{number:06}.parquet")


_FOLDER = "event="
_FILE = re.compile(r"part-(\d{6,})\.parquet")
