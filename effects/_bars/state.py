"""Which bars are shown where, and how far they are."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import AbstractContextManager
from time import monotonic
from typing import Any, Protocol

from effects._bars.lines import Lines
from effects._bars.notebook import Notebook, is_notebook
from effects._bars.terminal import Terminal, is_terminal

_PAUSE = 0.1
"""Seconds for which what is shown stays as it is, unless a bar comes or comes to its end."""


Steps = tuple[int, int | None, str]
"""How many steps are done, of how many, if that is known, and the metrics as text."""


@dataclasses.dataclass
class Bar:
    """One bar."""

    description: str
    total: int | None = None
    done: int = 0
    first: int = 0  # how far it was when it was shown first
    metrics: str = ""
    lanes: dict[Hashable, Steps] = dataclasses.field(default_factory=dict)  # how far each is that has said it
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

    @property
    def left(self) -> float | None:
        """Seconds until it is full, if it goes on like that; None: not known."""
        seen = self.done - self.first  # what it began with was done before
        if self.is_full or self.total is None or not seen:
            return None
        return self.elapsed * (self.total - self.done) / seen

    def set(self, lanes: Mapping[Hashable, Steps]) -> None:
        """How far some lanes are. The bar shows the slowest of all. One that is set back begins anew."""
        self.changed = monotonic()
        comes = not self.lanes
        is_back = any(done < self.lanes[lane][0] for lane, (done, *_) in lanes.items() if lane in self.lanes)
        self.lanes = {**lanes} if is_back else {**self.lanes, **lanes}
        self.done, self.total, self.metrics = slowest(self.lanes)
        if comes or is_back:
            self.began, self.first = self.changed, self.done
        self.has_begun_anew |= is_back


def slowest(lanes: Mapping[Hashable, Steps]) -> Steps:
    """How far the lane is that has the largest part to go, or the fewest steps where totals are not known. Of several
    the one with the most steps."""

    def part(steps: Steps) -> tuple[float, int]:
        done, total, _ = steps
        return (done, 0) if total is None else (done / total if total else 1, -total)

    return min(lanes.values(), key=part)


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

_Key = tuple[Owner, Hashable]


class _Shown:
    """An output with bars."""

    def __init__(self, stream: Any):
        self.stream = stream
        self.bars: dict[_Key, Bar] = {}
        self.drawn = 0.0
        kind = Terminal if is_terminal(stream) else Notebook if is_notebook(stream) else Lines
        self.display: Display = kind(stream)

    def draw(self) -> None:
        self.drawn = monotonic()
        with _beside_tqdm(self.stream):
            self.display.show([*self.bars.values()])

    def write(self, text: str) -> None:
        with _beside_tqdm(self.stream):
            self.display.write(text, [*self.bars.values()])

    def leave(self, bar: Bar) -> None:
        with _beside_tqdm(self.stream):
            self.display.leave(bar, [*self.bars.values()])


def _beside_tqdm(stream: Any) -> AbstractContextManager[Any]:
    """In force while something is written. Bars of tqdm's, which a loop of the user's may have on the same terminal,
    are away meanwhile, and no other thread draws them."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if not getattr(tqdm, "_instances", None) or is_notebook(stream):
        return contextlib.nullcontext()
    return tqdm.external_write_mode(file=stream)


class Bars:
    """All bars that are shown.

    Threads of the drain come here. An output may be a class of the user's, which may run programs and wait for their
    effects when it is written to. So no thread waits for another that draws: it leaves the drawing to it.
    """

    def __init__(self) -> None:
        self._draws = threading.Lock()
        self._changes = threading.Lock()  # which outputs have which bars; nothing of the user's is called under it
        self._shown: list[_Shown] = []
        self._ended: list[tuple[_Shown, _Key]] = []  # bars that have not been shown for the last time yet

    def update(
        self, stream: Any, owner: Owner, key: Hashable, description: str, lanes: Mapping[Hashable, Steps]
    ) -> None:
        """How far lanes of the bar with this key are, of this program."""
        made = self._of(stream) or _Shown(stream)  # which asks the stream what it is
        with self._changes:
            if (shown := self._of(stream)) is None:  # or another thread was sooner
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
        with _beside_tqdm(stream):
            stream.write(text)

    def end(self, epochs: Iterable[tuple[int, int, int]]) -> None:
        """These epochs (thread, first, count) have ended: nothing more comes of them."""
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
        """Shows bars that have ended for the last time, unless another thread draws, which then does it. If a thread
        looked for such bars before it gives the lock back, one could stay:

            1. Thread A draws, and finds no bar that has ended.
            2. Thread B adds one, and finds that A has the lock.
            3. A gives the lock back.

        So a thread looks for them behind that: either it sees what B has added, or B gets the lock.
        """
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
            # An output that is closed has no room for it. Whoever prints there is given the error.
            with contextlib.suppress(BaseException):
                shown.leave(bar)
        with self._changes:
            if not shown.bars and shown in self._shown:
                self._shown.remove(shown)


bars = Bars()
