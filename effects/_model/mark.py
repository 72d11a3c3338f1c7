"""Marks, which stand for values while a text is made: the text then says where native code puts each value."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Never

if TYPE_CHECKING:
    from effects._model.native_text import Piece, Style

_NAME = uuid.uuid4().hex
"""What no text of a user's has in it."""

MARK = rf"{_NAME}([fsrv])(\d+):([0-9a-f]*);"
"""A mark in a text: the way in which it is shown, its number, and the specification of a format."""


class Unfilled(Exception):
    """Python has to make the text, since it does more with a value than to show it."""


class Mark:
    """Stands for a value. As text it says how it is shown; nothing else can be done with it."""

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
        """Where the value itself stands, as in JSON."""
        return self._text("v")

    def _refuse(self, *_: Any) -> Never:
        raise Unfilled

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __array__ = __len__ = __iter__ = _refuse
    __hash__ = object.__hash__


def has_marks(text: str) -> bool:
    return _NAME in text
