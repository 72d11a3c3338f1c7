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


class Meanwhile:
    """Another thread, which runs something while the calling one stands in the middle of its work.

    `lock` takes the place of the lock that keeps the other thread out: the calling one goes on as soon as the other
    has asked for it, or has run.
    """

    def __init__(self, run: Callable[[], object]):
        self._run = run
        self._waits_or_is_over = threading.Event()
        self._thread = threading.Thread(target=self._body)
        self.lock = threading.Lock()

    def _body(self) -> None:
        self._run()
        self._waits_or_is_over.set()

    def __enter__(self) -> None:
        if threading.current_thread() is self._thread:
            self._waits_or_is_over.set()
        self.lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self.lock.release()

    def begin(self) -> None:
        self._thread.start()
        assert self._waits_or_is_over.wait(60)

    def join(self) -> None:
        self._thread.join()


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
    """The system takes a part of a line, and another thread has a line of its own."""
    path = tmp_path / "run.jsonl"
    handler = fx.JsonLinesHandler(path)
    first, second = _records(2)
    meanwhile = Meanwhile(lambda: handler.handle(second))
    lines = handler._file
    file = lines._file

    class InPieces:
        def write(self, data: bytes) -> int:
            lines._file = file
            written = file.write(data[:10])
            meanwhile.begin()
            return written

    lines._file, lines._lock = InPieces(), meanwhile
    handler.handle(first)
    meanwhile.join()
    handler.close()
    assert [json.loads(line)["fields"]["i"] for line in path.read_text().splitlines()] == [0, 1]
