"""Records as a table of text."""

from __future__ import annotations

import csv
import io
import itertools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from effects import _errors as errors
from effects._model.record import Record, encode, plain, python_value
from effects._model.text import joined
from effects.extensions.handlers.files import LineFile, each

MSG_OTHER_COLUMNS = (
    "`fx.CsvHandler` was asked to add lines to {path!r}, whose first line is {columns}. It appends to a table "
    "of its own: the columns {first}, one for each field, and a last one named `fields`. Give it another file, or "
    "leave out `append=True`."
)


class CsvHandler:
    """Writes the records of logs as a table: a line of commas for each, below a line of names.

    The columns are `event`, `level`, `time` (seconds since the epoch, when its device published it), `device`, `lane`,
    the fields of the first record, and `fields`: there are, as a JSON object, those fields of later records that the
    first has not. Fields that a record has not are empty, as is None. Numbers and strings are as Python writes them,
    bytes as hexadecimal digits, and everything else (arrays that have dimensions, pytrees) is JSON as
    `JsonLinesHandler` writes it. Records of other effects are not written.

    Args:
        path: The file. One that exists is replaced.
        append: True to add lines to a file that exists, as when a run is resumed. Its first line has the names of the
            columns. A partial line of a killed writer stays, as a separate line.

    Raises:
        OSError: if the file cannot be written.
        ValueError: with `append=True`, if the file exists and its first line is not that of such a table.

    Example:
        >>> import effects as fx, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "run.csv")
        >>> added = fx.add_handler(fx.CsvHandler(path), effects="log")
        >>> fx.jit(lambda x: fx.log("step", loss=x))(0.5)
        >>> fx.remove_handler(added)
        >>> print(path.read_text(), end="")  # doctest: +ELLIPSIS
        event,level,time,device,lane,loss,fields
        step,20,...,0,[],0.5,
    """

    def __init__(self, path: str | os.PathLike[str], *, append: bool = False):
        # The columns' fields: those of the first record, or of the file.
        self._fields = _fields_of(path) if append and os.path.isfile(path) else None
        self._file = LineFile(path, append, quote=b'"')
        self._lock = threading.Lock()  # held while the columns are chosen

    def handle(self, record: Record) -> None:
        self.handle_many([record])

    def handle_many(self, records: Sequence[Record]) -> None:
        lines: list[bytes] = []
        try:
            each(records, lambda record: self._add(record, lines))
        finally:
            self._file.write(*joined(lines))

    def _add(self, record: Record, lines: list[bytes]) -> None:
        if record.event is not None:
            names = self._begin(record.fields) if self._fields is None else self._fields
            lines.append(_line([_cell(value) for value in _cells(record, names)]))

    def _begin(self, fields: Mapping[str, Any]) -> list[str]:
        """Writes the line of names, and gives the fields that have columns: of a new file those of the first record."""
        with self._lock:
            if self._fields is None:
                line = _line([*_FIRST, *fields, _OTHER])
                self._file.write(line, [len(line)])
                self._fields = list(fields)  # releases other writers
            return self._fields

    def close(self) -> None:
        self._file.close()


_FIRST, _OTHER = ["event", "level", "time", "device", "lane"], "fields"
"""The columns ahead of the fields, and the one behind them."""


def _fields_of(path: str | os.PathLike[str]) -> list[str] | None:
    """The fields that have columns in a table that exists. None if it is empty."""
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        start = file.readline()
        columns = next(csv.reader(itertools.chain([start], file)))
    if columns[: len(_FIRST)] == _FIRST and columns[-1] == _OTHER:
        return columns[len(_FIRST) : -1]
    if not start:
        return None
    raise errors.value_error(MSG_OTHER_COLUMNS.format(path=os.fsdecode(path), columns=columns, first=", ".join(_FIRST)))


def _line(cells: list[Any]) -> bytes:
    """A line of a table; cells may have several lines."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue().encode("utf-8", "backslashreplace")


def _cells(record: Record, names: Sequence[str]) -> Iterator[Any]:
    """The values in a line of a table whose columns of fields have these names."""
    fields = record.fields
    yield from (record.event, record.level, record.time, record.device, [*record.lane])
    yield from (fields.get(name) for name in names)
    yield {name: value for name, value in fields.items() if name not in names} or None


def _cell(value: Any) -> Any:
    value = python_value(value)
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, (str, int, float, complex)) else encode(plain(value))
