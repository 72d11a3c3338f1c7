"""A timer that raises `KeyboardInterrupt` in the main thread at random moments, as Ctrl-C does."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

DELAYS = (2e-6, 2e-5, 1e-4, 5e-4, 2e-3)
"""Seconds from one signal to the next, so short that one may come while another is dealt with."""


TWICE = 2
"""How often an attempt may be interrupted: once, and again while it is left."""


class Attempt(NamedTuple):
    """What became of something that may have been interrupted."""

    interrupted: bool
    result: Any = None
    error: BaseException | None = None  # None: it returned

    @property
    def returned(self) -> bool:
        return self.error is None


class Interrupts:
    """The timer. A process has one, and so it has one of these."""

    def __init__(self, seed: int) -> None:
        self.count = 0  # how many there have been
        self._chance = random.Random(seed)
        self._left = 0  # how many more may come during what is attempted

    def start(self) -> None:
        signal.signal(signal.SIGALRM, self._interrupt)
        signal.setitimer(signal.ITIMER_REAL, DELAYS[-1])

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN)

    def _interrupt(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, self._chance.choice(DELAYS))
        if self._left:
            self._left -= 1
            self.count += 1
            raise KeyboardInterrupt

    def attempt(self, act: Callable[[], Any]) -> Attempt:
        """Does something that may be interrupted, and once more while it is left."""
        before, result, error = self.count, None, None
        try:
            try:
                self._left = TWICE
                result = act()
                self._left = 0
            except BaseException as raised:
                self._left, error = 0, raised
        except KeyboardInterrupt as raised:
            self._left, error = 0, raised
        return Attempt(self.count != before, result, error)
