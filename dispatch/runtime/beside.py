"""Functions of the user's that run beside the programs that started them, as the drain sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from effects._model.where import Where
from effects.dispatch.runtime.failures import ProgramKey


class FunctionBeside(Protocol):
    """One of them that has begun."""

    name: str
    where: Where
    caller: int  # the number of the thread whose program has started it
    thread: int | None  # the identity of its thread while it runs


class Beside:
    """All of them. There are none until an extension gives the drain others."""

    def unended(self) -> Sequence[FunctionBeside]:
        """Those that have not returned."""
        return ()

    def awaited_by(self, drain_thread: int) -> FunctionBeside | None:
        """The one that this thread of the drain waits for."""
        return None

    def wait(self, timeout: float | None) -> bool:
        """Whether all have returned in time, but those whose programs have failed, which may never do so."""
        return True

    def are_exchanging(self) -> bool:
        """Whether devices may wait for each other in what they exchange."""
        return False

    def fail(self, program: ProgramKey) -> None:
        """This program fails on one of its devices: the others get nothing of it."""

    def end(self, finished: list[tuple[int, int, int]]) -> None:
        """These programs have ended, as runs of epochs (thread, first, count): drops what they have not done."""

    def end_plain(self) -> str:
        """No program of JAX's runs any more: what its functions have not done comes. Returns what to say of them."""
        return ""
