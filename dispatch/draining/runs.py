"""Runs of functions of the user's that are under way."""

from __future__ import annotations

from typing import Any


class Runs(dict[int, tuple[int, int, Any]]):
    """By the identity of its work, each run: the number of the thread whose stream is suspended, how many untracked
    records are part of it, and what is left of it, see `left_of`. Drain threads add and take out; any thread reads."""

    @property
    def suspended(self) -> list[int]:
        """The threads whose streams are suspended."""
        return [thread for thread, *_ in self.copy().values()]

    @property
    def untracked(self) -> int:
        """How many untracked records are part of runs."""
        return sum(untracked for _, untracked, _ in self.copy().values())
