"""The sequential reading of programs over several devices.

A region's block is run once for each device, in a thread for each so that they can talk. What is to happen is noted,
and then happens by its number in each device's own order.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.oracle.devices.loose import loose_regions, skipping_regions
from tests.oracle.language import DOMAINS, EFFECTS, MODULUS, PROGRAM_DOMAIN, Program, T, kinds_of_labels
from tests.oracle.python_ import Happening, Point, Reading, Step

if TYPE_CHECKING:
    from tests.oracle.devices.placing import Placing


class _Exchange:
    """Where the devices of a region talk to each other."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count)
        self.values = [0] * count

    def talk(self, rank: int, value: int) -> list[int]:
        self.values[rank] = value
        self.barrier.wait()
        values = list(self.values)
        self.barrier.wait()
        return values


class DeviceReading(threading.local, Reading):
    """The reading of programs over several devices. In a region each device has a thread, and so a reading, of its own,
    in which nothing happens yet."""

    def __init__(self, stops: bool = False) -> None:
        Reading.__init__(self, stops)
        self.devices: tuple[int, ...] = (0,)
        self._rows = 1  # of a mesh with two axes
        self.places: list[tuple[str, int] | None] = []  # of each line: of which loose region and device it is, if so
        self._loose: frozenset[str] = frozenset()
        self._skipping: frozenset[str] = frozenset()
        self._kinds: dict[str, str] = {}
        self._exchange = _Exchange(1)
        self._rank = 0
        self._is_in_region = False

    def run(self, program: Program, state: Sequence[int], number: int, placing: Placing | None) -> tuple[int, ...]:
        self.devices = (0,) if placing is None else placing.devices
        self._rows = 1 if placing is None else placing.rows
        self._kinds = kinds_of_labels(program)
        self._loose, self._skipping = loose_regions(program), skipping_regions(program)
        return self.interpret(program, state, number)

    def note_places(self) -> None:
        """Whatever was written since is of no loose region."""
        self.places += [None] * (len(self.lines) - len(self.places))

    def more_names(self, program: Program) -> dict[str, Any]:
        return {
            "array": np.array,
            "region": self._region,
            "shards": self._shards,
            "talk": lambda value: self._exchange.talk(self._rank, value),
            "neighbour": lambda: (self._rank - 1) % len(self.devices),
        }

    @contextlib.contextmanager
    def _alternatives(self, most: int | None) -> Iterator[None]:
        self._mark(_Mark(None))
        yield
        self._mark(_Mark(most))

    def _mark(self, mark: _Mark) -> None:
        if self._is_in_region and self._defers and not self._lane:
            self._position[-1] += 1
            self._points.append((tuple(self._position), (), "", mark))

    def _region(
        self,
        label: str,
        form: str,
        device: Callable[..., tuple[int, int]],
        turns: int,
        values: Sequence[int],
        *state: int,
    ) -> tuple[list[int], int]:
        with self._only(self._devices_of(form)), self._held() if turns > 1 else contextlib.nullcontext():
            results = [
                self._turn(label, device, [(value + turn) % MODULUS for value in values], *state)
                for turn in range(turns)
            ]
        return [sum(each) for each in zip(*(ys for ys, _ in results), strict=True)], (
            results[0][1] if turns == 1 else state[-1]
        )

    def _devices_of(self, form: str) -> tuple[int, ...]:
        """The devices that publish in a region: the first of each part, if it is over one axis; else all."""
        columns = len(self.devices) // self._rows
        if form == "rows":
            return self.devices[::columns]
        return self.devices[:columns] if form == "columns" else self.devices

    @contextlib.contextmanager
    def _only(self, devices: tuple[int, ...]) -> Iterator[None]:
        """There are no others."""
        before, self.devices = self.devices, devices
        try:
            yield
        finally:
            self.devices = before

    def _shards(self, values: Sequence[int], sharded: bool) -> list[tuple[int, str, np.ndarray]]:
        """What each device has of an array, by device; if all have the same, the first of them shows it."""
        if not sharded:
            return [(self.devices[0], f"[0:{len(values)}]", np.array(values))]
        each = len(values) // len(self.devices)
        starts = [(device, each * rank) for rank, device in enumerate(self.devices)]
        return [
            (device, f"[{start}:{start + each}]", np.array(values[start : start + each]))
            for device, start in sorted(starts)
        ]

    def _turn(
        self, label: str, device: Callable[..., tuple[int, int]], values: Sequence[int], *state: int
    ) -> tuple[list[int], int]:
        """The devices' results, and the sum of their `x`."""
        around, devices = self._steps, self.devices
        of_devices: list[list[Step]] = [[] for _ in devices]

        def run(rank: int) -> tuple[int, int]:
            self._steps = None if around is None else of_devices[rank]
            return device(rank, values[rank], *state)

        results = self._on_devices(label, run)
        if around is not None:

            def back(slope: int) -> int:
                with self._only(devices):
                    return sum(self._on_devices(label, lambda rank: self._back(of_devices[rank], slope)))

            around.append(back)
        return [result for result, _ in results], sum(x for _, x in results) % MODULUS

    def _on_devices(self, label: str, run: Callable[[int], T]) -> list[T]:
        """What the devices do happens when all have run: by its number in the device's own order, then by device."""
        self._position[-1] += 1
        devices, lane, goes_back, kinds = self.devices, self._lane, self._goes_back, self._kinds
        loose, skipping, axes, mapped = self._loose, self._skipping, self._axes, self._mapped
        exchange, errors = _Exchange(len(devices)), []
        results: dict[int, T] = {}
        points: dict[int, list[Point]] = {}

        def on_device(rank: int) -> None:
            self._lane, self._goes_back, self._defers, self._kinds = lane, goes_back, True, kinds
            self._loose, self._skipping, self._axes, self._mapped = loose, skipping, axes, mapped
            self._exchange, self._rank, self.devices, self._is_in_region = exchange, rank, devices, True
            try:
                results[rank] = run(rank)
                points[rank] = self._points
            except threading.BrokenBarrierError:
                pass
            except BaseException as error:
                errors.append(error)
                exchange.barrier.abort()

        threads = [threading.Thread(target=on_device, args=(rank,)) for rank in range(len(devices))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        for rank, of_part in points.items():
            for number, place, lane, label_of_effect, happens in self._numbered(of_part, label in skipping):
                noted: Any = functools.partial(self._on_device, label, devices[rank], happens)
                if isinstance(happens, Happening):
                    noted = dataclasses.replace(happens, happens=noted, device=devices[rank])
                # In a loose region lanes may be in branches that do not count the same: the line's place says more.
                # All lanes of an effect come ahead of another effect with the same number, as its record has them.
                name = label_of_effect.removeprefix("#").split(".", 1)[0]
                own = [*self._kinds].index(name) if name in self._kinds else -1
                at = (*self._position, *(place if label in loose else (number,)), devices[rank], own)
                self._points.append((at, lane, label_of_effect, noted))
        if not self._lane and not self._defers:
            self._let_happen()
        return [results[rank] for rank in range(len(devices))]

    def _numbered(
        self, points: list[Point], skips: bool
    ) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...], str, Callable[[], object]]]:
        """What a device or part does, each with its number and its place. Lanes share a number, but for those of a
        native call. If it `skips`, a branch has as many numbers as the longest of them."""
        begun: list[int] = []
        counts, before = collections.Counter[str](), dict[str, tuple[int, ...]]()  # by domain: each counts for itself
        for position, lane, label, happens in sorted(points, key=lambda point: point[:2]):
            if isinstance(happens, _Mark):
                if happens.most is not None and skips:
                    counts[PROGRAM_DOMAIN] = begun.pop() + happens.most
                elif skips:
                    begun.append(counts[PROGRAM_DOMAIN])
                continue
            kind = self._kinds.get(label.removeprefix("#").split(".", 1)[0], "unordered")
            domain = DOMAINS.get(kind, PROGRAM_DOMAIN)
            by_itself = kind in ("apart", "native")  # the call of a handler
            if EFFECTS[kind]:
                counts[domain] += position != before.get(domain) or by_itself
                before[domain] = position
            yield counts[domain], position, lane, label, happens

    def _on_device(self, label: str, device: int, happens: Callable[[], object]) -> None:
        self.note_places()
        happens()
        place = (label, device) if label in self._loose else None
        self.places += [place] * (len(self.lines) - len(self.places))


@dataclass(frozen=True)
class _Mark:
    """Where one of several branches begins, or ends, of which the longest has so many effects."""

    most: int | None

    def __call__(self) -> None:
        raise AssertionError("marks say what number an effect has")
