"""Notes of `effects run --collectives`: which device has not come to a collective or a program that others wait in."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from effects._model.wire import Kind
from effects.extensions.runs.reading import Event, Process, program_of


class Noted(NamedTuple):
    """What a device has come to, as the text of its note says.

    Attributes:
        name: A collective and its line, or a program and the line of its function.
        file: The file of that line.
        is_program: True for a program.
        groups: The groups of devices that take part together, as positions in `jax.devices()`; None if not known.
    """

    name: str
    file: str
    is_program: bool
    groups: tuple[tuple[int, ...], ...] | None

    def text(self) -> str:
        rest = json.dumps(self[1:], separators=(",", ":"))
        return f"{self.name}\n{rest}"

    @classmethod
    def read(cls, text: str) -> Noted | None:
        """What a note says; None for the name of an operation that the program itself has started."""
        name, is_note, rest = text.partition("\n")
        file, is_program, groups = json.loads(rest) if is_note else ("", False, None)
        return cls(name, file, is_program, groups and tuple(map(tuple, groups))) if is_note else None

    def group_of(self, device: int) -> tuple[int, ...]:
        """The devices that take part together with this one; itself alone if they are not known."""
        return next((group for group in self.groups or () if device in group), (device,))


class _Open(NamedTuple):
    text: str
    begun: float
    turn: int  # how often the device had come to this


@dataclasses.dataclass(slots=True, eq=False)
class _Device:
    process: Process
    last: str  # the text of the newest note
    turns: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    open: dict[Any, _Open] = dataclasses.field(default_factory=dict)  # by the operation's token
    done: dict[str, float] = dataclasses.field(default_factory=dict)  # when it last had the result


class Notes:
    """The notes of a run, from its events in the order of their times."""

    def __init__(self, processes: Sequence[Process]):
        self._processes = {process.number: process for process in processes}
        self._is_whole = not any(each.is_cut or each.torn or each.lost for each in processes)
        self._devices: dict[int, _Device] = {}  # by position in `jax.devices()`
        self._first: dict[int, float] = {}  # by process: the time of the oldest entry
        # By process, thread and number of the dispatch: name and time of a call, programs that have ended, their notes.
        self._calls: dict[Any, tuple[str, float]] = {
            (each.number, program): (name, 0.0) for each in processes for program, (name, _) in each.earlier.items()
        }
        self._ended: set[Any] = set()
        self._programs: dict[Any, str] = {}

    def add(self, event: Event) -> bool:
        """Adds an event. Returns True if it is a note."""
        number = event.process.number
        self._first.setdefault(number, event.time)
        if event.kind == Kind.DISPATCHED:
            self._calls[number, event.program] = event.text, event.time
        elif event.kind == Kind.ENDED:  # a program that failed has no results
            self._ended.add((number, event.program))
            for each in self._devices.values():
                if each.process is event.process:
                    each.open = {at: one for at, one in each.open.items() if program_of(at) != event.program}
        elif event.kind == Kind.OPERATION and (noted := Noted.read(event.text)) is not None:
            device = self._devices.setdefault(event.device, _Device(event.process, event.text))
            device.last = event.text
            device.turns[event.text] += 1
            device.open[event.token] = _Open(event.text, event.time, device.turns[event.text])
            if noted.is_program:
                self._programs[number, event.program] = event.text
            return True
        elif event.kind == Kind.OPERATION_DONE and (device := self._devices.get(event.device)) is not None:
            if (begun := device.open.pop(event.token, None)) is not None:
                device.done[begun.text] = event.time
                return True
        return False

    def awaited(self) -> list[dict[str, Any]]:
        """The collectives that devices have come to and have no result of, and the programs that have not ended though
        some process has not called them, each with the devices that have not come."""
        found = [*self._collectives(), *self._uncalled()]
        stuck = {each["device"] for of in found for each in of["waiting"]}
        behind = {each["device"] for of in found for each in of["missing"]}
        named: set[int] = set()
        for of in sorted(found, key=lambda of: (of["is_program"], of["begun"])):
            # A device that waits itself is not what the others wait for, unless all that have not come wait.
            missing = [each for each in of["missing"] if each["device"] not in (stuck if behind - stuck else ())]
            of["missing"] = [each for each in missing if each["device"] not in named]
            named |= {each["device"] for each in missing}
        return [of for of in found if of["missing"] or not of["is_program"]]

    def _collectives(self) -> Iterator[dict[str, Any]]:
        waiting = collections.defaultdict[Any, dict[int, _Open]](dict)
        for place, device in self._devices.items():
            for each in device.open.values():
                noted = Noted.read(each.text)
                assert noted is not None
                if not noted.is_program:
                    waiting[each.text, noted, noted.group_of(place)][place] = each
        for (text, noted, group), of in waiting.items():
            turn = max(each.turn for each in of.values()) if self._is_whole else 0
            here = {place: each for place, each in of.items() if each.turn >= turn}
            begun = min(each.begun for each in here.values())
            out = [at for at in group if at not in here and not self._has_come(at, text, noted, turn, begun)]
            yield self._report(noted, begun, [*here], out)

    def _has_come(self, place: int, text: str, noted: Noted, turn: int, begun: float) -> bool:
        """True if a device has come to what others came to for the `turn`-th time at the time `begun`, or may have.

        Where files have lost their beginning, nobody knows how often. A device that has a result of later than `begun`
        has come; one with an earlier result has not, as no device has one before all have come. Of a `ppermute` some
        have.
        """
        device = self._devices.get(place)
        if self._is_whole:
            return device is not None and device.turns[text] >= turn
        if device is None or (done := device.done.get(text)) is None:
            return self._first.get(self._owner(place), begun) > begun
        return done >= begun or noted.name.startswith("ppermute ")

    def _uncalled(self) -> Iterator[dict[str, Any]]:
        """Programs that a process has called more often than another one with devices of the program.

        XLA may run a collective of its partitioner's ahead of the note of the program's beginning. So the calls count,
        which the host notes."""
        texts: dict[str, set[str]] = collections.defaultdict(set)  # by the name in calls
        for key, text in self._programs.items():
            if key in self._calls:
                texts[self._calls[key][0]].add(text)
        turns = collections.Counter[Any]()  # by process and text
        newest: dict[Any, Any] = {}
        for key, (name, _) in self._calls.items():
            of_name = texts[name]
            if (text := self._programs.get(key) or (min(of_name) if len(of_name) == 1 else None)) is not None:
                turns[key[0], text] += 1
                newest[key[0], text] = key
        for (number, text), key in newest.items() if self._is_whole else ():
            noted, turn = Noted.read(text), turns[number, text]
            assert noted is not None
            group = noted.groups[0] if noted.groups else ()
            out = [at for at in group if turns[self._owner(at), text] < turn]
            if key not in self._ended and out:
                own = [at for at in group if self._owner(at) == number]
                yield self._report(noted, self._calls[key][1], own, out)

    def _report(self, noted: Noted, begun: float, here: Sequence[int], out: Sequence[int]) -> dict[str, Any]:
        known = [place for place in out if self._owner(place) in self._processes]
        return {
            "name": noted.name,
            "is_program": noted.is_program,
            "have_all_come": bool(noted.groups) and not out,
            "begun": begun,
            "waiting": [self._place(place) for place in sorted(here)],
            "missing": [self._place(place, last=self._last(place)) for place in known],
            "unknown": [self._place(place) for place in out if place not in known],
        }

    def _owner(self, place: int) -> int:
        """The number of the process that has a device."""
        if (device := self._devices.get(place)) is not None:
            return device.process.number
        owners = (each.owners[place] for each in self._processes.values() if place < len(each.owners))
        return next(owners, 0)

    def _last(self, place: int) -> str | None:
        device = self._devices.get(place)
        return None if device is None else device.last.partition("\n")[0]

    def _place(self, place: int, **more: Any) -> dict[str, Any]:
        return {"process": self._owner(place), "device": place, **more}
