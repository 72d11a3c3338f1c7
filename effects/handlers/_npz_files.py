"""Files of arrays of which some are in pieces: each piece is a file of arrays itself, with the next rows of some."""

from __future__ import annotations

import dataclasses
import io
import os
import struct
import zipfile
from collections.abc import Iterator
from typing import IO, Any, BinaryIO

import numpy as np

from effects._model.values import is_number

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
