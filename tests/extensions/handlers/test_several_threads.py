"""Handlers that several threads of the drain give records to at the same time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

import effects as fx
from tests.extensions.handlers.common import loop, read_csv

pytestmark = pytest.mark.slow


def _records(n: int) -> list[fx.Record]:
    with fx.capture() as records:
        loop(lambda i: fx.log("step", i=i), n)()
    return list(records)


class _Interrupting:
    """What comes among records, and is none: while it is looked at, another thread does something."""

    def __init__(self, run: Callable[[], object]):
        self._run = run

    @property
    def event(self) -> None:
        thread = threading.Thread(target=self._run)
        thread.start()
        thread.join()


def test_csv_names_its_columns_first(tmp_path):
    """Also if a thread writes its rows while another one, which has seen the first record, makes its own."""
    path = tmp_path / "run.csv"
    handler: Any = fx.CsvHandler(path)
    first, second = _records(2)
    handler.handle_many([first, _Interrupting(lambda: handler.handle(second))])
    handler.close()
    assert [row["i"] for row in read_csv(path)] == ["1", "0"]


def test_lines_that_are_written_in_pieces_are_whole(tmp_path):
    """The system takes a part of a line, and another thread, which has a line of its own, asks for the file."""
    path = tmp_path / "run.jsonl"
    handler = fx.JsonLinesHandler(path)
    first, second = _records(2)
    lines, lock, asks_or_is_over = handler._file, threading.Lock(), threading.Event()
    file = lines._file
    other = threading.Thread(target=lambda: (handler.handle(second), asks_or_is_over.set()))

    class Lock:
        def __enter__(self) -> None:
            if threading.current_thread() is other:
                asks_or_is_over.set()
            lock.acquire()

        def __exit__(self, *exception: object) -> None:
            lock.release()

    class InPieces:
        def write(self, data: bytes) -> int:
            lines._file = file
            written = file.write(data[:10])
            other.start()
            assert asks_or_is_over.wait(60)
            return written

    lines._file, lines._lock = InPieces(), Lock()
    handler.handle(first)
    other.join()
    handler.close()
    assert [json.loads(line)["fields"]["i"] for line in path.read_text().splitlines()] == [0, 1]
