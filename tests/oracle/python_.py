"""The sequential reading: Python runs a program's source on one thread.

That is what the library promises to look like. JAX takes no part in it.

Under `vmap`, the lanes are run one after the other, and what they do happens afterwards, in the order of the places in
the program and at one place in the order of the lanes. JAX's own effects happen once along an axis along which no
operand is mapped, if any lane comes there. One value, `x`, can be differentiated: the reading notes what is
made of it, and goes back over that where JAX would.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from effects.extensions.kernels.api import numbers_in_order
from tests.oracle.host import Host, in_lane
from tests.oracle.language import (
    ACTIONS,
    DOMAINS,
    EFFECTS,
    MODULUS,
    SWITCHES,
    Failure,
    Program,
    T,
    kinds_of_labels,
    statements,
)
from tests.oracle.mapped import mapped_axes
from tests.oracle.source import compiled
from tests.oracle.statements.callback import Callback
from tests.oracle.statements.derivatives import BACKWARD, FORWARD
from tests.oracle.tokens import Notes

Step = Callable[[int], int]
"""Takes a derivative past something, backward."""

Point = tuple[tuple[int, ...], tuple[int, ...], str, Callable[[], object]]
"""What is to happen later: the place in the program, the lane, the label of the effect if there is one, and what."""


Passes = Callable[[int], bool]
"""Whether an effect with a filter is shown to which this device has come."""


EVERYWHERE = -1
"""Counts what is outside of regions, in place of a device."""


class Filters:
    """The counts of filters of prints, in regions by device; and the changes of these filters."""

    def __init__(self) -> None:
        self._is_quiet = False
        self._come: collections.Counter[tuple[str, int]] = collections.Counter()
        self._shown: collections.Counter[tuple[str, int]] = collections.Counter()
        self.known: set[str] = set()  # labels of programs that have been compiled
        self._changed: dict[str, dict[str, str]] = {}  # by label: by "on", "every" and "level" what they are now

    def set_quiet(self, is_quiet: bool, *about: object) -> None:
        self._is_quiet = is_quiet

    def change(self, how: str) -> None:
        """Changes the filters that there are now: one of CHANGES."""
        name, given = ("on", how) if how in ("on", "off") else how.split()
        for label in self.known:
            self._changed.setdefault(label, {})[name] = given

    def shows(self, label: str, every: int, first: int, once: bool, device: int) -> bool:
        of, now = (label, device), self._changed.get(label, {})
        number, self._come[of] = self._come[of], self._come[of] + 1
        most = min(first or math.inf, 1 if once else math.inf)
        is_quiet = now["level"] == "warning" if "level" in now else self._is_quiet
        if is_quiet or now.get("on") == "off" or number % int(now.get("every", every)) or self._shown[of] >= most:
            return False
        self._shown[of] += 1
        return True

    def counts(self) -> dict[str, tuple[int, int]]:
        """The numbers of prints that have come and that were shown, by label."""
        found: dict[str, tuple[int, int]] = dict.fromkeys(self.known, (0, 0))
        for (label, device), come in self._come.items():
            count, shown = found.get(label, (0, 0))
            found[label] = count + come, shown + self._shown[label, device]
        return found


class Reading:
    """Runs programs as Python: the functions that their source calls, and what came of them."""

    def __init__(self, stops: bool = False, rewritten: Collection[Program] = ()) -> None:
        """What is in force, and what is rewritten.

        Args:
          stops: whether a queued callback that raises stops the effects of its program, as an exception does.
          rewritten: programs whose kernels write logs: the effects of a kernel have one place in the order.
        """
        self.filters = Filters()
        self.device = 0  # that runs the program
        self.lines: list[str] = []
        self.notes = Notes(self.lines)
        self.failures: list[str] = []  # labels of queued callbacks that raised
        self.stops = stops
        self.stopped = ""  # the label of the callback that has, in the program that runs
        self.left_out = 0  # how many effects of the same order were not carried out therefore
        self._kinds: dict[str, str] = {}  # of effects, by label
        # The lane of each `vmap` around, what is to happen in lanes, and where we are: see `_at_this_point`.
        self._lane: tuple[int, ...] = ()
        self._axes: tuple[str, ...] = ()  # of each `vmap` around: the variable of its lanes
        self._mapped: Mapping[str, frozenset[str]] = {}  # by label of JAX's own effects, see `mapped_axes`
        self._points: list[Point] = []
        self._position = [0]
        self._grid: tuple[int, ...] | None = None  # in a kernel: which program of its grid we are
        self._rewritten = rewritten
        self._log: Any = None  # in a kernel that writes a log: the place of that
        self._visits = False  # in a kernel whose grid is visited in another order
        self._asked: list[Point] = []  # there: what it waits for in lanes
        # Where `x` has a derivative: how it goes back, a step for each thing that was made of `x`.
        self._steps: list[Step] | None = None
        self._goes_back = False  # whether effects come of that
        self._defers = False  # whether what happens does so later even outside of lanes

        def act(action: str) -> Callable[[str, str, int], None]:
            return lambda *about: self.lines.extend(ACTIONS[action](*about))

        switches = {name: functools.partial(self.filters.set_quiet, name == "quiet") for name in SWITCHES}
        self.host = Host(self.lines.append, {**{action: act(action) for action in ACTIONS}, **switches})

    def interpret(self, program: Program, state: Sequence[int], number: int) -> tuple[int, ...]:
        callbacks = {s.label: s for s in statements(program) if isinstance(s, Callback)}
        self._kinds, self.stopped = kinds_of_labels(program), ""
        self._mapped = mapped_axes(program)
        self.filters.known.update(label for label, kind in self._kinds.items() if kind == "filtered")
        has_logs = any(getattr(s, "visits", False) for s in statements(program))
        self.notes.begin(program, number, has_logs or program in self._rewritten)
        self._has_logs = program in self._rewritten

        def log(label: str, level: str, **fields: Any) -> None:
            words = [label, *(f"{name}={np.array(value)}" for name, value in fields.items()), level]
            text = f"{' '.join(words)}{in_lane(self._lane, self._grid)}"
            hidden = level == "DEBUG" and not self._has_all()  # which has a number all the same
            self._at_this_point(f"#{label}" if hidden else label, lambda: hidden or self.lines.append(text))

        def call(label: str, *values: int) -> list[int]:
            callback = callbacks[label]
            lane, grid = (self._lane, self._grid) if callback.pass_record else ((), None)
            if callback.awaited and not self._lane and (self._visits or not self._defers):
                self._leave_out(label)
                with self._noted(label, ()):
                    return self.host.call(callback, values, lane, grid)
            happens = lambda: self._call(callback, values, lane, grid)  # noqa: E731
            self._at_this_point(label, happens, callback.awaited)
            return callback.numbers(sum((j + 1) * y for j, y in enumerate(values)) % MODULUS)

        def check(label: str, holds: bool, *values: int) -> None:
            text, lane, grid = " ".join([label, *map(str, values)]), self._lane, self._grid

            def fail() -> None:
                self.lines.append(f"{text}{in_lane(lane, grid)}")
                self.failures.append(f"{text}{in_lane(lane, grid or None)}")

            with self._alternatives(1):
                self._at_this_point("" if holds else label, fail if not holds else lambda: None)

        def filtered(label: str, every: int, first: int, once: bool, holds: bool, *values: int) -> None:
            text = " ".join([label, *map(str, values)])
            passes = lambda device: self.filters.shows(label, every, first, once, device)  # noqa: E731
            with self._alternatives(1):
                if holds:
                    passes = None if self._has_all() else passes
                    self._at_this_point(label, lambda: self.lines.append(text), passes=passes)
                else:
                    self._at_this_point("", lambda: None)

        def fail(label: str, fails: bool) -> None:
            if fails:
                raise Failure(label)

        calls = {"filtered": filtered, "log": log, "check": check, "queued": call, "sync": call, "io": call}
        namespace: dict[str, Any] = {
            kind: calls.get(kind.removeprefix("jax_").split("_")[0], self._write) for kind in EFFECTS
        }
        namespace |= {"native_fails": fail, "lockstep": self._lockstep, "branch": self._branch, "turns": self._turns}
        namespace |= {"alternatives": self._alternatives}
        namespace |= {"set_off": self._set_off, "come_back": self._come_back}
        namespace |= {"held": self._held, "dropped": self._dropped, "scale": self._scale}
        namespace |= {"print_grad": self._print_grad, "custom_rule": self._custom_rule}
        namespace |= {"programs": self._programs, "grid": lambda: self._grid}
        namespace |= {form: functools.partial(self._differentiate, form) for form in (*BACKWARD, *FORWARD)}
        namespace |= self.more_names(program)
        exec(compiled(program), namespace)
        self._lane, self._axes, self._points, self._position, self._steps = (), (), [], [0], None
        self._grid, self._log, self._defers, self._visits, self._asked = None, None, False, False, []
        return namespace["program"](number, *state)

    def _has_all(self) -> bool:
        """Whether the reading has what filters and levels leave out."""
        return False

    def more_names(self, program: Program) -> dict[str, Any]:
        """What else the source may call, for those who have more statements."""
        return {}

    def _write(self, *words: object) -> None:
        self._at_this_point(str(words[0]), lambda: self.lines.append(" ".join(map(str, words))))

    def _call(
        self, callback: Callback, values: Sequence[int], lane: tuple[int, ...], grid: tuple[int, ...] | None
    ) -> None:
        try:
            self.host.call(callback, values, lane, grid)
        except Failure:
            if callback.awaited:
                raise
            self.failures.append(callback.label)
            if self.stops:
                self.stopped = callback.label

    def _leave_out(self, label: str) -> bool:
        """Whether the effect is left out, since one before it in its order has failed. If the program waits for it, it
        ends."""
        kind = self._kinds.get(label.split(".", 1)[0], "")
        is_shown = label and label[0] != "#"
        if not (self.stopped and is_shown and EFFECTS.get(kind, True)) or kind in DOMAINS:
            return False
        self.left_out += 1
        if kind == "async_host" or "sync" in kind.split("_"):
            self.failures.remove(self.stopped)
            raise Failure(self.stopped)
        return True

    # Under `vmap`, each lane is run by itself, and what it does happens afterwards: in the order of the places in the
    # program, and at one place in the order of the lanes. A place is known by how many effects, branches and loops came
    # before it in the same block, and by those of the blocks around it, with the branch or turn that the block is.

    def _at_this_point(
        self, label: str, happens: Callable[[], object], awaited: bool = False, passes: Passes | None = None
    ) -> None:
        """`passes`: says of an effect with a filter whether it is shown, once for all lanes that have it."""
        self._position[-1] += 1
        if self._lane or self._defers:
            asked = awaited and self._visits
            lane = self._lane_of(label)
            what = Happening(happens, self._grid, None if asked else self._log, passes)
            (self._asked if asked else self._points).append((tuple(self._position), lane, label, what))
        elif (passes is None or passes(EVERYWHERE)) and not self._leave_out(label):
            with self._noted(label, (), self._log):
                happens()

    @contextlib.contextmanager
    def _noted(self, label: str, lane: tuple[int, ...], position: Any = None) -> Iterator[None]:
        """Notes where the record of what happens stands in the order."""
        try:
            yield
        finally:
            self.notes.note(label, lane, position, self._grid)

    @contextlib.contextmanager
    def _branch(self, number: int) -> Iterator[None]:
        """A branch: those of lower numbers come first, in all lanes that take them."""
        position = self._position
        position[-1] += 1
        position += (number, 0)
        steps = self._steps
        if steps is not None:
            self._steps = []
            steps.append(functools.partial(self._branch_back, number, self._steps))
        yield
        self._steps = steps
        del position[-2:]

    def _alternatives(self, most: int | None) -> contextlib.AbstractContextManager[None]:
        """A branch or another one, which have so many effects of the program's order at most."""
        return contextlib.nullcontext()

    def _branch_back(self, number: int, steps: list[Step], slope: int) -> int:
        with self._branch(number):
            return self._back(steps, slope)

    def _turns(self, values: Iterable[int]) -> Iterator[int]:
        """A loop: each turn is made by all lanes that go on."""
        position = self._position
        position[-1] += 1
        position += (0, 0)
        try:
            for turn, value in enumerate(values):
                position[-2:] = turn, 0
                yield value
        finally:
            del position[-2:]

    def _lockstep(
        self, axis: str, lane: Callable[..., tuple[int, int]], xs: Sequence[int], *state: int
    ) -> tuple[list[int], int]:
        """The lanes' results, and the sum of their `x`. `axis`: the variable of the lanes."""
        around, of_lanes = self._steps, [[] if self._steps is not None else None for _ in xs]

        def run(number: int) -> tuple[int, int]:
            self._steps = of_lanes[number]
            return lane(xs[number], *state)

        results = self._in_lanes(len(xs), run, axis)
        self._steps = around
        if around is not None:
            around.append(
                lambda slope: sum(self._in_lanes(len(xs), lambda lane: self._back(of_lanes[lane] or [], slope), axis))
            )
        return [result for result, _ in results], sum(x for _, x in results) % MODULUS

    def _in_lanes(self, count: int, run: Callable[[int], T], axis: str = "") -> list[T]:
        self._position[-1] += 1
        position, around, axes, results = self._position, self._lane, self._axes, []
        for number in range(count):
            self._position, self._lane, self._axes = [*position, 0], (*around, number), (*axes, axis)
            results.append(run(number))
        self._position, self._lane, self._axes = position, around, axes
        if not around and not self._defers:
            self._let_happen()
        elif not around and self._visits:
            self._asked, points = [], self._asked
            self._let_all_happen(points)
        return results

    def _lane_of(self, label: str) -> tuple[int, ...]:
        """The lane of an effect: of one of JAX's own, along the axes only along which an operand is mapped."""
        if (mapped := self._mapped.get(label)) is None:
            return self._lane
        axes = self._axes[len(self._axes) - len(self._lane) :]  # within a kernel those around are part of its grid
        return tuple(number for number, axis in zip(self._lane, axes, strict=True) if axis in mapped)

    def _once(self, points: Sequence[Point]) -> list[Point]:
        """Sorted points, of JAX's own effects one for each place and lane."""
        found: list[Point] = []
        for point in points:
            if point[2] not in self._mapped or not found or found[-1][:3] != point[:3]:
                found.append(point)
        return found

    def _let_happen(self) -> None:
        self._points, points = [], self._points
        self._let_all_happen(points)

    def _let_all_happen(self, points: Sequence[Point]) -> None:
        points = self._once(sorted(points, key=lambda point: point[:2]))
        around = self._grid
        shown: dict[tuple[int, ...], bool] = {}  # by place, of effects with filters
        for number, (place, lane, label, happens) in enumerate(points):
            log = None
            self._grid, passes = None, True
            if isinstance(happens, Happening):
                self._grid, log = happens.grid, happens.log
                if happens.passes is not None:
                    if place not in shown:
                        shown[place] = happens.passes(happens.device)
                    passes = shown[place]
            try:
                if passes and not self._leave_out(label):
                    with self._noted(label, lane, place if log is None else log):
                        happens()
            except Failure:
                self._leave_out_lanes([point for point in points[number + 1 :] if point[0] == place])
                raise
        self._grid = around

    def _leave_out_lanes(self, points: Sequence[Point]) -> None:
        """The lanes that are left of what has ended the program."""
        if self.stops:
            self.left_out += len(points)

    def _programs(
        self, sizes: tuple[int, ...], by_lane: bool = False, order: str | int | None = None
    ) -> Iterator[tuple[int, ...]]:
        """A kernel: the programs of its grid, one after the other. `by_lane`: whether each lane may have its own log.

        A lane of a `vmap` around makes the whole grid before the next one does. Its number stands ahead of the index.
        """
        if order is not None:
            yield from self._visited_programs(sizes, order)
            return
        position, around, defers = self._position, self._lane, self._defers
        position[-1] += 1
        for number, index in enumerate(np.ndindex(*sizes)):
            self._position, self._lane, self._defers = [*position, *around, number, 0], (), bool(around) or defers
            self._grid = (*around, *index)
            self._log = ("logs" if by_lane else "log", *position) if self._has_logs else None
            yield index
        self._position, self._lane, self._defers, self._grid, self._log = position, around, defers, None, None

    def _visited_programs(self, sizes: tuple[int, ...], order: str | int) -> Iterator[tuple[int, ...]]:
        """A kernel whose grid is visited in another order. What it waits for happens as it is visited; all else is in a
        log, from which it is shown behind the kernel, in the order of the grid."""
        assert not self._lane and not self._defers, "lanes would be visited in turns"
        position = self._position
        position[-1] += 1
        indices, self._defers, self._visits, self._log = [*np.ndindex(*sizes)], True, True, ("log", *position)
        for number in numbers_in_order(order, len(indices)).tolist():
            self._position, self._grid = [*position, number, 0], indices[number]
            yield indices[number]
        self._position, self._defers, self._visits, self._grid, self._log = position, False, False, None, None
        self._let_happen()

    # Derivatives.

    def _back(self, steps: list[Step], slope: int) -> int:
        for step in reversed(steps):
            slope = step(slope)
        return slope

    def _scale(self, x: int, factor: int, shift: int) -> int:
        if self._steps is not None:
            self._steps.append(lambda slope: factor * slope)
        return (factor * x + shift) % MODULUS

    def _set_off(self, x: int, factor: int) -> tuple[int, list[int]]:
        """An operation that comes to `x` times a factor: that, and the slopes of its results, which go back first."""
        slopes: list[int] = []

        def step(slope: int) -> int:
            slope += factor * sum(slopes)
            slopes.clear()
            return slope

        if self._steps is not None:
            self._steps.append(step)
        return factor * x, slopes

    def _come_back(self, future: tuple[int, list[int]], x: int) -> int:
        value, slopes = future

        def step(slope: int) -> int:
            slopes.append(slope)
            return slope

        if self._steps is not None:
            self._steps.append(step)
        return (x + value) % MODULUS

    def _print_grad(self, label: str, x: int) -> int:
        if self._steps is not None:
            self._steps.append(lambda slope: self._show_slope(label, slope))
        return x

    def _show_slope(self, label: str, slope: int) -> int:
        if self._goes_back:
            self._write(label, float(slope))
        return slope

    def _custom_rule(
        self,
        body: Callable[..., tuple[int, ...]],
        forward: Callable[..., tuple[int, ...]],
        backward: Callable[..., int],
        *state: int,
    ) -> tuple[int, ...]:
        steps = self._steps
        with self._held():
            after = (body if steps is None else forward)(*state)
        if steps is not None:
            steps.append(lambda slope: int(backward(float(slope), *state)))  # a whole number, whose zero has no sign
        return after

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """What is in there has no derivative."""
        steps, self._steps = self._steps, None
        yield
        self._steps = steps

    @contextlib.contextmanager
    def _dropped(self) -> Iterator[None]:
        """What is in there has one that nobody asks for."""
        steps, self._steps = self._steps, None if self._steps is None else []
        yield
        self._steps = steps

    def _differentiate(
        self, form: str, label: str, fun: Callable[..., tuple[int, ...]], *state: int
    ) -> tuple[int, ...]:
        around, went_back = self._steps, self._goes_back
        self._steps = steps = []
        after = fun(*state)
        self._steps, self._goes_back = None, form in BACKWARD
        if form in ("vjp", "linearize"):
            self._write(f"{label}.between", float(after[-1]))
        if form == "jacrev":  # of what it is, and of twice that
            slopes = self._in_lanes(2, lambda lane: self._back(steps, lane + 1))
        elif form == "hessian":
            seed = state[-1] + 1
            [slope] = self._in_lanes(1, lambda lane: self._back(steps, seed))
            slopes = [2 * (slope // seed)]
        else:
            slopes = [self._back(steps, 1)]
        self._steps, self._goes_back = around, went_back
        self._write(label, *map(float, slopes))
        return after


@dataclass(frozen=True)
class Happening:
    """What is to happen later, and in which program of a kernel's grid."""

    happens: Callable[[], object]
    grid: tuple[int, ...] | None
    log: Any = None
    passes: Passes | None = None
    device: int = EVERYWHERE  # of a region

    def __call__(self) -> None:
        self.happens()


def interpret(program: Program, state: Sequence[int], number: int = 0) -> tuple[tuple[int, ...], list[str]]:
    """The program's final state and its lines, found by running its source: no JAX takes part."""
    reading = Reading()
    return reading.interpret(program, state, number), reading.lines
