"""Records as columns in a file of NumPy's."""

from __future__ import annotations

import os
import pathlib
import shutil
import zipfile
from typing import Any

import numpy as np

from effects.extensions.handlers.columns import Piece, Table, join, native
from effects.extensions.handlers.files import Gathering, each, whole_file

MSG_NO_FILE = (
    "`NpzHandler` was given {path!r}, which is no ordinary file. The file is replaced as a whole when the handler is "
    "closed, which would destroy this one. Pass the path of a file, or one where nothing is."
)
MSG_NOT_OURS = (
    "`fx.NpzHandler` cannot join the records of {path!r}: {why}. A file and the pieces beside it are joined where such "
    "a handler has written all of them. Mend or remove what is wrong, or give the handler another file; without "
    "`append=True` it replaces all of them."
)

Shapes = dict[str, tuple[int, ...]]


class NpzHandler(Gathering):
    """Keeps the records of logs as columns, in NumPy's `.npz`.

    When the handler is closed, the file has an array `event/field` for each field, whose first axis are the records in
    order, and for each event an array `event/token`, of shape (records, 4), with their places in program order. A field
    that is a pytree has an array for each of its leaves, such as `step/state.x`; None has none. Types that NumPy itself
    lacks are widened, which changes no value: `bfloat16` and the floats of 8 and 4 bits to `float32`, narrow integers
    to 8 bits. What is no number is text. Records of other effects are not kept.

    Until then records are written in pieces, of which the memory holds one. Each piece is a file of the same arrays
    with the next records, in the folder `PATH.pieces`. A process that is killed leaves all pieces but the last there,
    and `fx.NpzHandler(path, append=True).close()` joins them. If something of the pieces is missing or was cut off,
    that is an error.

    Args:
        path: The file, taken as it is. A file that exists is replaced, at once by an empty one; of a link, what it
            leads to. Other names of the file, as hard links, keep the empty one.
        append: Whether records are added to a file that exists instead, as when a run is resumed.
        every: Seconds after which what has come is written, as a piece. Many records are one sooner; with 0, those that
            come together are. Each piece is a file, so that short times make many.

    Raises:
        OSError: if the file cannot be written, or is a directory, a device or a pipe.
        ValueError: with `append=True`, if there is something else than such a handler has written.

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

    def __init__(self, path: str | os.PathLike[str], *, append: bool = False, every: float = 10.0):
        super().__init__(os.path.realpath(os.fsdecode(path)), every)  # what a link leads to is replaced, not the link
        if os.path.exists(self._path) and not (os.path.isfile(self._path) or os.path.isdir(self._path)):
            raise OSError(MSG_NO_FILE.format(path=os.fsdecode(path)))
        self._folder = f"{self._path}.pieces"
        self._part = f"{self._folder}/part"  # what is not written as a whole yet
        with open(self._path, "ab" if append else "wb") as file:  # an error names the path
            if not append:
                shutil.rmtree(self._folder, ignore_errors=True)
            if not file.tell():
                np.savez(file)
        _, shapes, self._count = self._files()  # how many records are written
        self._tables = {event: Table(event, columns) for event, columns in shapes.items()}  # what is not written yet

    def _gather(self, of_event: dict[str, list[Piece]]) -> None:
        each(of_event.items(), self._add)

    def _add(self, of_event: tuple[str, list[Piece]]) -> None:
        event, pieces = of_event
        self._tables.setdefault(event, Table(event)).add(pieces)

    def flush(self) -> None:
        """Writes what has come so far, and joins the pieces. The file is replaced as a whole."""
        with self._lock:
            try:
                self._write_now()
            finally:
                if os.path.exists(self._folder) or not os.path.exists(self._path):  # somebody has removed it
                    self._join()

    def _write(self) -> None:
        arrays: dict[str, Any] = {
            f"{event}/{name}": np.ascontiguousarray(native(column))
            for event, table in self._tables.items()
            for name, column in table.take().items()
        }
        count = sum(len(array) for name, array in arrays.items() if name.endswith("/token"))
        try:
            if count:
                piece = f"{self._folder}/{self._count:012}.npz"
                with whole_file(piece, self._part) as part, open(part, "wb") as file:
                    np.savez(file, **arrays)
        except Exception as error:
            self._lose(count, error)
            raise
        self._count += count

    def _join(self) -> None:
        """Joins the pieces with the file, so that a process may be killed at any time: see the README."""
        files, shapes, count = self._files()
        if count != self._count:
            raise ValueError(MSG_NOT_OURS.format(path=self._path, why=f"{self._count - count} records are missing"))
        try:
            with whole_file(self._path, self._part) as part, zipfile.ZipFile(part, "w") as archive:
                for event, name in [(event, name) for event, columns in shapes.items() for name in columns]:
                    member = f"{event}/{name}"
                    parts = [{name: _array(file, member)} for file, events in files.items() if event in events]
                    with archive.open(f"{member}.npy", "w", force_zip64=True) as array:
                        np.lib.format.write_array(array, native(join(parts)[name]), allow_pickle=False)
        except BaseException as error:  # say, the disk is full
            error.add_note(f"All records are in {self._path!r} and {self._folder!r}.")
            raise
        shutil.rmtree(self._folder, ignore_errors=True)

    def _files(self) -> tuple[dict[str, dict[str, Shapes]], dict[str, Shapes], int]:
        """The files that have the records, in order, and what is in each; the shapes of the records; and how many they
        are. A piece is named by the number of records ahead of it: a file that has more has those of the piece, too."""
        pieces = sorted(map(str, pathlib.Path(self._folder).glob("*.npz")))
        files: dict[str, dict[str, Shapes]] = {}
        shapes: dict[str, Shapes] = {}
        count = 0
        try:
            for file in [self._path, *pieces] if os.path.exists(self._path) else pieces:
                begin = 0 if file == self._path else int(pathlib.Path(file).stem)
                if begin > count:
                    raise ValueError(f"{begin - count} records ahead of {file!r} are missing")
                if begin == count:
                    files[file] = _shapes(file)
                    for event, columns in files[file].items():
                        count += columns["token"][0]
                        of_record = {name: shape[1:] for name, shape in columns.items()}
                        if shapes.setdefault(event, of_record) != of_record:
                            raise ValueError(f"{file!r} has other fields of {event!r} than the files before it")
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(MSG_NOT_OURS.format(path=self._path, why=error)) from error
        return files, shapes, count


def _shapes(file: str) -> dict[str, Shapes]:
    """The shapes of the arrays in a file, by event and column.

    Raises:
        ValueError: if these are not arrays that a handler has written.
        zipfile.BadZipFile: if it is no zip file, as one that was cut off.
    """
    shapes: Shapes = {}
    with zipfile.ZipFile(file) as archive:
        for member in archive.namelist():
            with archive.open(member) as array:
                np.lib.format.read_magic(array)
                shapes[member.removesuffix(".npy")], _, _ = np.lib.format.read_array_header_1_0(array)
    events: dict[str, Shapes] = {name.removesuffix("/token"): {} for name in shapes if name.endswith("/token")}
    for name, shape in shapes.items():
        event = max((event for event in events if name.startswith(f"{event}/")), key=len, default=None)
        if event is None or not shape or shape[0] != shapes[f"{event}/token"][0]:
            raise ValueError(f"{name!r} is in {file!r}")
        events[event][name.removeprefix(f"{event}/")] = shape
    return events


def _array(file: str, name: str) -> np.ndarray:
    with np.load(file) as arrays:
        return arrays[name]
