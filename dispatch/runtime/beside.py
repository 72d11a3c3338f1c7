"""The drain's view of user functions that run beside the programs that started them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from effects._model.where import Where
from effects.dispatch.runtime.failures import ProgramKey


class FunctionBeside(Protocol):
    """A function that has begun."""

    name: str
    where: Where
    caller: int  # the number of the thread whose program has started the function
    thread: int | None  # the identity of the function's thread while it runs


class Beside:
    """The functions that run beside their programs. There are none until an extension replaces this."""

    def unended(self) -> Sequence[FunctionBeside]:
        """The functions that have not returned."""
        return ()

    def awaited_by(self, drain_thread: int) -> FunctionBeside | None:
        """The function that this thread of the drain waits for."""
        return None

    def wait(self, timeout: float | None) -> bool:
        """Waits for all functions but those of failed programs, which may never return. False if the time ran out."""
        return True

    def are_exchanging(self) -> bool:
        """True if devices may wait for each other in an exchange."""
        return False

    def fail(self, program: ProgramKey) -> None:
        """Fails the operations of a program that has failed on one of its devices: the other devices get no results."""

    def end(self, finished: list[tuple[int, int, int]]) -> None:
        """Drops what programs that have ended, as runs of epochs (thread, first, count), have not done."""

    def end_plain(self) -> str:
        """Called when no program that JAX dispatched runs any more: shows the effects of functions that had no done.
        Returns what to say of these functions."""
        return ""
