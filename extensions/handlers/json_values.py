"""JSON in which native code puts values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from effects._model.plan import Piece, Style, Wrap
from effects._model.record import has_marks
from effects._model.text import MarkedRecord


def json_pieces(record: MarkedRecord, value: Any) -> Iterator[Piece]:
    """The pieces of JSON in which there are marks: as values of their own, and in strings."""
    text, begin = _encode(value), 0
    for found in _STRING.finditer(text):
        if not has_marks(found[0]):
            continue
        yield Piece(text[begin : found.start()])
        inner = json.loads(found[0])
        if record.is_value(inner):
            yield from record.pieces(inner, Style.JSON)
        else:
            yield Piece("", wrap=Wrap.BEGIN)
            yield from record.pieces(inner)
            yield Piece("", wrap=Wrap.END_STRING)
        begin = found.end()
    yield Piece(text[begin:])


_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')

_encode = json.JSONEncoder(allow_nan=False, default=lambda mark: mark.as_value).encode
