"""Records as a table of text."""

from __future__ import annotations

import csv
import io
import json
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from effects._model.record import Record
from effects.handlers._batches import each
from effects.handlers._lines import LineFile
from effects.handlers._values import csv_cell, encode, plain


class CsvHandler:
    """Writes the records of logs as a table: a line of commas for each, below a line of names.

    The columns are `event`, `level`, `device`, `lane`, the fields of the first record, and `fields`: there are, as a
    JSON object, those fields of later records that the first has not. Fields that a record has not are empty, as is
    None. Numbers and strings are as Python writes them, bytes as hexadecimal digits, and everything else (arrays that
    have dimensions, pytrees) is JSON as `JsonLinesHandler` writes it. Records of other effects are not written.

    Args:
        path: The file. A file that exists is replaced.

    Raises:
        OSError: if the file cannot be written.

    Example:
        >>> import effects as fx, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "run.csv")
        >>> added = fx.add_handler(fx.CsvHandler(path), effects="log")
        >>> fx.jit(lambda x: fx.log("step", loss=x))(0.5)
        >>> fx.remove_handler(added)
        >>> print(path.read_text(), end="")
        event,level,device,lane,loss,fields
        step,20,0,[],0.5,
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._file = LineFile(path)
        self._fields: list[str] | None = None  # those of the first record
        self._lock = threading.Lock()  # of who finds that there are none yet

    def handle(self, record: Record) -> None:
        self.handle_many([record])

    def handle_many(self, records: Sequence[Record]) -> None:
        lines: list[bytes] = []
        try:
            each(records, lambda record: self._add(record, lines))
        finally:
            self._file.write(lines)

    def _add(self, record: Record, lines: list[bytes]) -> None:
        if record.event is None:
            return
        fields = record.fields
        names = self._names(fields)
        own = [csv_cell(fields.get(name)) for name in names]
        other = {name: plain(value) for name, value in fields.items() if name not in names}
        first = [record.event, record.level, record.device, json.dumps(record.lane)]
        lines.append(_line([*first, *own, encode(other) if other else ""]))

    def _names(self, fields: Mapping[str, Any]) -> list[str]:
        """The fields that have columns. The first record of all, which has these fields, says it."""
        if self._fields is None:
            with self._lock:
                if self._fields is None:
                    self._file.head = [_line(["event", "level", "device", "lane", *fields, "fields"])]
                    self._fields = list(fields)  # from now on other threads write
        return self._fields

    def close(self) -> None:
        self._file.close()


def _line(cells: list[Any]) -> bytes:
    """A line of a table; cells may have several lines."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue().encode("utf-8", "backslashreplace")
