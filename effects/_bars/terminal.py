"""Bars on a terminal, drawn by rich.

The stream is the user's, and Python's own `print` may write there between what we write. So it is not replaced by
another stream; the cursor stands on an empty line ahead of the bars instead, where text of any writer goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from effects._bars.state import Bar

_ERASE = "\x1b[J"
"""Erases what is behind the cursor."""

_LONG, _SHORT = 40, 20
"""Columns of a bar, without metrics behind one and with some."""

_ROOM = 3
"""Lines of the terminal that are left when there are more bars than it has lines: the first bars are drawn."""


def is_terminal(stream: Any) -> bool:
    """Whether the cursor can be moved there."""
    from rich.console import Console

    try:
        return stream.isatty() and not Console(file=stream).is_dumb_terminal
    except Exception:  # closed, or a class of the user's
        return False


class Terminal:
    """Draws the bars below what is written."""

    def __init__(self, stream: Any):
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.table import Column

        self._stream = stream
        self._console = Console(file=stream, force_terminal=True)
        metrics = Column(no_wrap=True, max_width=self._console.width * 2 // 5)  # the rest is for the bar
        self._bar = BarColumn()
        self._tasks = Progress(
            TextColumn("{task.description}", markup=False),
            self._bar,
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[metrics]}", markup=False, table_column=metrics),
            console=self._console,
            auto_refresh=False,
        )
        self._is_drawn = False

    def show(self, bars: list[Bar]) -> None:
        self._put("", bars)

    def write(self, text: str, bars: list[Bar]) -> None:
        # Where text ends within a line, the bars are drawn again when that line has ended.
        self._put(text, bars if text.endswith("\n") else [])

    def leave(self, bar: Bar, others: list[Bar]) -> None:
        self._put(self._drawn([bar]), others)
        self._tasks.remove_task(bar.view)

    def _put(self, text: str, bars: list[Bar]) -> None:
        erase = _ERASE if self._is_drawn else ""
        below = ""
        if bars:
            drawn = self._drawn(bars[: max(1, self._console.height - _ROOM)]).removesuffix("\n")
            below = f"\n{drawn}\x1b[{1 + drawn.count(chr(10))}A\r"
        self._is_drawn = bool(bars)
        self._stream.write(f"{erase}{text}{below}")
        self._stream.flush()

    def _drawn(self, bars: list[Bar]) -> str:
        """The bars, a line for each."""
        for bar in bars:
            if bar.view is None:
                bar.view = self._tasks.add_task(bar.description, total=bar.total, metrics="")
            elif bar.has_begun_anew:
                self._tasks.reset(bar.view, total=bar.total)
                bar.has_begun_anew = False
            self._tasks.update(bar.view, completed=bar.done, total=bar.total, metrics=bar.metrics)
        drawn = [task for task in self._tasks.tasks if task.id in {bar.view for bar in bars}]
        self._bar.bar_width = _SHORT if any(bar.metrics for bar in bars) else _LONG
        with self._console.capture() as capture:
            self._console.print(self._tasks.make_tasks_table(drawn))
        return capture.get()
