"""Standard output in a real file, and a look at whether all of it is there."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from typing import IO


class Written:
    """What has been printed into the file."""

    def __init__(self, file: IO[str]):
        self._file = file
        self._seen = 0

    def expect(self, lines: int | None) -> None:
        """Raises unless exactly so many lines have been printed since the last call; None: any number."""
        self._file.flush()
        with open(self._file.name, "rb") as file:
            file.seek(self._seen)
            new = file.read()
        self._seen += len(new)
        if lines is not None and (found := new.count(b"\n")) != lines:
            raise AssertionError(
                f"{found} lines were printed instead of {lines}. A benchmark counts only if its work was done. "
                "Find where the lines went before looking at any figure."
            )

    def flush(self) -> None:
        """Hands what is buffered to the operating system."""
        self._file.flush()


@contextlib.contextmanager
def stdout_in_file() -> Iterator[Written]:
    """Sends `sys.stdout` to a temporary file for the time of a `with` block."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file, contextlib.redirect_stdout(file):  # type: ignore[type-var]
        yield Written(file)  # type: ignore[arg-type]
