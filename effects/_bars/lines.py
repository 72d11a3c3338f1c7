"""Bars where there is no terminal: a line now and then."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from effects._bars.state import Bar

_TENTHS = 10
"""How many lines a bar with a total has, after the first."""

_QUIET = 10.0
"""Seconds after which a bar without a total, or one that is slow, has the next line."""


class Lines:
    """Writes a line for each tenth of a bar, and every ten seconds."""

    def __init__(self, stream: Any):
        self._stream = stream

    def show(self, bars: Iterable[Bar]) -> None:
        for bar in bars:
            last, tenth, at = bar.view or (None, 0, 0.0)
            if last is None or _tenth(bar) != tenth or (bar.done != last and bar.changed - at >= _QUIET):
                self._write(bar)

    def write(self, text: str, bars: Iterable[Bar]) -> None:
        self._stream.write(text)

    def leave(self, bar: Bar, others: Iterable[Bar]) -> None:
        if bar.view[0] != bar.done:
            self._write(bar)

    def _write(self, bar: Bar) -> None:
        bar.view = bar.done, _tenth(bar), bar.changed
        self._stream.write(f"{line_of(bar)}\n")
        self._stream.flush()


def _tenth(bar: Bar) -> int:
    return _TENTHS * bar.done // bar.total if bar.total else 0


def line_of(bar: Bar) -> str:
    """A bar as text: `train: 50% 500/1000 in 1.2 s, 1.2 s left, loss=0.125`."""
    name = f"{bar.description}: " if bar.description else ""
    elapsed = f"in {_duration(bar.elapsed)}"
    steps = f"{100 * bar.done // bar.total}% {bar.done}/{bar.total}" if bar.total else f"{bar.done}"
    left = f"{_duration(bar.left)} left" if bar.left is not None else ""
    return ", ".join(filter(None, [f"{name}{steps} {elapsed}", left, bar.metrics]))


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
