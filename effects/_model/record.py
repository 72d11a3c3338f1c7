"""Records and their values, as handlers, captures and callbacks get them, and as Python and JSON have them; and marks,
which stand for the values in a sample text, from which native code learns where to put each value."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from time import time as now
from typing import TYPE_CHECKING, Any, Never, overload

import jax
import jax.numpy as jnp
import numpy as np

from effects._model.device import device_place
from effects._model.native import native
from effects._model.operand import Operand, Static
from effects._model.site import Site
from effects._model.where import Where
from effects._model.wire import HEADER, STREAM, Header, header_offset, read_header, thread_of

if TYPE_CHECKING:
    from effects._model.plan import Piece, Style


class Record:
    """One effect that happened.

    Its values are made at their first use.

    Attributes:
        effect: The effect's name.
        device: The device that recorded it, as its position in `jax.devices()`; -1 if all of the program's devices
            did, or if the device is not known, as without native handlers.
        token: Its place in program order: (stream, epoch, phase, index).
        lane: Its lane under `vmap`: one number for each, the outermost first.
        grid: In a Pallas kernel: the index of the program that recorded it, as `pl.program_id` of each axis. Under
            `vmap` of the kernel the lane comes first. None outside of kernels.
        time: The time when its device published it, in seconds since the epoch, as of `time.time()`; for a record
            published before there was any observer, the time when the host took it.

    Example:
        >>> import effects as fx
        >>> with fx.capture(suppress=True) as records:
        ...     fx.jit(lambda x: fx.print("x = {}", x))(1)
        >>> records[0].text, records[0].args
        ('x = 1', (array(1, dtype=int32),))
    """

    __slots__ = ("_ordinal", "_payload", "_site", "_values", "grid", "lane", "time", "token")

    def __init__(
        self,
        site: Site,
        token: tuple[int, ...],
        device: int,
        lane: tuple[int, ...],
        payload: Any,
        grid: tuple[int, ...] | None,
        time: float | None = None,
    ):
        """`payload`: bytes, or the values of all lanes, if they have been read already."""
        self._site = site
        self._payload = payload
        self._values: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.token: tuple[int, ...] = token
        self._ordinal = device
        self.lane: tuple[int, ...] = lane
        self.grid: tuple[int, ...] | None = grid
        self.time: float = now() if time is None else time

    @property
    def effect(self) -> str:
        return self._site.effect.name

    @property
    def fmt(self) -> str | None:
        """The format of a print."""
        return self._site.content.labels.get("fmt")

    @property
    def event(self) -> str | None:
        """The event of a log."""
        return self._site.content.labels.get("event")

    @property
    def level(self) -> int | None:
        """The level of a log."""
        return self._site.content.labels.get("level")

    @property
    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._values is None:
            values = self._payload if isinstance(self._payload, list) else self._site.read(self._payload)
            if self.lane:
                values = self._site.of_lane(values, self.lane)
            args, kwargs = self._site.arguments(values)
            self._values = args, self._site.content.in_order(kwargs)
        return self._values

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments; arrays are NumPy arrays."""
        return self._arguments[0]

    @property
    def fields(self) -> dict[str, Any]:
        """The named arguments; of a log, its fields."""
        return self._arguments[1]

    @property
    def text(self) -> str:
        """The record as one line, or as its format says."""
        return self._site.content.text(self)

    @property
    def index(self) -> tuple[slice, ...] | None:
        """With `per_shard=True`, the slice of the whole that the shard of the first sharded array is; else None."""
        return self._site.index

    @property
    def where(self) -> Where:
        """The user's file, line and function."""
        return self._site.where

    @property
    def line(self) -> int:
        """The user's line."""
        return self._site.where.line

    @property
    def thread(self) -> int:
        """The number of the thread that called the program."""
        return thread_of(self.token[STREAM])

    @property
    def device(self) -> int:
        """The position in `jax.devices()` of the device that recorded it; -1 if all of the program's devices did, or
        if it is not known."""
        return device_place(self._ordinal)

    @property
    def process(self) -> int:
        """The process, where there are several."""
        return jax.process_index()

    @property
    def processes(self) -> tuple[int, ...]:
        """The processes that have this same record, if it is of a replicated value of a program over several devices.
        Empty if only the device that recorded it has it."""
        return self._site.processes

    @property
    def ordered(self) -> bool:
        """True if its token is its place in program order."""
        return self._site.effect.ordered

    def to_dict(self) -> dict[str, Any]:
        """The record as a dictionary of Python's own types.

        Arrays become numbers and nested lists; floats of less than 64 bits become the shortest decimals that their type
        reads as the same. `where` is a dictionary of file, line and function. `fields` and `args` are the call's.

        Example:
            >>> import effects as fx
            >>> with fx.capture() as records:
            ...     fx.jit(lambda x: fx.log("step", loss=x))(0.1)
            >>> record = records[0].to_dict()
            >>> record["event"], record["fields"], record["where"]["function"], record["lane"]
            ('step', {'loss': 0.1}, '<lambda>', ())
        """
        return self.dict_with(python_value)

    def dict_with(self, shown: Callable[[Any], Any]) -> dict[str, Any]:
        """The record as a dictionary, with `shown` applied to `fields` and `args`."""
        where = self.where
        return {
            "effect": self.effect,
            **self._site.content.labels,
            **({"text": self.text} if self.event is None else {}),
            "fields": shown(self.fields),
            "args": shown(self.args),
            "where": {"file": where.file, "line": where.line, "function": where.function},
            "time": self.time,
            "device": self.device,
            "process": self.process,
            "thread": self.thread,
            "token": self.token,
            "lane": self.lane,
            **({} if self.grid is None else {"grid": self.grid}),
            **({} if self.ordered else {"ordered": False}),
            **({"processes": processes} if (processes := self.processes) else {}),
        }

    def __repr__(self) -> str:
        try:
            shown = repr(self.text)
        except Exception as error:  # a field that cannot be shown must not hide the others
            shown = f"<{error!r}>"
        lane = f" lane={self.lane}" if self.lane else ""
        grid = f" grid={self.grid}" if self.grid else ""
        return f"<Record {self.effect} {shown} at {self.where} token={self.token} device={self.device}{lane}{grid}>"


# Internals of a record, for handlers and extensions.


def site_of(record: Record) -> Site:
    """The site of a record: its effect, its content, and the layout of its values."""
    return record._site


def number_of_device(record: Record) -> int:
    """The number by which a record names its device. `Record.device` is the position in `jax.devices()`."""
    return record._ordinal


def after_shard(record: Record, text: str) -> str:
    """A record's text; with `per_shard=True`, preceded by device and index."""
    if not record._site.per_shard or record.index is None:
        return text
    return f"device {record.device} {shown_index(record)}: {text}"


def shown_index(record: Record) -> str:
    """A record's index as Python writes it."""
    return f"[{', '.join(f'{part.start}:{part.stop}' for part in record.index or ())}]"


Part = tuple[Site, tuple[int, ...], int, Any, float]
"""One record, all lanes together: its site, token, device, payload and time."""


def records_of(
    site: Site, token: tuple[int, ...], device: int, payload: Any, time: float, make: Callable[..., Record] = Record
) -> Iterator[Record]:
    """Yields a record for each lane that has the effect, in order; one record if the site has no lanes. `make` takes
    the arguments of `Record`."""
    values = site.read(payload) if site.lanes else payload  # once for all lanes
    grid = site.hidden_numbers("grid", payload)
    for lane in site.lanes_of(payload):
        yield make(site, token, device, lane, values, grid, time)


def count_lanes(site: Site, payload: Any) -> int:
    """The number of lanes of a record that have the effect."""
    active = site.active(payload)
    return math.prod(site.lanes) if active is None else int(active.sum())


class RecordSequence(Sequence[Record]):
    """Records that are made as they are read."""

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


class Records(RecordSequence):
    """A batch of records, in the bytes in which they came from their devices. They are read lazily."""

    def __init__(self, data: bytes, count: int, find_site: Callable[[int], Site]):
        self._data = data
        self._count = count  # headers in `data`; a record with lanes is one
        self._find_site = find_site
        self._one: Part | None = None
        self._sites: list[Site] | None = None

    @classmethod
    def of_one(cls, site: Site, header: Header, payload: Any) -> Records:
        """A single record."""
        records = cls(b"", 1, lambda _: site)
        records._one = site.resolve_sizes(payload), header.token, header.device, payload, header.time
        return records

    @property
    def only_site(self) -> Site | None:
        """The one site of all these records; None if there are several, or if sizes are known only at run time."""
        if self._one is not None:
            return self._one[0]
        if not self._count:
            return None
        site = self._find_site(read_header(self._data).site)
        if site.num_dynamic_sizes:
            return None
        if len(self._data) != self._count * (HEADER.itemsize + site.payload_size):
            return None
        return site if (self.header_column("site", site) == site.id).all() else None

    def _column(self, shape: tuple[int, ...], dtype: np.dtype, offset: int, site: Site) -> np.ndarray:
        """A strided view of the values at this byte of each record. All records must be of one site."""
        inner = np.empty(shape, dtype).strides
        strides = (HEADER.itemsize + site.payload_size, *inner)
        return np.ndarray((self._count, *shape), dtype, self._data, offset, strides)

    def header_column(self, field: str, site: Site) -> np.ndarray:
        """A field of each record's header. All records must be of one site."""
        dtype = HEADER[field]
        return self._column(dtype.shape, dtype.base, header_offset(field), site)

    def operand_column(self, operand: Operand, offset: int, site: Site) -> np.ndarray:
        """An operand of each record, in its stored type, from this byte of the payload. All must be of one site."""
        return self._column(operand.shape, operand.stored, HEADER.itemsize + offset, site)

    def columns(self) -> dict[str, np.ndarray] | None:
        """The values of each argument, by name or position, stacked along a first axis of records.

        None if the records are of several sites, or of a site under `vmap`.
        """
        site = self.only_site
        if site is None or site.lanes or not self._data:
            return None
        columns, places = {}, iter(site.places)
        for name, leaf in zip(site.leaf_names, site.leaves, strict=True):
            if isinstance(leaf, Static):
                value = leaf.value
                cut = isinstance(value, (str, bytes)) and value[-1:] in ("\0", b"\0")  # NumPy drops trailing zeros
                columns[name] = np.full(self._count, value, object if cut else None)
            else:
                columns[name] = self.operand_column(leaf, next(places)[2], site)
                if leaf.stored != leaf.dtype:
                    columns[name] = columns[name].astype(leaf.dtype)
        return columns

    def split(self, parts: int) -> tuple[Records, Records]:
        """Splits the records: the first `parts` of `parts()`, and the rest."""
        if self._one is not None:
            nothing = Records(b"", 0, self._find_site)
            return (self, nothing) if parts else (nothing, self)
        at = 0
        for _ in range(parts):
            at += HEADER.itemsize + read_header(self._data, at).payload_size
        first, rest = self._data[:at], self._data[at:]
        return Records(first, parts, self._find_site), Records(rest, self._count - parts, self._find_site)

    def sites(self) -> list[Site]:
        """The sites of these records, each once."""
        if self._sites is None:
            known = {site_id: self._find_site(site_id) for site_id in native.sites_of(self._data)}
            self._find_site = known.__getitem__  # a handler may keep records longer than their program lives
            self._sites = [*known.values()] if self._one is None else [self._one[0]]
        return self._sites

    def of_sites(self, keep: Callable[[Site], bool]) -> Records:
        """The records of the sites for which `keep` returns true. If that is every site, returns these records."""
        sites = self.sites()
        kept = [site for site in sites if keep(site)]
        if len(kept) == len(sites):
            return self
        data, count = native.select_records(self._data, [site.id for site in kept]) if kept else (b"", 0)
        return Records(data, count, self._find_site)

    def runs(self, key: Callable[[Site], bool]) -> Iterator[tuple[int, Records]]:
        """Groups consecutive records by `key(site)`, and yields the size of each group (lanes count as one) and the
        group."""
        if len({*map(key, self.sites())}) < 2:
            yield self._count, self
            return
        at = begin = count = 0
        before = None
        while at < len(self._data):
            header = read_header(self._data, at)
            if (now := key(self._find_site(header.site))) is not before and count:
                yield count, Records(self._data[begin:at], count, self._find_site)
                begin, count = at, 0
            before, count, at = now, count + 1, at + HEADER.itemsize + header.payload_size
        yield count, Records(self._data[begin:], count, self._find_site)

    def rows(self, plans: dict[int, Any], options: int) -> tuple[bytes, np.ndarray] | None:
        """The lines that native code makes of the records, and the end of each; None for a record that travelled alone.

        Args:
            plans: By site, the plan of its lines. A record of another site has no line.
            options: The number of the print options for arrays.
        """
        if self._one is not None:
            return None
        text, ends = native.rows(self._data, plans, options)
        return text, np.frombuffer(ends, np.uint64)

    def parts(self) -> Iterator[Part]:
        """Yields each record, all its lanes together."""
        if self._one is not None:
            yield self._one
        at = 0
        while at < len(self._data):
            header = read_header(self._data, at)
            start = at + HEADER.itemsize
            at = start + header.payload_size
            payload = self._data[start:at]
            yield self._find_site(header.site).resolve_sizes(payload), header.token, header.device, payload, header.time

    def shown_parts(self) -> Iterator[tuple[int, Part]]:
        """Yields the parts to show, each with its position: all parts, or, if the newest part replaces earlier ones,
        the newest of each device and mask."""
        site = self.only_site if self._count > 1 else None
        if site is None or not site.content.shows_newest:
            yield from enumerate(self.parts())
            return
        size, devices = HEADER.itemsize + site.payload_size, self.header_column("device", site).tolist()
        mask, length = (HEADER.itemsize + site.offsets[0], site.mask.size) if site.mask is not None else (0, 0)
        newest = {}
        for at, device in enumerate(devices):
            newest[device, bytes(self._data[at * size + mask : at * size + mask + length])] = at
        for at in sorted(newest.values()):
            [part] = Records(self._data[at * size : (at + 1) * size], 1, self._find_site).parts()
            yield at, part

    def __iter__(self) -> Iterator[Record]:
        for part in self.parts():
            yield from records_of(*part)

    def __len__(self) -> int:
        site = self.only_site
        if site is not None and site.mask is None:
            return self._count * math.prod(site.lanes)
        return sum(count_lanes(site, payload) for site, _, _, payload, _ in self.parts())


# Values of records in Python's own types.


def python_value(value: Any) -> Any:
    """A value as Python's numbers, strings, lists and dictionaries.

    An instance of a registered pytree class becomes a dictionary of its leaves by path, such as `"layer.w"`.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        known = is_number(array.dtype) or array.dtype.kind in "USO"
        return (shortest(array) if known else array.astype(str)).tolist()
    if value is None or isinstance(value, (str, bytes, int, float, complex, Mark)):
        return value
    if isinstance(value, dict):
        return {str(key): python_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [python_value(inner) for inner in value]
    leaves = jax.tree_util.tree_flatten_with_path(value)[0]
    if leaves and leaves[0][1] is value:
        return str(value)
    return {jax.tree_util.keystr(path, simple=True, separator="."): python_value(leaf) for path, leaf in leaves}


def shortest(array: np.ndarray) -> np.ndarray:
    """The numbers in a type of NumPy's own, rounded so that each is written with the fewest digits that its original
    type reads as the same: a float32 becomes 0.1 and not 0.10000000149011612."""
    dtype = array.dtype
    if not is_numpys(dtype):
        if jnp.issubdtype(dtype, np.floating):
            return shortest(array.astype(np.float32))
        return array.astype(np.int64)
    if dtype.kind == "c" and dtype.itemsize < 16:
        wide = np.empty(array.shape, np.complex128)
        wide.real, wide.imag = shortest(np.real(array)), shortest(np.imag(array))
        return wide
    if dtype.kind == "f" and dtype.itemsize < 8:
        return np.array(array.astype(str)).astype(np.float64)
    return array


def is_numpys(dtype: np.dtype) -> bool:
    """True for a type of NumPy's own. For a type that a library registers, such as bfloat16, `isbuiltin` is 2."""
    return dtype.kind in "biufcUSO" and dtype.isbuiltin != 2


def is_number(dtype: np.dtype) -> bool:
    return dtype.kind in "biufc" or bool(jnp.issubdtype(dtype, np.number))


def as_numpys(column: np.ndarray) -> np.ndarray:
    """The values in a type of NumPy's own: a wider one if theirs is not."""
    dtype = column.dtype
    if is_numpys(dtype) and dtype.kind != "O":
        return column
    for kind, wide in ((np.floating, np.float32), (np.signedinteger, np.int8), (np.unsignedinteger, np.uint8)):
        if jnp.issubdtype(dtype, kind):
            return column.astype(wide)
    return column.astype(str)


# Values of records as JSON has them.

encode = json.JSONEncoder(allow_nan=False).encode


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain_array(np.asarray(value))
    if isinstance(value, float):
        return value if math.isfinite(value) else _NOT_FINITE[str(value)]
    if value is None or isinstance(value, (str, int, Mark)):
        return value
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    return value.hex() if isinstance(value, bytes) else plain(python_value(value))


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _plain_array(array: np.ndarray) -> Any:
    if not is_number(array.dtype):
        return plain(python_value(array))
    array = shortest(array)
    if array.dtype.kind == "c":
        return _plain_array(np.stack([np.real(array), np.imag(array)], -1))
    if array.dtype.kind == "f" and not (finite := np.isfinite(array)).all():
        shown = array.astype(object)
        shown[~finite] = [_NOT_FINITE[str(value)] for value in array[~finite].tolist()]
        return shown.tolist()
    return array.tolist()


# Marks, which stand for values in a sample text.

_NAME = uuid.uuid4().hex
"""The beginning of a mark, which no user text contains."""

MARK = rf"{_NAME}([fsrv])(\d+):([0-9a-f]*);"
"""A mark in a text: the letter of its style, its number, and its format specification in hexadecimal."""


class Unfilled(Exception):
    """Python must make the text, since the text depends on a value in another way than by showing it."""


class Mark:
    """Stands for a value. Its text records how the value is shown; every other operation raises `Unfilled`."""

    __slots__ = ("_number", "field_of")

    def __init__(self, number: int, field_of: Callable[[Style, str], Piece | None]):
        self._number = number
        self.field_of = field_of

    def _text(self, way: str, spec: str = "") -> str:
        return f"{_NAME}{way}{self._number}:{spec.encode().hex()};"

    def __format__(self, spec: str) -> str:
        return self._text("f", spec)

    def __str__(self) -> str:
        return self._text("s")

    def __repr__(self) -> str:
        return self._text("r")

    @property
    def as_value(self) -> str:
        """The mark of the value itself, as an element of JSON."""
        return self._text("v")

    def _refuse(self, *_: Any) -> Never:
        raise Unfilled

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __array__ = __len__ = __iter__ = _refuse
    __hash__ = object.__hash__


def has_marks(text: str) -> bool:
    return _NAME in text
