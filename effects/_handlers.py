"""Handlers that keep or show records. Each is given to `fx.add_handler`; any function of a record is one as well."""

from __future__ import annotations

import csv
import dataclasses
import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from effects import _jax as compat
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

    An object has `effect`, `fields`, `args`, `where` (`file`, `line`, `function`), `device`, `process`, `thread`,
    `token` (the four numbers of its place in program order) and `lane`; of a log also `event` and `level`, of a print
    `fmt` and `text`, of a callback `text`; if it is unordered, `ordered`; if it is of a whole value of a program over
    several devices, `processes` (whose devices these are). Where there are several processes each has a log of its own,
    whose objects also have `run`, which no other run has, and `process_count`: `effects merge` makes one of them all.
    Arrays are nested lists, and numbers of every type keep their value. What
    JSON has no word for is: `"NaN"`, `"Infinity"`, `"-Infinity"`; a complex number `[real, imaginary]`; bytes as
    hexadecimal digits. Pytrees are objects and lists; of a class that JAX was told of, an object of its leaves by path,
    such as `"layer.w"`.

    Args:
        path: The file.
        fsync: Whether each batch is on the disk before the next is taken, so that a machine that stops loses none.
            Otherwise it is with the operating system, and only a process that stops loses none.

    Raises:
        OSError: if the file cannot be written.

    Example:
        >>> import effects as fx, json, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "run.jsonl")
        >>> token = fx.add_handler(fx.JsonLinesHandler(path))
        >>> fx.jit(lambda x: fx.log("step", loss=x))(0.5)
        >>> fx.remove_handler(token)
        >>> record = json.loads(path.read_text())
        >>> record["event"], record["level"], record["fields"]
        ('step', 20, {'loss': 0.5})
    """

    def __init__(self, path: str | os.PathLike[str], *, fsync: bool = False):
        self._file = open(path, "w", encoding="ascii", newline="\n")  # noqa: SIM115 - closed by `close`
        self._fsync = fsync

    def handle(self, record: Record) -> None:
        self.handle_many([record])

    def handle_many(self, records: Sequence[Record]) -> None:
        _each(records, lambda record: self._file.write(_encode(_json_object(record)) + "\n"))
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
        >>> import effects as fx, numpy as np, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "run.npz")
        >>> token = fx.add_handler(fx.NpzHandler(path), effects="log")
        >>> step = fx.jit(lambda x: fx.log("step", loss=x))
        >>> step(0.5), step(0.25)
        (None, None)
        >>> fx.remove_handler(token)
        >>> with np.load(path) as arrays:
        ...     arrays["step/loss"]
        array([0.5 , 0.25], dtype=float32)
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._path = os.fsdecode(path)
        self._tables: dict[str, _Table] = {}  # by event
        with open(path, "wb"):
            pass  # what is wrong with the path is said by its own name
        self.flush()

    def handle(self, record: Record) -> None:
        self.handle_many([record])

    def handle_many(self, records: Sequence[Record]) -> None:
        _each(_pieces(records).items(), lambda item: self._tables.setdefault(item[0], _Table(item[0])).add(item[1]))

    def flush(self) -> None:
        """Writes what has come so far. The file is replaced as a whole."""
        arrays: dict[str, Any] = {
            f"{event}/{name}": _native(column)
            for event, table in list(self._tables.items())
            for name, column in table.columns().items()
        }
        part = f"{self._path}.part"
        with open(part, "wb") as file:
            np.savez(file, **arrays)
        os.replace(part, self._path)

    def close(self) -> None:
        self.flush()


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
        >>> token = fx.add_handler(fx.CsvHandler(path), effects="log")
        >>> fx.jit(lambda x: fx.log("step", loss=x))(0.5)
        >>> fx.remove_handler(token)
        >>> print(path.read_text(), end="")
        event,level,device,lane,loss,fields
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
            self._writer.writerow(["event", "level", "device", "lane", *fields, "fields"])
        own = [_csv_cell(fields.get(name)) for name in self._fields]
        other = {name: _plain(value) for name, value in fields.items() if name not in self._fields}
        first = [record.event, record.level, record.device, json.dumps(record.lane)]
        self._writer.writerow([*first, *own, _encode(other) if other else ""])

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


_SMALL = 1000
"""How many small parts of a table become a large one. A part takes some memory beyond its values."""


@dataclasses.dataclass
class _Piece:
    """Records of one site that came together."""

    site: Site
    columns: dict[str, np.ndarray]  # the fields, and `token`
    positions: Sequence[int] = ()  # of the records among all that came together, if not all are of this site

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: column.shape[1:] for name, column in self.columns.items()}


class _Table:
    """The records of one event as columns, in order."""

    def __init__(self, event: str):
        self._event = event
        self._parts: list[dict[str, np.ndarray]] = []
        self._small = 0  # how many parts at the end are small
        self._shapes: dict[str, tuple[int, ...]] = {}  # of one record, by column

    def add(self, pieces: list[_Piece]) -> None:
        """Adds records that came together, but for those that do not fit, which are an error."""
        self._shapes = self._shapes or pieces[0].shapes
        fitting = [piece for piece in pieces if piece.shapes == self._shapes]
        if fitting:
            part = _join([piece.columns for piece in fitting])
            if len(fitting) > 1:
                order = np.argsort(np.concatenate([piece.positions for piece in fitting]), kind="stable")
                part = {name: column[order] for name, column in part.items()}
            self._parts.append(part)
            self._small += 1
        if self._small == _SMALL:
            self._parts[-_SMALL:] = [_join(self._parts[-_SMALL:])]
            self._small = 0
        for piece in pieces:
            if piece.shapes != self._shapes:
                expected, got = _show_shapes(self._shapes), _show_shapes(piece.shapes)
                raise ValueError(
                    MSG_COLUMNS.format(event=self._event, expected=expected, where=piece.site.where, got=got)
                )

    def columns(self) -> dict[str, np.ndarray]:
        return _join(self._parts[:])


def _pieces(records: Sequence[Record]) -> dict[str, list[_Piece]]:
    """The records of logs as columns: by event, and there by site."""
    if isinstance(records, Records) and (columns := records.columns()) is not None:
        site = cast(Site, records.only_site)
        columns["token"] = records.header_column("token", site)
        return {site.content.event: [_Piece(site, columns)]} if isinstance(site.content, Event) else {}
    of_site: dict[Site, tuple[list[int], list[Record]]] = {}
    for position, record in enumerate(records):
        if record.event is not None:
            positions, some = of_site.setdefault(record._site, ([], []))
            positions.append(position)
            some.append(record)
    pieces: dict[str, list[_Piece]] = {}
    for site, (positions, some) in of_site.items():
        columns = _columns(site, some)
        columns["token"] = np.array([record.token for record in some], np.uint32)
        pieces.setdefault(cast(Event, site.content).event, []).append(_Piece(site, columns, positions))
    return pieces


def _columns(site: Site, records: list[Record]) -> dict[str, np.ndarray]:
    """The fields of records of one site; what `Records.columns` is for those that follow each other in memory."""
    if site.lanes:
        rows = [jax.tree.leaves((record.args, record.fields)) for record in records]
        leaves = [[row[i] for row in rows] for i in range(len(site.leaves))]
        return {name: np.stack(leaf) for name, leaf in zip(site.leaf_names, leaves, strict=True)}
    data = b"".join(record._payload for record in records)
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
    if len(dtypes) > 1 and len({_is_number(dtype) for dtype in dtypes}) > 1:
        columns = [column.astype(object) for column in columns]  # numbers do not become text
    try:
        return np.concatenate(columns)
    except TypeError:  # two types of which neither holds the other, such as bfloat16 and float16
        return np.concatenate([_native(column) for column in columns])


def _is_number(dtype: np.dtype) -> bool:
    return dtype.kind in "biufc" or bool(jnp.issubdtype(dtype, np.number))


def _native(column: np.ndarray) -> np.ndarray:
    """The values in a type that NumPy itself has, and that a file keeps."""
    dtype = column.dtype
    if dtype.kind in "biufcUS" and dtype.isbuiltin != _OF_A_LIBRARY:
        return column
    for kind, wide in ((np.floating, np.float32), (np.signedinteger, np.int8), (np.unsignedinteger, np.uint8)):
        if jnp.issubdtype(dtype, kind):
            return column.astype(wide)
    return column.astype(str)


_OF_A_LIBRARY = 2  # what `isbuiltin` is for types such as bfloat16


def _show_shapes(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"`{name}`{list(shape) if shape else ''}" for name, shape in shapes.items() if name != "token")


# Values as text


_encode = json.JSONEncoder(allow_nan=False).encode


def _json_object(record: Record) -> dict[str, Any]:
    where = record.where
    if record.event is not None:
        what = {"event": record.event, "level": record.level}
    elif record.fmt is not None:
        what = {"fmt": record.fmt, "text": record.text}
    else:
        what = {"text": record.text}
    return {
        "effect": record.effect,
        **what,
        "fields": _plain(record.fields),
        "args": _plain(record.args),
        "where": {"file": where.file, "line": where.line, "function": where.function},
        "device": record.device,
        "process": record.process,
        "thread": record.thread,
        "token": record.token,
        "lane": record.lane,
        **({} if record.ordered else {"ordered": False}),
        **({"processes": processes} if (processes := record.processes) else {}),
        **_run(),
    }


def _run() -> dict[str, Any]:
    """What the processes of one run have in common, where there are several."""
    run = compat.run_id()
    return {} if run is None else {"run": run, "process_count": jax.process_count()}


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, (np.ndarray, np.generic)):
        if value.ndim or value.dtype.kind not in "biuf":
            return _plain_array(np.asarray(value))
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else _NOT_FINITE[str(value)]
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    if isinstance(value, bytes):
        return value.hex()
    leaves = jax.tree_util.tree_flatten_with_path(value)[0]
    if leaves and leaves[0][1] is value:
        return str(value)
    return {jax.tree_util.keystr(path, simple=True, separator="."): _plain(leaf) for path, leaf in leaves}


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _plain_array(array: np.ndarray) -> Any:
    kind = array.dtype.kind
    if kind in "biuU":
        return array.tolist()
    if kind == "c":
        return _plain_array(np.stack([np.real(array), np.imag(array)], -1))
    if not _is_number(array.dtype):
        return _plain(array.tolist()) if kind in "SO" else array.astype(str).tolist()
    if kind != "f":
        array = array.astype(np.float64 if jnp.issubdtype(array.dtype, np.floating) else np.int64)
    finite = np.isfinite(array)
    if finite.all():
        return array.tolist()
    shown = array.astype(object)
    shown[~finite] = [_NOT_FINITE[str(value)] for value in array[~finite].tolist()]
    return shown.tolist()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, (str, int, float, complex)) else _encode(_plain(value))
