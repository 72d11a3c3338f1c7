"""The bars of each output, and their progress."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from effects.dispatch.runtime.outputs import BesideText, beside_tqdm, is_notebook, show_beside_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# The three displays of an output: each shows the bars' present state, writes text before them, and removes a bar after
# a last update.
#
# Bars without a terminal: a line now and then.

_TENTHS = 10
"""The number of lines of a bar with a total, after the first."""

_QUIET = 10.0
"""Seconds after which a bar without a total, or one that is slow, has the next line."""


class Lines:
    """Writes a line for each tenth of a bar, and every ten seconds."""

    def __init__(self, stream: Any):
        self._stream = stream

    def show(self, bars: Iterable[Bar]) -> None:
        for bar in bars:
            last, tenth, at = bar.view or (None, 0, 0.0)
            if (
                last is None
                or bar.has_begun_anew
                or _tenth(bar) != tenth
                or (bar.done != last and bar.changed - at >= _QUIET)
            ):
                self._write(bar)

    def write(self, text: str, bars: Iterable[Bar]) -> None:
        self._stream.write(text)

    def leave(self, bar: Bar, others: Iterable[Bar]) -> None:
        if bar.has_begun_anew or bar.view[0] != bar.done:
            self._write(bar)

    def _write(self, bar: Bar) -> None:
        bar.view, bar.has_begun_anew = (bar.done, _tenth(bar), bar.changed), False
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


# Bars drawn by rich.

_LONG, _SHORT = 40, 20
"""Columns of a bar, without metrics behind one and with some."""


class Drawn:
    """Bars as tables of rich's, a row for each."""

    def __init__(self, stream: Any, console: Console):
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
        self._console = console
        metrics = Column(no_wrap=True, max_width=console.width * 2 // 5)  # the rest is for the bar
        self._bar = BarColumn()
        self._tasks = Progress(
            TextColumn("{task.description}", markup=False),
            self._bar,
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[metrics]}", markup=False, table_column=metrics),
            console=console,
            auto_refresh=False,
        )

    def _table(self, bars: list[Bar]) -> Table:
        for bar in bars:
            if bar.view is None:
                bar.view = self._tasks.add_task(bar.description, total=bar.total, metrics="")
            elif bar.has_begun_anew:
                self._tasks.reset(bar.view, total=bar.total)
                bar.has_begun_anew = False
            self._tasks.update(bar.view, completed=bar.done, total=bar.total, metrics=bar.metrics)
        drawn = [task for task in self._tasks.tasks if task.id in {bar.view for bar in bars}]
        self._bar.bar_width = _SHORT if any(bar.metrics for bar in bars) else _LONG
        return self._tasks.make_tasks_table(drawn)


class Notebook(Drawn):
    """Shows each bar in the cell that runs its program. A table of rich's is HTML there.

    `rich.live.Live` draws into an `ipywidgets.Output` (rich/live.py, `refresh`). All that the cell prints meanwhile, in
    any thread, goes to that output too, and `Live` clears it. A display that is updated takes nothing else.
    """

    def __init__(self, stream: Any):
        from rich import get_console

        super().__init__(stream, get_console())
        self._displays: dict[int, Any] = {}  # by task

    def show(self, bars: list[Bar]) -> None:
        from IPython.display import display

        for bar in bars:
            table = self._table([bar])
            if (shown := self._displays.get(bar.view)) is None:
                self._displays[bar.view] = display(table, display_id=True)
            else:
                shown.update(table)

    def write(self, text: str, bars: list[Bar]) -> None:
        self._stream.write(text)

    def leave(self, bar: Bar, others: list[Bar]) -> None:
        self.show([bar])
        self._tasks.remove_task(bar.view)
        del self._displays[bar.view]


# On a terminal Python's own `print` may write between our writes. The stream is not replaced; instead the cursor is
# left on an empty line before the bars, where any writer's text appears.

_ERASE = "\x1b[J"
"""Erases the screen after the cursor."""

_ROOM = 3
"""Lines of the terminal that are left when there are more bars than it has lines: the first bars are drawn."""


def is_terminal(stream: Any) -> bool:
    """Returns True if the cursor can be moved on this stream."""
    from rich.console import Console

    try:
        return stream.isatty() and not Console(file=stream).is_dumb_terminal
    except Exception:  # closed, or a user class
        return False


class Terminal(Drawn):
    """Draws the bars below written text."""

    def __init__(self, stream: Any):
        from rich.console import Console

        super().__init__(stream, Console(file=stream, force_terminal=True))
        self._is_drawn = False

    def show(self, bars: list[Bar]) -> None:
        self._put("", bars)

    def write(self, text: str, bars: list[Bar]) -> None:
        # If text ends within a line, the bars are redrawn when that line ends.
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
        with self._console.capture() as capture:
            self._console.print(self._table(bars))
        return capture.get()


_PAUSE = 0.1
"""Seconds from one drawing of an output to the next, unless a bar begins or ends."""


Steps = tuple[int, int | None, str]
"""The steps done, the total if it is known, and the metrics as text."""


@dataclasses.dataclass
class Bar:
    """One bar."""

    description: str
    total: int | None = None
    done: int = 0
    first: int = 0  # steps done when it was first shown
    metrics: str = ""
    lanes: dict[Hashable, Steps] = dataclasses.field(default_factory=dict)  # of the devices that have reported
    began: float = dataclasses.field(default_factory=monotonic)
    changed: float = dataclasses.field(default_factory=monotonic)
    has_begun_anew: bool = False  # and not yet shown
    view: Any = None  # the display's data for it

    @property
    def is_full(self) -> bool:
        return self.total is not None and self.done >= self.total

    @property
    def elapsed(self) -> float:
        return self.changed - self.began

    @property
    def left(self) -> float | None:
        """Seconds until it is full, at the present speed; None: not known."""
        seen = self.done - self.first  # without the steps done before it was shown
        if self.is_full or self.total is None or not seen:
            return None
        return self.elapsed * (self.total - self.done) / seen

    def set(self, lanes: Mapping[Hashable, Steps]) -> None:
        """Updates some lanes. The bar shows the slowest of all lanes, and begins anew if a lane goes back."""
        self.changed = monotonic()
        comes = not self.lanes
        is_back = any(done < self.lanes[lane][0] for lane, (done, *_) in lanes.items() if lane in self.lanes)
        self.lanes = {**lanes} if is_back else {**self.lanes, **lanes}
        self.done, self.total, self.metrics = slowest(self.lanes)
        if comes or is_back:
            self.began, self.first = self.changed, self.done
        self.has_begun_anew |= is_back


def slowest(lanes: Mapping[Hashable, Steps]) -> Steps:
    """The progress of the lane with the largest part to go, or with the fewest steps if totals are not known. Of
    several such lanes, the one with the largest total."""

    def part(steps: Steps) -> tuple[float, int]:
        done, total, _ = steps
        return (done, 0) if total is None else (done / total if total else 1, -total)

    return min(lanes.values(), key=part)


Owner = tuple[int, int] | None
"""The program that a bar is of: the number of the thread that called it, and of its epoch. None: no program ends it."""

_Key = tuple[Owner, Hashable]


class _Shown:
    """An output with bars."""

    def __init__(self, stream: Any):
        self.stream = stream
        self.bars: dict[_Key, Bar] = {}
        self.drawn = 0.0
        kind = Terminal if is_terminal(stream) else Notebook if is_notebook(stream) else Lines
        self.display: Terminal | Notebook | Lines = kind(stream)

    def draw(self) -> None:
        self.drawn = monotonic()
        with beside_tqdm(self.stream):
            self.display.show([*self.bars.values()])

    def write(self, text: str) -> None:
        with beside_tqdm(self.stream):
            self.display.write(text, [*self.bars.values()])

    def leave(self, bar: Bar) -> None:
        with beside_tqdm(self.stream):
            self.display.leave(bar, [*self.bars.values()])


class Bars(BesideText):
    """The bars of all outputs.

    Drain threads call this. An output may be a class of the user's, whose `write` may run programs and wait for their
    effects. So a thread never waits for another that draws, which could deadlock: it leaves its drawing to that one.
    """

    def __init__(self) -> None:
        self._draws = threading.Lock()
        self._changes = threading.Lock()  # the bars of outputs; no user code runs under it
        self._shown: list[_Shown] = []
        self._ended: list[tuple[_Shown, _Key]] = []  # bars without their last update

    def update(
        self, stream: Any, owner: Owner, key: Hashable, description: str, lanes: Mapping[Hashable, Steps]
    ) -> None:
        """Updates lanes of the bar that has this key, of this program."""
        made = self._of(stream) or _Shown(stream)  # calls the stream's `isatty`
        with self._changes:
            show_beside_text(self)
            if (shown := self._of(stream)) is None:  # or another thread has removed it
                self._shown.append(shown := made)
            comes = (owner, key) not in shown.bars
            bar = shown.bars.setdefault((owner, key), Bar(description))
            bar.set(lanes)
        if comes or bar.is_full or bar.changed - shown.drawn >= _PAUSE:
            self._draw(shown.draw)
        if owner is None and bar.is_full:
            self._end([(shown, (owner, key))])

    def _of(self, stream: Any) -> _Shown | None:
        return next((each for each in self._shown[:] if each.stream is stream), None)

    def write(self, stream: Any, text: str) -> None:
        """Writes text ahead of the bars of an output, if it has any."""
        for shown in self._shown:
            if shown.stream is stream and self._draw(functools.partial(shown.write, text)):
                return
        super().write(stream, text)

    def end(self, epochs: Iterable[tuple[int, int, int]]) -> None:
        """Ends the bars of these epochs (thread, first, count), which have ended."""
        for thread, first, count in epochs if self._shown else ():
            for shown in self._shown[:]:
                owners = {owner for owner, _ in [*shown.bars] if owner is not None and owner[0] == thread}
                ended = {owner for owner in owners if (owner[1] - first) & 0xFFFFFFFF < count}
                self._end([(shown, key) for key in [*shown.bars] if key[0] in ended])

    def close(self) -> None:
        """Leaves all bars as they are."""
        self._end([(shown, key) for shown in self._shown[:] for key in [*shown.bars]])

    def _draw(self, draw: Callable[[], None]) -> bool:
        """Draws, unless another thread does."""
        if not self._draws.acquire(blocking=False):
            return False
        try:
            draw()
        finally:
            self._draws.release()
            self._leave_ended()
        return True

    def _end(self, bars: list[tuple[_Shown, _Key]]) -> None:
        if bars:
            self._ended += bars
            self._leave_ended()

    def _leave_ended(self) -> None:
        """Shows ended bars for the last time, unless another thread draws: then that thread does it, since it looks for
        such bars once more after it has released the lock (see the README)."""
        while self._ended and self._draws.acquire(blocking=False):
            try:
                while self._ended:
                    self._leave(*self._ended.pop(0))
            finally:
                self._draws.release()

    def _leave(self, shown: _Shown, key: _Key) -> None:
        with self._changes:
            bar = shown.bars.pop(key, None)
        if bar is not None:
            # A closed output raises. The error is for whoever prints there.
            with contextlib.suppress(BaseException):
                shown.leave(bar)
        with self._changes:
            if not shown.bars and shown in self._shown:
                self._shown.remove(shown)


bars: Bars = Bars()
