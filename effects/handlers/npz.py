"""Records as columns in a file of NumPy's."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np

from effects._model.record import Record
from effects.handlers._batches import each
from effects.handlers._columns import Table, native, pieces_of

MSG_NO_FILE = (
    "`NpzHandler` was given {path!r}, which is no ordinary file. The file is replaced as a whole whenever it is "
    "written, which would destroy this one. Pass the path of a file, or one where nothing is."
)


class NpzHandler:
    """Keeps the records of logs as columns, and writes them as NumPy's `.npz` when it is closed.

    The file has an array `event/field` for each field, whose first axis are the records in order, and for each event
    an array `event/token`, of shape (records, 4), with their places in program order. A field that is a pytree has an
    array for each of its leaves, such as `step/state.x`; None has none. Types that NumPy itself lacks are widened,
    which changes no value: `bfloat16` and the floats of 8 and 4 bits to `float32`, narrow integers to 8 bits. What is
    no number is text. Records of other effects are not kept.

    Args:
        path: The file, taken as it is. A file that exists is replaced, at once by an empty one; of a link, what it
            leads to.

    Raises:
        OSError: if the file cannot be written, or is a directory, a device or a pipe.

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

    def __init__(self, path: str | os.PathLike[str]):
        self._path = os.path.realpath(os.fsdecode(path))  # what a link leads to is replaced, not the link
        if os.path.exists(self._path) and not os.path.isfile(self._path) and not os.path.isdir(self._path):
            raise OSError(MSG_NO_FILE.format(path=os.fsdecode(path)))
        self._tables: dict[str, Table] = {}  # by event
        with open(self._path, "ab"):
            pass  # what is wrong with the path is said by its own name
        self.flush()

    def handle(self, record: Record) -> None:
        self.handle_many([record])

    def handle_many(self, records: Sequence[Record]) -> None:
        each(pieces_of(records).items(), lambda item: self._tables.setdefault(item[0], Table(item[0])).add(item[1]))

    def flush(self) -> None:
        """Writes what has come so far. The file is replaced as a whole."""
        if not os.path.exists(self._path):  # somebody has removed it
            open(self._path, "ab").close()
        arrays: dict[str, Any] = {
            f"{event}/{name}": native(column)
            for event, table in list(self._tables.items())
            for name, column in table.columns().items()
        }
        if os.stat(self._path).st_nlink > 1:  # it has other names, which are to lead to it still
            with open(self._path, "wb") as file:
                np.savez(file, **arrays)
            return
        part = f"{self._path}.part"
        try:
            with open(part, "wb") as file:
                np.savez(file, **arrays)
            shutil.copymode(self._path, part)
            os.replace(part, self._path)
        except OSError as error:  # say, the disk is full: what has been written before stays
            with contextlib.suppress(OSError):
                os.unlink(part)
            count = sum(len(column) for name, column in arrays.items() if name.endswith("/token"))
            error.add_note(f"{count} records are not in {self._path!r}, but for those that it had before.")
            raise

    def close(self) -> None:
        self.flush()
