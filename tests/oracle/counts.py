"""How many effects a block has in the program's order, with all its branches: of a region in which devices wait for
callbacks, each device counts as many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.oracle.language import EFFECTS, Block_, is_native

_ONE = ("Effect", "Filtered", "Log", "Check", "Callback")
_NONE = ("Assign", "AssociativeScan", "Talk", "Scale", "OptimizationBarrier")


class Unknown(Exception):
    """It is not known before the program runs."""


class Unsaid(Exception):
    """This module does not say."""


def count(body: Block_, functions: Mapping[str, Block_]) -> int:
    """How many effects a block has.

    Raises:
      Unknown: if the library does not know it before the program runs.
      Unsaid: if it has a statement that this module does not know.
    """
    return sum(_count(statement, functions) for statement in body)


def _count(s: Any, functions: Mapping[str, Block_]) -> int:
    form = type(s).__name__
    if form in _NONE:
        return 0
    if form in _ONE:
        if is_native(s.kind) and EFFECTS[s.kind]:
            raise Unknown
        return int(EFFECTS[s.kind] and getattr(s, "level", "") != "DEBUG")
    if form in ("Scan", "Map"):
        return len(s.xs) * count(s.body, functions)
    if form == "TokenLike":
        return s.turns * (count(s.body, functions) + 1)
    if form == "Fori":
        each = count(s.body, functions)
        if each and not isinstance(s.trips, int):
            raise Unknown
        return each and s.trips * each
    if form == "While":
        if count((*s.test, *s.body), functions):
            raise Unknown
        return 0
    if form == "Cond":
        return max(count(s.then, functions), count(s.orelse, functions))
    if form == "Switch":
        return max(count(branch, functions) for branch in s.branches)
    if form == "Call":
        return count(functions[s.function], functions)
    if form in ("Wrapped", "TalkInFlight"):
        return count(s.body, functions)
    raise Unsaid


def most_of(bodies: Sequence[Block_], functions: Mapping[str, Block_]) -> int | None:
    """How many effects one of several blocks has at most; None if it is not known."""
    try:
        return max(count(body, functions) for body in bodies)
    except (Unknown, Unsaid):
        return None
