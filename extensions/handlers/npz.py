"""Records as columns in a file of NumPy's."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import shutil
import struct
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, BinaryIO

import numpy as np

from effects._model.record import Record
from effects._model.values import is_number
from effects.extensions.handlers.columns import Piece, Table, native, pieces_of
from effects.extensions.handlers.files import Pieces, each

# Files of arrays of which some are in pieces: each piece is a file of arrays itself, with the next rows of some.

PIECE = "pieces/{number}.npz"
"""The member of a file that is its piece of this number."""

_ARRAY = ".npy"
_LOCAL_HEADER = struct.Struct("<26xHH")
"""What stands in a zip file ahead of a member's name: how long this is, and what comes between it and the content."""
_BLOCK = 1 << 20
"""Bytes that are read at once, of rows of less than these."""


class NotRowsError(ValueError):
    """A file has something else than arrays, of which those of one event have as many rows."""


@dataclasses.dataclass(frozen=True)
class Part:
    """Rows of an array, as a member of a file, or of a piece in a file."""

    archive: zipfile.ZipFile
    member: zipfile.ZipInfo
    dtype: np.dtype
    shape: tuple[int, ...]

    def rows(self) -> Iterator[np.ndarray]:
        """The rows, some at a time."""
        inner = self.shape[1:]
        row_size = np.empty(inner, self.dtype).nbytes
        count, at_once = self.shape[0], max(1, _BLOCK // max(row_size, 1))
        with self.archive.open(self.member) as file:
            _read_header(file)
            while count:
                data = file.read(min(count, at_once) * row_size)
                rows = np.frombuffer(data, self.dtype).reshape(min(count, at_once), *inner)
                count -= len(rows)
                yield rows


def parts_of(file: BinaryIO | io.FileIO) -> tuple[dict[str, list[Part]], int]:
    """The arrays of a file, by name: the rows that each has, and those that pieces have behind them. With the number
    that the next piece has.

    Raises:
        NotRowsError: if something else is in it.
        zipfile.BadZipFile: if it is no zip file.
    """
    parts: dict[str, list[Part]] = {}
    archive = zipfile.ZipFile(file)
    pieces: dict[int, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        if (number := _number(member.filename)) is not None:
            pieces[number] = member
        else:
            _add(parts, archive, member)
    for number in sorted(pieces):
        piece = zipfile.ZipFile(_Inner(file, pieces[number]))
        for member in piece.infolist():
            _add(parts, piece, member)
    return parts, max(pieces, default=-1) + 1


def _number(name: str) -> int | None:
    """The number of a piece; None of something else."""
    before, after = PIECE.split("{number}")
    number = name.removeprefix(before).removesuffix(after)
    return int(number) if number.isdecimal() and name == PIECE.format(number=number) else None


def _add(parts: dict[str, list[Part]], archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    name = member.filename.removesuffix(_ARRAY)
    if name == member.filename:
        raise NotRowsError(f"{name!r} is no array")
    with archive.open(member) as file:
        shape, dtype = _read_header(file)
    if not shape:
        raise NotRowsError(f"{name!r} has no rows")
    parts.setdefault(name, []).append(Part(archive, member, dtype, shape))


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in read:
        raise NotRowsError("a structured array is in it")
    shape, is_fortran, dtype = read[version](file)
    if is_fortran or dtype.hasobject:
        raise NotRowsError("an array of objects or in Fortran's order is in it")
    return shape, dtype


def write_joined(parts: dict[str, list[Part]], path: str) -> None:
    """Writes a file in which each array is whole."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, of_one in parts.items():
            dtype = _common_type([part.dtype for part in of_one])
            shape = (sum(part.shape[0] for part in of_one), *of_one[0].shape[1:])
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            with archive.open(f"{name}{_ARRAY}", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(file, header)
                for part in of_one:
                    for rows in part.rows():
                        file.write(_as(rows, dtype).tobytes())


def _common_type(dtypes: list[np.dtype]) -> np.dtype:
    """The type of an array that has rows of these."""
    if len({"number" if is_number(dtype) else dtype.kind for dtype in dtypes}) == 1:
        return np.result_type(*dtypes)
    return np.result_type(
        "U1", *(np.dtype(f"U{4 * dtype.itemsize + 3}") if dtype.kind == "S" else dtype for dtype in dtypes)
    )


def _as(rows: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "U" != rows.dtype.kind:
        rows = rows.astype(object)  # numbers are written as Python writes them
    return rows.astype(dtype, copy=False)


class _Inner(io.RawIOBase):
    """A member of a zip file, as a file in which one can go back and forth."""

    def __init__(self, file: BinaryIO | io.FileIO, member: zipfile.ZipInfo):
        file.seek(member.header_offset)
        lengths = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        self._file, self._size = file, member.file_size
        self._begin = member.header_offset + _LOCAL_HEADER.size + sum(lengths)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if self._at < 0:
            raise OSError("before the beginning of the file")  # zip files are tried from their end
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        self._file.seek(self._begin + self._at)
        data = self._file.read(min(len(buffer), max(0, self._size - self._at)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


# A zip file that grows, and that can be opened whatever becomes of the process that writes it.

_LAST = 22
"""Bytes of the last record of a directory, which says where the directory begins."""
_SEARCHED = 60_000
"""Readers look for that record in the last 64 KiB of a file, and take the last one that they find."""
_LARGEST = 24_000
"""Bytes of the largest directory with which members are added: it must fit there, and more."""
_PAGE = 4096
"""What lies in one page is written as a whole or not at all, also if the process is killed."""


class GrowingZip:
    """Members are added behind the directory of those before, and a new directory comes behind them.

    A process may be killed within any write. So the file must end, at any moment, with a directory, or with one and
    less than 64 KiB behind it:

    1. Copies of the directory are written further and further behind, with less than that between them, until there is
       room for the member ahead of the last copy.
    2. The member is written there.
    3. A directory that has the member is written behind the last copy.

    What is no longer used stays in the file. No thread may write while another one does.

    Args:
        file: A file without a buffer, for reading and writing. One that is empty becomes a zip file without members.

    Raises:
        zipfile.BadZipFile: if it is something else.
    """

    def __init__(self, file: io.FileIO):
        self._file = file
        self._members: list[zipfile.ZipInfo] = []
        self._end = 0  # of the newest directory
        self._size = 0  # of the largest
        if file.seek(0, os.SEEK_END):
            with zipfile.ZipFile(file) as archive:
                self._members = archive.infolist()
            start = max(0, file.seek(0, os.SEEK_END) - (1 << 16) - _LAST)
            file.seek(start)
            self._end = start + file.readall().rfind(b"PK\5\6") + _LAST
            file.truncate(self._end)  # what a process that was killed left behind it
            self._size = len(_directory(self._members, self._end))
        else:
            self._end = self._write_directory(0, [])

    @property
    def is_full(self) -> bool:
        """Whether the directory has become too large for more members."""
        return self._size > _LARGEST

    def add(self, name: str, content: BinaryIO) -> None:
        """Adds a member with the content of a file. If it cannot be written, this file is as it was."""
        member = zipfile.ZipInfo(name, time.localtime()[:6])
        member.CRC = 0
        for block in _blocks(content):
            member.CRC = zlib.crc32(block, member.CRC)
            member.file_size = member.compress_size = member.file_size + len(block)
        member.header_offset = self._end
        header = member.FileHeader()
        try:
            end = self._move_directory(self._end + len(header) + member.file_size)
            self._file.seek(self._end)
            for block in (header, *_blocks(content)):
                self._write(block)
            self._end = self._write_directory(end, [*self._members, member])
        except BaseException:
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)
            raise
        self._members.append(member)

    def _move_directory(self, to: int) -> int:
        """Has the file end with a copy of the directory that begins here or behind it. Returns where the copy ends."""
        begin = end = self._end
        while begin < to:
            begin = min(end + _SEARCHED - self._size, to)
            end = self._write_directory(begin, self._members)
        return end

    def _write_directory(self, at: int, members: list[zipfile.ZipInfo]) -> int:
        """Writes one here, or so much behind that its last record lies in one page. Returns where it ends."""
        directory = _directory(members, at)
        while 0 < (in_last_page := (at + len(directory)) % _PAGE) < _LAST:
            at += _LAST - in_last_page
            directory = _directory(members, at)
        self._file.seek(at)
        self._write(directory)
        self._size = max(self._size, len(directory))
        return at + len(directory)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) or 0 :]


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    file.seek(0)
    return iter(lambda: file.read(1 << 20), b"")


def _directory(members: list[zipfile.ZipInfo], at: int) -> bytes:
    """The directory of these members, as it stands at this place of a file."""
    out = _At(at)
    with zipfile.ZipFile(out, "w") as archive:
        archive.filelist.extend(members)
    return out.getvalue()


class _At(io.BytesIO):
    """A file in memory, whose first byte is at this place."""

    def __init__(self, at: int):
        super().__init__()
        self._at = at

    def tell(self) -> int:
        return super().tell() + self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return super().seek(offset - self._at, whence) + self._at


MSG_NO_FILE = (
    "`NpzHandler` was given {path!r}, which is no ordinary file. The file is replaced as a whole when the arrays in it "
    "are joined, which would destroy this one. Pass the path of a file, or one where nothing is."
)
MSG_OTHER_ARRAYS = (
    "`fx.NpzHandler` was asked to add records to {path!r}, but {why}. Records are added to a file that it has written, "
    "in which each event has a field `token`. Give it another file, or leave out `append=True`."
)


class NpzHandler:
    """Keeps the records of logs as columns, in NumPy's `.npz`.

    When the handler is closed, the file has an array `event/field` for each field, whose first axis are the records in
    order, and for each event an array `event/token`, of shape (records, 4), with their places in program order. A field
    that is a pytree has an array for each of its leaves, such as `step/state.x`; None has none. Types that NumPy itself
    lacks are widened, which changes no value: `bfloat16` and the floats of 8 and 4 bits to `float32`, narrow integers
    to 8 bits. What is no number is text. Records of other effects are not kept.

    Until then records are added in pieces, of which the memory holds one. `np.load` opens the file at any time, also
    when the process was killed, which loses no more than the last piece. A piece is a member `pieces/N.npz`, and is a
    file of the same arrays with the next records: `np.load(io.BytesIO(arrays["pieces/0.npz"]))` reads one. What was
    killed leaves them so, and `fx.NpzHandler(path, append=True).close()` joins them. A file that has other names, as
    hard links, is written over when they are joined: what is killed then has left all records in `PATH.part`.

    Args:
        path: The file, taken as it is. A file that exists is replaced, at once by an empty one; of a link, what it
            leads to.
        append: Whether records are added to a file that exists instead, as when a run is resumed.
        every: Seconds after which what has come is written, as a piece. Many records are one sooner; with 0, those that
            come together are.

    Raises:
        OSError: if the file cannot be written, or is a directory, a device or a pipe.
        ValueError: with `append=True`, if the file exists and is not one that such a handler has written.

    Example:
        >>> import effects as fx, numpy as np, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "run.npz")
        >>> added = fx.add_handler(fx.NpzHandler(path), effects="log")
        >>> step = fx.jit(lambda x: fx.log("step", loss=x))
        >>> step(0.5), step(0.25)
        (None, None)
        >>> fx.remove_handler(added)
        >>> with np.load(path) as arrays:
        ...     arrays["step/loss"]
        array([0.5 , 0.25], dtype=float32)
    """

    def __init__(self, path: str | os.PathLike[str], *, append: bool = False, every: float = 1.0):
        self._path = os.path.realpath(os.fsdecode(path))  # what a link leads to is replaced, not the link
        if os.path.exists(self._path):
            if not os.path.isfile(self._path) and not os.path.isdir(self._path):
                raise OSError(MSG_NO_FILE.format(path=os.fsdecode(path)))
            open(self._path, "ab").close()  # an error names the path, and not that of a piece
        self._tables: dict[str, Table] = {}  # by event: what is not written yet
        self._pieces = Pieces(self._path, every, self._write_piece)
        if append and os.path.isfile(self._path) and os.path.getsize(self._path):
            self._take_up()
        else:
            self._replace(_make_archive)
        self._reopen()

    def _take_up(self) -> None:
        """Looks at what is in the file."""
        try:
            with open(self._path, "rb") as file:
                parts, _ = parts_of(file)
            self._tables = {event: Table(event, shapes) for event, shapes in _shapes_of(parts).items()}
        except (ValueError, zipfile.BadZipFile) as error:
            raise ValueError(MSG_OTHER_ARRAYS.format(path=self._path, why=error)) from error

    def handle(self, record: Record) -> None:
        self.handle_many([record])

    def handle_many(self, records: Sequence[Record]) -> None:
        pieces = pieces_of(records)
        with self._pieces.lock:
            try:
                each(pieces.items(), self._add)
            finally:
                self._pieces.came(sum(piece.nbytes for some in pieces.values() for piece in some))

    def _add(self, of_event: tuple[str, list[Piece]]) -> None:
        event, pieces = of_event
        self._tables.setdefault(event, Table(event)).add(pieces)

    def flush(self) -> None:
        """Writes what has come so far, and joins the pieces. The file is replaced as a whole."""
        with self._pieces.lock:
            self._pieces.write()
            if self._next or not os.path.exists(self._path):  # somebody has removed it
                self._join()

    def close(self) -> None:
        """Does so, and says what has been lost."""
        if self._file.closed:
            return
        try:
            self.flush()
        finally:
            self._file.close()
            self._pieces.close()

    def _write_piece(self) -> None:
        arrays: dict[str, Any] = {
            f"{event}/{name}": np.ascontiguousarray(native(column))
            for event, table in self._tables.items()
            for name, column in table.take().items()
        }
        if not arrays:
            return
        try:
            content = io.BytesIO()
            np.savez(content, **arrays)
            self._make_room()
            self._archive.add(PIECE.format(number=self._next), content)
            self._next += 1
        except Exception as error:
            self._pieces.lose(sum(len(array) for name, array in arrays.items() if name.endswith("/token")), error)
            raise

    def _make_room(self) -> None:
        """Joins the pieces if no more can be added."""
        if self._archive.is_full:
            self._join()
        if self._archive.is_full:  # of arrays alone: they become one piece
            with open(self._path, "rb") as file:
                self._replace(lambda part: _make_archive(part, file))
            self._file.close()
            self._reopen()

    def _join(self) -> None:
        parts, _ = parts_of(self._file)
        self._replace(lambda part: write_joined(parts, part))
        self._file.close()
        self._reopen()

    def _replace(self, write: Callable[[str], None]) -> None:
        """Replaces the file by what `write` writes to the path that it is given. If it fails the file is as it was; one
        that has other names is written anew, and if that fails its content is in another file."""
        part, is_copied = f"{self._path}.part", False
        try:
            write(part)
            if not os.path.exists(self._path):
                os.replace(part, self._path)
            elif os.stat(self._path).st_nlink > 1:  # it has other names, which are to lead to it still
                is_copied = True
                shutil.copyfile(part, self._path)
                os.unlink(part)
            else:
                shutil.copymode(self._path, part)
                os.replace(part, self._path)
        except BaseException as error:  # say, the disk is full
            if is_copied:
                error.add_note(f"All records are in {part!r}.")
            else:
                error.add_note(f"All records are in {self._path!r}, but in pieces.")
                with contextlib.suppress(OSError):
                    os.unlink(part)
            raise

    def _reopen(self) -> None:
        """Goes on with what is in the file."""
        self._file = open(self._path, "r+b", buffering=0)  # noqa: SIM115 - closed by `close`
        self._archive = GrowingZip(self._file)
        _, self._next = parts_of(self._file)  # the number of the next piece


def _make_archive(path: str, piece: BinaryIO | None = None) -> None:
    """Makes a file without arrays, and, if one is given, with a piece."""
    with open(path, "w+b", buffering=0) as file:
        archive = GrowingZip(file)
        if piece is not None:
            archive.add(PIECE.format(number=0), piece)


def _shapes_of(parts: dict[str, list[Part]]) -> dict[str, dict[str, tuple[int, ...]]]:
    """The shapes of the records of each event, by column.

    Raises:
        NotRowsError: if these are not arrays that a handler has written.
    """
    counts = {name: sum(part.shape[0] for part in of_one) for name, of_one in parts.items()}
    events = {name.removesuffix("/token"): {} for name in parts if name.endswith("/token")}
    for name, (part, *_) in parts.items():
        event = max((event for event in events if name.startswith(f"{event}/")), key=len, default=None)
        if event is None or counts[name] != counts[f"{event}/token"]:
            raise NotRowsError(f"{name!r} is in it")
        events[event][name.removeprefix(f"{event}/")] = part.shape[1:]
    return events
