"""Records as lines of JSON."""

from __future__ import annotations

import os
from collections.abc import Sequence

from effects._model.plan import Piece, Plan
from effects._model.record import Record, encode, plain
from effects._model.site import Site
from effects._model.text import MarkedRecord, NativeRows, joined, plan_of
from effects.extensions.handlers.files import LineFile, each
from effects.extensions.handlers.json_values import json_pieces


class JsonLinesHandler:
    """Writes each record as a JSON object on one line, in order.

    An object has `effect`, `fields`, `args`, `where` (`file`, `line`, `function`), `device`, `process`, `thread`,
    `token` (the four numbers of its place in program order), `lane` and `time` (seconds since the epoch, when its
    device published it); of a log also `event` and `level`, of a print `fmt` and `text`, of a callback `text`; if it is
    unordered, `ordered`; if it is of a whole value of a program over several devices, `processes` (whose devices these
    are). Arrays are nested lists, and numbers the shortest that their type reads as the same. What
    JSON has no word for is: `"NaN"`, `"Infinity"`, `"-Infinity"`; a complex number `[real, imaginary]`; bytes as
    hexadecimal digits. Pytrees are objects and lists; of a class that JAX was told of, an object of its leaves by path,
    such as `"layer.w"`.

    Args:
        path: The file. One that exists is replaced.
        append: True to add lines to a file that exists, as when a run is resumed. A partial record of a killed writer
            stays, as a separate line that is not JSON.
        fsync: True to have each batch on the disk before the next is taken, so that a machine that stops loses none.
            Otherwise it is with the operating system, and only a process that stops loses none.

    Raises:
        OSError: if the file cannot be written.

    Example:
        >>> import effects as fx, json, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "run.jsonl")
        >>> added = fx.add_handler(fx.JsonLinesHandler(path))
        >>> fx.jit(lambda x: fx.log("step", loss=x))(0.5)
        >>> fx.remove_handler(added)
        >>> record = json.loads(path.read_text())
        >>> record["event"], record["level"], record["fields"]
        ('step', 20, {'loss': 0.5})
    """

    def __init__(self, path: str | os.PathLike[str], *, append: bool = False, fsync: bool = False):
        self._file = LineFile(path, append)
        self._fsync = fsync
        self._rows = NativeRows(_plan)

    def handle(self, record: Record) -> None:
        self.handle_many([record])

    def handle_many(self, records: Sequence[Record]) -> None:
        lines: list[bytes] = []
        rows = self._rows.of(records)
        try:
            if rows is None:
                each(records, lambda record: lines.append(f"{encode(record.dict_with(plain))}\n".encode("ascii")))
        finally:
            self._file.write(*(rows or joined(lines)))
            if self._fsync:
                self._file.sync()

    def close(self) -> None:
        self._file.close()


def _plan(site: Site) -> Plan:
    record = MarkedRecord(site, with_header=True)
    return plan_of(site, [*json_pieces(record, record.dict_with(plain)), Piece("\n")])
