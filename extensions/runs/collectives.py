"""Notes of `effects run --collectives`: which device has not come to a collective or a program that others wait in."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from effects._model.wire import Kind
from effects.extensions.runs.reading import Event, Process, program_of


class Note(NamedTuple):
    """The collective or program that a device has come to.

    Attributes:
        name: A collective and its line, or a program and the line of its function.
        file: The file of that line.
        is_program: True for a program.
        groups: The groups of devices that take part together, as positions in `jax.devices()`.
    """

    name: str
    file: str
    is_program: bool
    groups: Sequence[Sequence[int]]

    def text(self) -> str:
        """The text of the note in a run file, where the first line is the name."""
        return f"{self.name}\n{json.dumps(self[1:], separators=(',', ':'))}"

    @classmethod
    def read(cls, text: str) -> Note:
        name, _, rest = text.partition("\n")
        return cls(name, *json.loads(rest))


def is_note(event: Event) -> bool:
    """True if an event is a note, and not the start of an operation of the user's program."""
    return event.kind == Kind.OPERATION and "\n" in event.text


class Notes:
    """The notes of a run, from its events in the order of their times."""

    def __init__(self, processes: Sequence[Process]):
        self._processes = {each.number: each for each in processes}
        self._owners = dict(enumerate(next((each.owners for each in processes if each.owners), [])))  # by device
        self._is_whole = not any(each.is_cut or each.torn or each.lost for each in processes)
        self._open: dict[Any, tuple[str, float]] = {}  # by device and token of the operation: the note and its time
        self._turns = collections.Counter[tuple[int, str]]()  # by device and note
        self._done: dict[tuple[int, str], float] = {}  # the same: when the device last had the result
        self._last: dict[int, str] = {}  # by device: the newest note
        self._first: dict[int, float] = {}  # by process: the time of the oldest entry
        # By process, thread and number of the dispatch: names of calls, notes of programs, and those that have ended.
        self._calls = {(each.number, of): name for each in processes for of, (name, _) in each.earlier.items()}
        self._programs: dict[Any, str] = {}
        self._ended: set[Any] = set()

    def add(self, event: Event) -> bool:
        """Adds an event. Returns True if it is a note."""
        self._first.setdefault(event.process.number, event.time)
        program, at = (event.process.number, event.program), (event.device, event.token)
        if event.kind == Kind.DISPATCHED:
            self._calls[program] = event.text
        elif event.kind == Kind.ENDED:
            self._ended.add(program)
        elif is_note(event):
            self._last[event.device] = event.text
            self._turns[event.device, event.text] += 1
            self._open[at] = event.text, event.time
            if Note.read(event.text).is_program:
                self._programs[program] = event.text
            return True
        elif event.kind == Kind.OPERATION_DONE and at in self._open:
            self._done[event.device, self._open.pop(at)[0]] = event.time
            return True
        return False

    def awaited(self) -> list[dict[str, Any]]:
        """Lists what devices wait for: collectives that they have come to and have no result of, and programs that have
        not ended and that some process has not called; each with the devices that have not come."""
        found = [*self._collectives(), *self._uncalled()]
        waiting = {place for of in found for place in of["waiting"]}
        missing = {place for of in found for place in of["missing"]}
        blamed = missing - waiting or missing  # a device that waits itself is not to blame
        for of in found:
            of["missing"] = [place for place in of["missing"] if place in blamed]
            blamed -= {*of["missing"]}
        return [
            {**of, "waiting": [*map(self._place, of["waiting"])], "missing": [*map(self._missing, of["missing"])]}
            for of in found
            if of["missing"] or not of["is_program"]
        ]

    def _collectives(self) -> Iterator[dict[str, Any]]:
        waiting = collections.defaultdict[Any, dict[int, float]](dict)
        for (place, token), (text, begun) in self._open.items():
            note, program = Note.read(text), (self._owners.get(place), program_of(token))
            for group in note.groups if not note.is_program and program not in self._ended else ():
                if place in group:
                    waiting[text, tuple(group)][place] = begun
        for (text, group), of in sorted(waiting.items(), key=lambda each: min(each[1].values())):
            turn = max(self._turns[place, text] for place in of)
            here = [place for place in of if self._turns[place, text] == turn or not self._is_whole]
            begun = min(of[place] for place in here)
            out = [at for at in group if at not in here and not self._has_come(at, text, turn, begun)]
            yield self._report(Note.read(text), here, out)

    def _has_come(self, place: int, text: str, turn: int, begun: float) -> bool:
        """True if a device has come, or may have, to a note that others reached for the `turn`-th time, at `begun`.

        If a file has lost its beginning, the counts of earlier notes are unknown. But no device has a result before all
        devices have come, except of a `ppermute`. So a device whose newest result is older than `begun` has not come.
        """
        if self._is_whole:
            return self._turns[place, text] >= turn
        may_be_lost = place not in self._last or self._first[self._owners[place]] > begun
        done = self._done.get((place, text), begun if may_be_lost else 0.0)
        return done >= begun or text.startswith("ppermute ")

    def _uncalled(self) -> Iterator[dict[str, Any]]:
        """Programs that a process has called more often than another one with devices of the program.

        Calls count, and not the notes of devices: XLA may run a collective of its partitioner's ahead of the note that
        the program has begun."""
        notes = collections.defaultdict[str, set[str]](set)  # by the name in calls
        for program, text in self._programs.items():
            notes[self._calls.get(program, "")].add(text)
        least, most = collections.Counter[Any](), collections.Counter[Any]()  # by process and note: calls
        newest: dict[Any, Any] = {}
        for program, name in self._calls.items():
            texts = {self._programs[program]} if program in self._programs else notes[name]
            keys = [(program[0], text) for text in texts]
            most.update(keys)
            if len(keys) == 1:
                least.update(keys)
                newest[keys[0]] = program
        for (process, text), program in newest.items():
            note = Note.read(text)
            group = note.groups[0] if self._is_whole and program not in self._ended else ()
            if out := [at for at in group if most[self._owners.get(at), text] < least[process, text]]:
                yield self._report(note, [at for at in group if self._owners.get(at) == process], out)

    def _report(self, note: Note, here: Iterable[int], out: Iterable[int]) -> dict[str, Any]:
        known = [place for place in out if self._owners.get(place) in self._processes]
        return {"name": note.name, "is_program": note.is_program, "waiting": sorted(here), "missing": known}

    def _place(self, place: int) -> dict[str, Any]:
        return {"process": self._owners.get(place), "device": place}

    def _missing(self, place: int) -> dict[str, Any]:
        last = self._last.get(place)
        return self._place(place) | {"last": last and Note.read(last).name}
