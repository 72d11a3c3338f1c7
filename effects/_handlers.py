"""Handlers that keep or show records. Each is given to `fx.add_handler`; any function of a record is one as well."""

from __future__ import annotations

import base64
import csv
import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from effects._content import Event
from effects._record import Record, Records
from effects._sites import Site, Static

MSG_NO_EVENT = (
    "No record of the event {event!r} has come; events that have: {known}. Records come when their program has run and "
    "the drain has replayed them. Correct the name, or call `fx.effects_barrier()` first."
)
MSG_COLUMNS = (
    "The event {event!r} was logged with the fields {expected}, and at {where} with {got}. The records of an event are "
    "rows of one table, so their fields have the same names and shapes. Give the two events names of their own."
)


class ListHandler:
    """Keeps records in memory, as they come; what is in them is read when it is asked for.

    Example:
        >>> import effects as fx, jax
        >>> handler = fx.ListHandler()
        >>> token = fx.add_handler(handler, effects="log")
        >>> count = fx.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, _: fx.log("step", i=i), None))
        >>> count(1000)
        >>> fx.remove_handler(token)
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
        table, known = _Table(event), set()
        for chunk in self._chunks[:]:
            pieces = _pieces(chunk)
            known |= set(pieces)
            if event in pieces:
                table.add(pieces[event])
        if event not in known:
            shown = ", ".join(map(repr, sorted(known))) or "none"
            raise ValueError(MSG_NO_EVENT.format(event=event, known=shown))
        columns = table.columns()
        del columns["token"]
        return columns

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def __bool__(self) -> bool:
        return True  # a handler that has got nothing yet is a handler

    def clear(self) -> None:
        """Forgets what has come."""
        self._chunks, self._records, self._read = [], [], 0


class JsonLinesHandler:
    """Writes each record as a JSON object on a line of its own, in order. A file that exists is replaced.

    An object has `effect`, `device`, `process`, `thread`, `token` (the four numbers of its place in program order),
    `lane` and `where` (`file`, `line`, `function`); of a log `event`, `level` and `fields`; of a print `fmt`, `text`,
    `args` and `fields`; of a callback `text`, `args` and `fields`. Arrays are nested lists, and numbers of every type
    keep their value. What JSON has no word for is: `"NaN"`, `"Infinity"`, `"-Infinity"`; a complex number
    `[real, imaginary]`; bytes as a string in base64. Pytrees are objects and lists; those of classes that JAX was told
    of are objects of their leaves by path, such as `"layer.w"`.

    Args:
        path: The file.
        fsync: Whether each batch is on the disk before the next is taken, so that a machine that stops loses none.
            Otherwise it is with the operating system, and only a process that stops loses none.

    Raises:
        OSError: if the file cannot be written.

    Example:
        >>> import effects as fx, os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "run.jsonl")
        >>> token = fx.add_handler(fx.JsonLinesHandler(path))
        >>> fx.jit(lambda x: fx.log("step", loss=x))(0.5)
        >>> fx.remove_handler(token)
        >>> record = json.loads(open(path).read())
        >>> record["event"], record["level"], record["fields"]
        ('step', 20, {'loss': 0.5})
    """

    def __init__(self, path: str | os.PathLike[str], *, fsync: bool = False):
        self._file = open(path, "w", encoding="ascii", newline="\n")  # noqa: SIM115 - closed by `close`
        self._fsync = fsync

    def handle(self, record: Record) -> None:
        self.handle_many([record])

    def handle_many(self, records: Sequence[Record]) -> None:
        _each(records, lambda record: self._file.write(json.dumps(_json_object(record), allow_nan=False) + "\n"))
        self._file.flush()
        if self._fsync:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class NpzHandler:
    """Keeps the records of logs as columns, and writes them as NumPy's `.npz` when it is closed.

    The file has an array `event/field` for each field, whose first axis are the records in order, and for each event
    an array `event/token`, of shape (records, 4), with their places in program order. A field that is a pytree has an
    array for each of its leaves, such as `step/state.x`; None has none. Types that NumPy itself lacks are widened,
    which changes no value: `bfloat16` and the floats of 8 and 4 bits to `float32`, narrow integers to 8 bits. What is
    no number is text. Records of other effects are not kept.

    Args:
        path: The file, taken as it is. A file that exists is replaced, at once by an empty one.

    Raises:
        OSError: if the file cannot be written.

    Example:
        >>> import effects as fx, numpy as np, os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "run.npz")
        >>> token = fx.add_handler(fx.NpzHandler(path), effects="log")
        >>> step = fx.jit(lambda x: fx.log("step", loss=x))
        >>> step(0.5), step(0.25)
        (None, None)
        >>> fx.remove_handler(token)
        >>> np.load(path)["step/loss"]
        array([0.5 , 0.25], dtype=float32)
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._path = os.fspath(path)
        self._tables: dict[str, _Table] = {}  # by event
        self.flush()

    def handle(self, record: Record) -> None:
        self.handle_many([record])

    def handle_many(self, records: Sequence[Record]) -> None:
        _each(_pieces(records).items(), lambda item: self._tables.setdefault(item[0], _Table(item[0])).add(item[1]))

    def flush(self) -> None:
        """Writes what has come so far. The file is replaced as a whole."""
        arrays = {
            f"{event}/{name}": _native(column)
            for event, table in list(self._tables.items())
            for name, column in table.columns().items()
        }
        part = f"{self._path}.part"
        with open(part, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        os.replace(part, self._path)

    def close(self) -> None:
        self.flush()


class CsvHandler:
    """Writes the records of logs as a table: a line of commas for each, below a line of names.

    The columns are `event`, `level`, `device`, `lane`, the fields of the first record, and `other`: fields that the
    first record has not are there, as a JSON object, and those that only the first record has are empty. Numbers and
    strings are as Python writes them, None is empty, and everything else (arrays that have dimensions, pytrees) is
    JSON as `JsonLinesHandler` writes it. Records of other effects are not written.

    Args:
        path: The file. A file that exists is replaced.

    Raises:
        OSError: if the file cannot be written.

    Example:
        >>> import effects as fx, os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "run.csv")
        >>> token = fx.add_handler(fx.CsvHandler(path), effects="log")
        >>> fx.jit(lambda x: fx.log("step", loss=x))(0.5)
        >>> fx.remove_handler(token)
        >>> print(open(path).read(), end="")
        event,level,device,lane,loss,other
        step,20,0,[],0.5,
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._file = open(path, "w", encoding="utf-8", errors="backslashreplace", newline="")  # noqa: SIM115
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._fields: list[str] | None = None  # those of the first record

    def handle(self, record: Record) -> None:
        self.handle_many([record])

    def handle_many(self, records: Sequence[Record]) -> None:
        _each(records, self._write)
        self._file.flush()

    def _write(self, record: Record) -> None:
        if record.event is None:
            return
        fields = record.fields
        if self._fields is None:
            self._fields = list(fields)
            self._writer.writerow(["event", "level", "device", "lane", *fields, "other"])
        own = [_csv_cell(fields.get(name)) for name in self._fields]
        other = {name: _plain(value) for name, value in fields.items() if name not in self._fields}
        lane = json.dumps(record.lane)
        self._writer.writerow([record.event, record.level, record.device, lane, *own, json.dumps(other) if other else ""])

    def close(self) -> None:
        self._file.close()


class ConsoleHandler:
    """Shows each record on a line of a rich console: its level in colour, what happened, and where.

    Args:
        console: A `rich.console.Console`; by default one that writes to `sys.stdout`.

    Example:
        >>> import effects as fx
        >>> token = fx.add_handler(fx.ConsoleHandler(), effects="log")
        >>> fx.jit(lambda x: fx.log("step", loss=x))(0.5)  # doctest: +ELLIPSIS
        >>> fx.remove_handler(token)  # doctest: +ELLIPSIS
        INFO     step loss=0.5 ...
    """

    def __init__(self, console: Any = None):
        from rich.console import Console

        self._console = console or Console()

    def handle(self, record: Record) -> None:
        from rich.text import Text

        name = record.effect if record.level is None else logging.getLevelName(record.level)
        style = "" if record.level is None else f"logging.level.{name.lower()}"
        where = record.where
        lane = f" lane={record.lane}" if record.lane else ""
        line = Text.assemble(
            (f"{name:<8}", style),
            " " + record.text.replace("\n", " ") + lane + " ",
            (f"{os.path.basename(where.file)}:{where.line}", "dim"),
        )
        self._console.print(line, soft_wrap=True, highlight=False)


def _each(things: Iterable[Any], take: Callable[[Any], object]) -> None:
    """Takes each. What one raises keeps none of the others from being taken; the first error is raised at the end."""
    first: Exception | None = None
    for thing in things:
        try:
            take(thing)
        except Exception as error:
            first = first or error
    if first is not None:
        raise first


# Columns


class _Table:
    """The records of one event as columns, in order."""

    def __init__(self, event: str):
        self.event = event
        self._parts: list[dict[str, np.ndarray]] = []
        self._new = 0  # how many parts at the end are small
        self._shapes: dict[str, tuple[int, ...]] | None = None  # of the fields, by name

    def add(self, pieces: list[_Piece]) -> None:
        """Adds the records that came together."""
        fitting = []
        for piece in pieces:
            shapes = {name: column.shape[1:] for name, column in piece.columns.items()}
            self._shapes = self._shapes or shapes
            if shapes == self._shapes:
                fitting.append(piece)
        if fitting:
            joined = _join([piece.columns for piece in fitting])
            if len(fitting) > 1:
                order = np.argsort(np.concatenate([piece.positions for piece in fitting]), kind="stable")
                joined = {name: column[order] for name, column in joined.items()}
            self._parts.append(joined)
            self._new += 1
        if self._new == _SMALL:
            self._parts[-_SMALL:] = [_join(self._parts[-_SMALL:])]
            self._new = 0
        for piece in pieces:
            if not any(piece is other for other in fitting):
                raise ValueError(
                    MSG_COLUMNS.format(
                        event=self.event,
                        expected=_show_shapes(self._shapes or {}),
                        where=piece.site.where,
                        got=_show_shapes({name: column.shape[1:] for name, column in piece.columns.items()}),
                    )
                )

    def columns(self) -> dict[str, np.ndarray]:
        return _join(self._parts[:])
