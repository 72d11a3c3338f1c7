"""Records as columns in a file of NumPy's."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import zipfile
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import numpy as np

from effects._model.record import Record
from effects.handlers._batches import each
from effects.handlers._columns import Piece, Table, native, pieces_of
from effects.handlers._growing_zip import GrowingZip
from effects.handlers._npz_files import PIECE, NotRowsError, Part, parts_of, write_joined
from effects.handlers._pieces import Pieces

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
