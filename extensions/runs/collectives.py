"""Which device of which process has not come to a collective or a program that others wait in."""

from __future__ import annotations

import json
from typing import Any


def write_note(name: str, groups: list[list[int]] | None) -> str:
    """The text of a note: a name, and the groups of devices that wait for each other, if they are known."""
    return f"{name}\n{json.dumps(groups, separators=(',', ':'))}"


def read_note(text: str) -> tuple[str, list[list[int]] | None] | None:
    """The name and the groups of a note; None for the name of an operation that the program itself starts."""
    name, is_note, groups = text.partition("\n")
    return (name, json.loads(groups)) if is_note else None
