"""Which bars are shown where, and how far they are."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Hashable, Iterable
from time import monotonic
from typing import Any, Protocol

from effects._bars.lines import Lines
from effects._bars.notebook import Notebook, is_notebook
from effects._bars.terminal import Terminal, is_terminal

_PAUSE = 0.1
"""Seconds for which what is shown stays as it is, unless a bar comes or comes to its end."""


@dataclasses.dataclass
class Bar:
    """One bar."""

    description: str
    total: int | None
    done: int = 0
    began: float = dataclasses.field(default_factory=monotonic)
    changed: float = dataclasses.field(default_factory=monotonic)
    has_begun_anew: bool = False  # and was not shown since then
    view: Any = None  # what the display keeps with it

    @property
    def is_full(self) -> bool:
        return self.total is not None and self.done >= self.total

    @property
    def elapsed(self) -> float:
        return self.changed - self.began

    def set(self, done: int, total: int | None) -> None:
        """How far it is. One that is set back begins anew."""
        self.changed = monotonic()
        if done < self.done:
            self.began, self.has_begun_anew = self.changed, True
        self.done, self.total = done, total


class Display(Protocol):
    """Shows the bars of one output."""

    def show(self, bars: list[Bar]) -> None:
        """Shows them as they are now."""

    def write(self, text: str, bars: list[Bar]) -> None:
        """Writes text ahead of them."""

    def leave(self, bar: Bar, others: list[Bar]) -> None:
        """Shows a bar for the last time, as it is."""


Owner = tuple[int, int] | None
"""The program that a bar is of: the number of the thread that called it, and of its epoch. None: no program ends it."""


class _Shown:
    """An output with bars."""

    def __init__(self, stream: Any):
        self.stream = stream
        self.bars: dict[tuple[Owner, Hashable], Bar] = {}
        self.drawn = 0.0
        kind = Terminal if is_terminal(stream) else Notebook if is_notebook(stream) else Lines
        self.display: Display = kind(stream)


class Bars:
    """All bars that are shown. Threads of the drain come here, one at a time."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # showing bars may write to an output that shows bars
        self._shown: list[_Shown] = []

    def update(self, stream: Any, owner: Owner, key: Hashable, description: str, done: int, total: int | None) -> None:
        """How far the bar with this key is, of this program."""
        with self._lock:
            shown = next((each for each in self._shown if each.stream is stream), None)
            if shown is None:
                self._shown.append(shown := _Shown(stream))
            bar = shown.bars.get((owner, key))
            comes = bar is None
            if bar is None:
                bar = shown.bars[owner, key] = Bar(description, total)
            bar.set(done, total)
            if comes or bar.is_full or bar.changed - shown.drawn >= _PAUSE:
                shown.display.show([*shown.bars.values()])
                shown.drawn = monotonic()
            if owner is None and bar.is_full:
                self._leave(shown, [(owner, key)])

    def write(self, stream: Any, text: str) -> None:
        """Writes text ahead of the bars of an output, if it has any."""
        if self._shown:
            with self._lock:
                for shown in self._shown:
                    if shown.stream is stream:
                        shown.display.write(text, [*shown.bars.values()])
                        return
        stream.write(text)

    def end(self, epochs: Iterable[tuple[int, int, int]]) -> None:
        """These epochs (thread, first, count) have ended: nothing more comes of them."""
        if not self._shown:
            return
        with self._lock:
            for thread, first, count in epochs:
                for shown in [*self._shown]:
                    self._leave(
                        shown,
                        [
                            (owner, key)
                            for owner, key in shown.bars
                            if owner is not None and owner[0] == thread and (owner[1] - first) & 0xFFFFFFFF < count
                        ],
                    )

    def close(self) -> None:
        """Leaves all bars as they are."""
        with self._lock:
            for shown in [*self._shown]:
                self._leave(shown, [*shown.bars])

    def _leave(self, shown: _Shown, keys: list[tuple[Owner, Hashable]]) -> None:
        for key in keys:
            bar = shown.bars.pop(key)
            shown.display.leave(bar, [*shown.bars.values()])
        if not shown.bars:
            self._shown.remove(shown)


bars = Bars()
