"""What is interrupted, and what must have come of it."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import effects as fx
from tests.internals import runtime
from tests.storm.interrupts import Attempt

LINES = 3
"""How many a program has that only prints."""

PATIENCE = 120
"""Seconds that a barrier waits which nobody interrupts."""

Act = Callable[[], Any]
Note = Callable[[Attempt], None]


class Failed(Exception):
    """What callbacks raise: (the number of the operation,)."""


class Operations:
    """Programs, effects outside of them, barriers, captures and handlers, and what all have shown since `begin`."""

    def __init__(self, devices: int) -> None:
        self.out = io.StringIO()
        self._shown: list[tuple[list[str], bool]] = []  # lines of an operation, and whether it returned
        self._failing: dict[int, bool] = {}  # operations whose callbacks raise, and whether they returned
        self._raised: set[int] = set()  # those that somebody was told of
        self._prints, self._calls, self._asks, self._raises = self._programs()
        self._xs: list[Any] = [jnp.zeros(4)]
        if devices > 1:
            mesh = jax.make_mesh((devices,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
            self._xs.append(jax.device_put(jnp.zeros(4 * devices), jax.NamedSharding(mesh, jax.P("x"))))
        self._kinds = [
            self._print, self._print, self._call, self._ask, self._raise, self._barrier, self._capture,
            self._handle, self._eager,
        ]  # fmt: skip

    def begin(self) -> None:
        """Every second round has one order for all threads."""
        fx.config.order = "thread" if fx.config.order == "process" else "process"
        self.out = io.StringIO()
        self._shown, self._failing, self._raised = [], {}, set()

    def choose(self, number: int, chance: random.Random) -> tuple[Act, Note]:
        """What is to be attempted, and who takes note of what became of it."""
        return chance.choice(self._kinds)(number, chance.choice(self._xs))

    def end(self) -> None:
        """Compares what was shown with what must have been."""
        self._note_errors(_attempt_quietly(lambda: fx.effects_barrier(timeout=PATIENCE)))
        lines = self.out.getvalue().splitlines()
        at = 0
        for expected, returned in self._shown:
            begin = at
            while at < begin + len(expected) and lines[at : at + 1] == [expected[at - begin]]:
                at += 1
            assert at == begin + len(expected) or not returned, (expected, lines[begin : begin + 9])
        assert at == len(lines), lines[at : at + 9]
        lost = [number for number, returned in self._failing.items() if returned and number not in self._raised]
        assert not lost, f"what the callbacks of these operations raised was lost: {lost}"
        entering = [number for stream in runtime.streams.all() for number in stream.entering]
        assert not entering, f"calls that are taken for ones which have not returned: {entering}"

    # The kinds: each gives what is to be done, and who takes note.

    def _print(self, k: int, x: Any) -> tuple[Act, Note]:
        return lambda: self._prints(x, np.int32(k)), self._showing([f"{k} {i}" for i in range(LINES)])

    def _eager(self, k: int, x: Any) -> tuple[Act, Note]:
        return lambda: fx.print("{} eager", k), self._showing([f"{k} eager"])

    def _call(self, k: int, x: Any) -> tuple[Act, Note]:
        return lambda: self._calls(x, np.int32(k)), self._showing([f"{k} before", f"{k} called", f"{k} after 0.0"])

    def _ask(self, k: int, x: Any) -> tuple[Act, Note]:
        return lambda: self._asks(x, np.int32(k)), self._showing([f"{k} before", f"{k} asked", f"{k} after {k + 1}"])

    def _barrier(self, k: int, x: Any) -> tuple[Act, Note]:
        return lambda: fx.effects_barrier(timeout=PATIENCE if k % 2 else None), self._note_errors

    def _raise(self, k: int, x: Any) -> tuple[Act, Note]:
        def note(attempt: Attempt) -> None:
            self._failing[k] = attempt.returned
            self._note_errors(attempt)

        return lambda: self._raises(x, np.int32(k)), note

    def _capture(self, k: int, x: Any) -> tuple[Act, Note]:
        lines = [f"{k} {i}" for i in range(LINES)]

        def capture() -> None:
            with fx.capture(suppress=True) as records:
                self._prints(x, np.int32(k))
            assert [record.text for record in records] == lines

        def note(attempt: Attempt) -> None:
            if not attempt.returned:  # what a block was left with before it was replayed is not suppressed any more
                self._shown.append((lines, False))
            self._note_errors(attempt)

        return capture, note

    def _handle(self, k: int, x: Any) -> tuple[Act, Note]:
        lines = [f"{k} {i}" for i in range(LINES)]

        added: list[Any] = []

        def handle() -> None:
            texts: list[str] = []
            added.append(fx.add_handler(lambda record: texts.append(record.text), effects="print"))
            self._prints(x, np.int32(k))
            fx.remove_handler(added[0])
            assert texts == lines

        def note(attempt: Attempt) -> None:
            self._showing(lines)(attempt)
            if not attempt.returned and added:
                with contextlib.suppress(ValueError):  # it may have been removed
                    fx.remove_handler(added[0])

        return handle, note

    # What is noted.

    def _showing(self, lines: list[str]) -> Note:
        def note(attempt: Attempt) -> None:
            self._shown.append((lines, attempt.returned))
            self._note_errors(attempt)

        return note

    def _note_errors(self, attempt: Attempt) -> None:
        """What callbacks have raised may be behind an interrupt that came while it was raised."""
        told = set(_told(attempt.error, set()))
        self._raised |= told
        if attempt.error is not None and not attempt.interrupted and not told:
            raise attempt.error

    def _programs(self) -> Iterator[Any]:
        """They stay, and with them what was compiled: while JAX compiles, it may make another error of an interrupt."""

        def call(k: Any) -> None:
            self.out.write(f"{int(k)} called\n")

        def ask(k: Any) -> Any:
            self.out.write(f"{int(k)} asked\n")
            return k + 1

        def fail(k: Any) -> None:
            raise Failed(int(k))

        @fx.jit
        def prints(x: Any, k: Any) -> Any:
            jax.lax.fori_loop(0, LINES, lambda i, _: fx.print("{} {}", k, i), None)
            return x.sum()

        @fx.jit
        def calls(x: Any, k: Any) -> None:
            fx.print("{} before", k)
            fx.callback(call, None, k)
            fx.print("{} after {}", k, x.sum())

        @fx.jit
        def asks(x: Any, k: Any) -> Any:
            fx.print("{} before", k)
            answer = fx.callback(ask, jax.ShapeDtypeStruct((), "int32"), k)
            fx.print("{} after {}", k, answer)
            return x.sum() + answer

        @fx.jit
        def raises(x: Any, k: Any) -> None:
            fx.callback(fail, None, k)

        return iter((prints, calls, asks, raises))


def _told(error: BaseException | None, known: set[int]) -> Iterator[int]:
    """The operations whose callbacks raised this error, or one that it has within or behind it."""
    if error is None or id(error) in known:
        return
    known.add(id(error))
    if isinstance(error, Failed):
        yield error.args[0]
    parts = error.failures if isinstance(error, fx.EffectError) else ()
    for each in (*parts, error.__cause__, error.__context__):
        yield from _told(each, known)


def _attempt_quietly(act: Act) -> Attempt:
    try:
        return Attempt(False, act())
    except BaseException as error:
        return Attempt(False, None, error)
