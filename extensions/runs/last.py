"""`effects show --last`: the last progress of each process, device and thread, and the parts under way."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator
from typing import Any

from effects import _errors as errors
from effects._model.record import Record
from effects._model.wire import INDEX, PHASE, PLAIN_THREAD, Kind
from effects.extensions.runs.collectives import Notes
from effects.extensions.runs.reading import Event, Process, Run

RUNS = "{process} runs and records."
ENDED = "{process} ended its recording at {time}."
KILLED = "{process} was ended without closing its recording, whose newest entry is of {time}."
MISSING = "  The file lacks {count} or more, so what is listed as not ended may have ended."
PROGRAM = "  The program `{name}` (thread {thread}, dispatch {dispatch}), {called}, {state}."
CALLED = "called {ago} before"
CALLED_EARLIER = "whose call came before the recording"
OVERWRITTEN = "whose call is not in the file any more"
UNENDED = "has not ended"
UNKNOWN = "had its last effect {ago} before and is not known to have ended"
FAILED = "    It has failed: {text}"
RETURNS_NOT = "    Its call has not returned."
BEHIND = "    {devices} {have} not come to {line}, where {others} {are}."
STANDS = "    {devices} came last to {line}, {ago} before."
CALLED_NOT = "    Process {process} has not called it; its newest call is dispatch {dispatch}, `{name}`."
NOWHERE = "    No device has come to an effect of it."
CALLBACK = "  The callback `{name}` at {line} has run for {least}{ago}."
OPERATION = "  Device {device} started `{name}` {ago} before, and does not have its result."
BARRIER = "  Thread {thread} has waited in a barrier for {least}{ago}."
AWAITED = "{devices} {have} not come to {name}, for which {others} {wait}; {it} came last to {last}."
UNBEGUN = (
    "{devices} {have} not begun {name}, which was called for {others} and has not ended; {it} came last to {last}."
)
WAITING = "{devices} {wait} for {name}."
NOTHING = (
    "  All calls have returned and had their effects, and the newest program of each thread has ended. The newest "
    "record is {line}, {ago} before."
)


def last(run: Run) -> str:
    """Reports how far each process, device and thread came, what had begun and not ended, and for how long."""
    is_alone = len(run.processes) == 1 and run.processes[0].count == 1
    of = last_of(run)
    lines = [_lines(process, is_alone) for process in of["processes"]]
    lines += [_lines_of_awaited(each, not is_alone) for each in of["awaited"]]
    return "\n".join(itertools.chain.from_iterable(lines))


def last_of(run: Run) -> dict[str, list[dict[str, Any]]]:
    """The same report for JSON: a dictionary for each process, and for each collective or program that devices noted
    and have no result of. Times are seconds since 1970."""
    found = _Found(run)
    return {"processes": [found.of(process) for process in run.processes], "awaited": found.notes.awaited()}


@dataclasses.dataclass(slots=True, eq=False)
class _Program:
    process: Process
    thread: int
    epoch: int
    name: str | None = None
    has_returned: bool = False
    called: Event | None = None  # None: before the recording, or not in the file any more
    closed: set[int] = dataclasses.field(default_factory=set)  # the devices that have finished it
    closed_at: float | None = None  # the time when the last of them did
    has_ended: bool = False
    is_noted: bool = False  # its devices have noted when they began it, and it closes after its results
    failures: list[str] = dataclasses.field(default_factory=list)

    def add(self, event: Event) -> None:
        if event.kind == Kind.CLOSE:
            self.closed.add(event.device)
            if len(self.closed) >= max(1, event.devices):
                self.closed_at = event.time
                self.has_ended |= self.is_noted
        elif event.kind == Kind.FAILED:
            self.failures.append(event.text)
        self.has_returned |= event.kind in (Kind.RETURNED, Kind.ENDED)
        self.has_ended |= event.kind == Kind.ENDED


class _Found:
    """The programs, callbacks, operations and barriers of a run, as its events tell."""

    def __init__(self, run: Run):
        self._programs: dict[Any, _Program] = {}  # by process, thread and number
        self._calls: dict[tuple[int, int], _Program] = {}  # by process and thread: the newest call
        self._launched: dict[tuple[int, int], _Program] = {}  # the program whose call returned last
        self._begun: dict[Any, Event] = {}  # callbacks, operations and barriers under way
        self._until: dict[int, float] = collections.defaultdict(float)  # by process: the time of the newest entry
        self.notes = Notes(run.processes)
        for event in run.events():
            self._add(event)
        self._count = len(run.processes)
        self._newest = [*run.newest()]
        processes = {process.number: process for process in run.processes}
        for record in self._newest:
            self._until[record.process] = max(self._until[record.process], record.time)
            self._program(processes[record.process], record.thread, record.token[1])

    def _add(self, event: Event) -> None:
        number = event.process.number
        self._until[number] = max(self._until[number], event.time)
        if self.notes.add(event):
            if (program := self._program(event.process, *event.program)) is not None:
                program.is_noted = True
            return
        if event.kind in _SHOWN:
            self._begun[_place_of(event)] = event
        elif event.kind in _ENDS:
            self._begun.pop(_place_of(event), None)
        elif (program := self._program(event.process, *event.program)) is not None:
            program.add(event)
            if event.kind == Kind.DISPATCHED:
                program.called, program.name = event, event.text
                self._calls[number, program.thread] = program
            elif event.kind == Kind.RETURNED:
                self._launched[number, program.thread] = program

    def _program(self, process: Process, thread: int, epoch: int) -> _Program | None:
        if thread == PLAIN_THREAD:  # the ends of programs that JAX dispatches are not recorded
            return None
        earlier = process.earlier.get((thread, epoch), ())
        return self._programs.setdefault((process.number, thread, epoch), _Program(process, thread, epoch, *earlier))

    def of(self, process: Process) -> dict[str, Any]:
        number = process.number
        programs = [each for each in self._programs.values() if each.process is process and not each.has_ended]
        launched = [each for (of, _), each in self._launched.items() if of == number]
        begun: dict[int, list[Event]] = {kind: [] for kind in _SHOWN}
        for event in self._begun.values():
            if event.process is process:
                begun[event.kind].append(event)
        mine = [record for record in self._newest if record.process == number]
        return {
            "process": number,
            "name": process.name,
            "path": process.path,
            "is_worker": process.run is None and self._count > 1,
            "state": "runs" if process.is_written else "ended" if process.is_closed else "killed",
            "time": time.time() if process.is_written else self._until[number],
            "missing": process.lost + process.torn,
            "programs": [
                self._shown(each)
                for each in programs
                if each.closed_at is None or not each.has_returned or each in launched
            ],
            "callbacks": [
                {
                    "name": "?" if each.site is None else each.site.content.title,
                    "line": "a line that is not described" if each.site is None else str(each.site.where),
                    "device": each.device,
                    "begun": each.time,
                }
                for each in begun[Kind.BEGUN]
            ],
            "operations": [
                {"name": each.text, "device": each.device, "begun": each.time} for each in begun[Kind.OPERATION]
            ],
            "barriers": [{"thread": each.program[0], "begun": each.time} for each in begun[Kind.BARRIER]],
            "newest": _place(max(mine, key=lambda record: record.time)) if mine else None,
        }

    def _shown(self, program: _Program) -> dict[str, Any]:
        job = program.process.run
        others = [
            each
            for (_, thread), each in self._calls.items()
            if thread == program.thread and job is not None and each.process.run == job and each.epoch < program.epoch
        ]
        # Devices of other processes count too, since they run the same program.
        here = [
            record
            for record in self._newest
            if (record.thread, record.token[1]) == (program.thread, program.epoch)
            and (record.process == program.process.number or job is not None)
        ]
        here.sort(key=lambda record: (record.token[PHASE], record.token[INDEX], record.line))
        return {
            "name": program.name,
            "thread": program.thread,
            "dispatch": program.epoch,
            "called": None if program.called is None else program.called.time,
            "is_earlier": program.called is None and program.name is not None,
            "has_returned": program.has_returned,
            "is_noted": program.is_noted,
            "closed": program.closed_at,
            "failures": program.failures,
            "not_called_by": [
                {"process": each.process.number, "dispatch": each.epoch, "name": each.called.text}
                for each in others
                if each.called is not None
            ],
            "devices": [_place(record) for record in here],
        }


def _lines(of: dict[str, Any], is_alone: bool) -> Iterator[str]:
    end = of["time"]
    name = f" (`{of['name']}`)" if of["is_worker"] else ""
    process = "The process" if is_alone else f"Process {of['process']}{name}"
    state = {"runs": RUNS, "ended": ENDED, "killed": KILLED}[of["state"]]
    yield state.format(process=process, time=time.strftime("%H:%M:%S", time.localtime(end)))
    if of["missing"]:
        yield MISSING.format(count=errors.counted(of["missing"], "record"))
    lines = [line for program in of["programs"] for line in _lines_of_program(program, end)]
    least = "" if of["state"] == "runs" else "at least "  # up to the newest entry
    for key, text in _SHOWN.values():
        lines += [text.format(least=least, ago=_ago(end, each["begun"]), **each) for each in of[key]]
    if not lines and (newest := of["newest"]) is not None:
        lines = [NOTHING.format(line=_shown_place(newest), ago=_ago(end, newest["time"]))]
    yield from lines


def _lines_of_program(of: dict[str, Any], end: float) -> Iterator[str]:
    called, closed = of["called"], of["closed"]
    yield PROGRAM.format(
        name=of["name"] or "?",
        thread=of["thread"],
        dispatch=of["dispatch"],
        called=CALLED.format(ago=_ago(end, called)) if called else CALLED_EARLIER if of["is_earlier"] else OVERWRITTEN,
        state=UNENDED if closed is None else UNKNOWN.format(ago=_ago(end, closed)),
    )
    yield from (FAILED.format(text=text) for text in of["failures"])
    if not of["has_returned"] and (called is not None or of["is_earlier"]):
        yield RETURNS_NOT
    yield from (CALLED_NOT.format(**each) for each in of["not_called_by"])
    places: dict[Any, list[dict[str, Any]]] = {}
    for each in of["devices"]:
        places.setdefault((each["token"][PHASE], each["token"][INDEX], each["line"]), []).append(each)
    if not places and closed is None and not of["is_noted"]:
        yield NOWHERE
    for devices in places.values():
        ago = _ago(end, max(each["time"] for each in devices))
        yield STANDS.format(devices=_devices(devices), line=_shown_place(devices[0]), ago=ago)
    *behind, first = [*places.values()] or [[]]
    if late := [each for devices in behind for each in devices]:
        have, are = ("has" if len(late) == 1 else "have"), ("is" if len(first) == 1 else "are")
        line, others = _shown_place(first[0]), _devices(first).lower()
        yield BEHIND.format(devices=_devices(late), have=have, line=line, others=others, are=are)


def _lines_of_awaited(of: dict[str, Any], with_process: bool) -> Iterator[str]:
    waiting, wait = of["waiting"], "waits" if len(of["waiting"]) == 1 else "wait"
    if not of["missing"]:
        yield WAITING.format(devices=_devices(waiting, with_process), wait=wait, name=of["name"])
    for (_, last), group in itertools.groupby(of["missing"], lambda each: (each["process"], each["last"])):
        have, it = ("has", "it") if len(missing := [*group]) == 1 else ("have", "they")
        yield (UNBEGUN if of["is_program"] else AWAITED).format(
            devices=_devices(missing, with_process),
            have=have,
            name=of["name"],
            others=errors.counted(len(waiting), "device"),
            wait=wait,
            it=it,
            last=last or "none",
        )


_SHOWN: dict[int, tuple[str, str]] = {
    Kind.BEGUN: ("callbacks", CALLBACK),
    Kind.OPERATION: ("operations", OPERATION),
    Kind.BARRIER: ("barriers", BARRIER),
}
"""By the event that begins something other than a program: its key in JSON, and its text while it has not ended."""

_ENDS: dict[int, Kind] = {Kind.DONE: Kind.BEGUN, Kind.OPERATION_DONE: Kind.OPERATION, Kind.BARRIER_DONE: Kind.BARRIER}


def _place_of(event: Event) -> tuple[Any, ...]:
    """A key that is the same when something begins and when it ends."""
    number, kind = event.process.number, _ENDS.get(event.kind, event.kind)
    if kind == Kind.BARRIER:
        return kind, number, event.program[0]
    return kind, number, event.token, event.device


def _devices(records: Iterable[dict[str, Any]], with_process: bool = False) -> str:
    devices = sorted({(record["process"], record["device"]) for record in records})
    processes = {process for process, _ in devices}
    names = [f"{device} of process {process}" if len(processes) > 1 else str(device) for process, device in devices]
    of_all = f" of process {processes.pop()}" if with_process and len(processes) == 1 else ""
    return (f"Device {names[0]}" if len(names) == 1 else f"Devices {', '.join(names[:-1])} and {names[-1]}") + of_all


def _place(record: Record) -> dict[str, Any]:
    return {
        "process": record.process,
        "device": record.device,
        "effect": record.effect,
        "line": str(record.where),
        "text": record.text,
        "token": [*record.token],
        "time": record.time,
    }


def _shown_place(of: dict[str, Any]) -> str:
    return f"the `{of['effect']}` at {of['line']} ({errors.beginning(of['text'])})"


def _ago(end: float, begin: float) -> str:
    seconds = end - begin
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"
