"""`effects show --last`: what each process, device and thread came to last, and what has not ended."""

from __future__ import annotations

import collections
import time
from collections.abc import Iterator
from typing import Any

from effects import _errors as errors
from effects._model.record import Record
from effects._model.site import Site
from effects._model.wire import INDEX, PHASE, Kind
from effects.extensions.runs.reading import Event, Run

RUNS = "{process} runs and records."
ENDED = "{process} ended its recording at {time}."
KILLED = "{process} was ended without closing its recording, whose newest entry is of {time}."
PROGRAM = "  The program `{name}` (thread {thread}, dispatch {epoch}), called {ago} before, has not ended."
FAILED = "    It has failed: {text}"
RETURNS_NOT = "    Its call has not returned."
BEHIND = "    {devices} {have} not come to {line}, where {others} {are}."
STANDS = "    {devices} came last to {line}, {ago} before."
CALLED_NOT = "    Process {process} has not called it; its newest call is dispatch {epoch}, `{name}`."
NOWHERE = "    No device has come to an effect of it."
CALLBACK = "  The callback `{name}` at {where} has run for {ago}."
OPERATION = "  Device {device} started `{name}` {ago} before, and does not have what it comes to."
BARRIER = "  Thread {thread} has waited in a barrier for {ago}."
NOTHING = "  Nothing had begun that had not ended. The newest record is {line}, {ago} before."


class _Program:
    """A program that has not ended."""

    def __init__(self, called: Event):
        self.called = called
        self.has_returned = False
        self.closed: set[tuple[int, int]] = set()  # by process and device
        self.failures: list[str] = []


def last(run: Run) -> str:
    """What each process, device and thread came to last, what had begun and not ended, and for how long."""
    programs: dict[Any, _Program] = {}
    calls: dict[tuple[int, int], _Program] = {}  # the newest of each process and thread
    begun: dict[Any, Event] = {}  # what else has not ended
    until: dict[int, float] = collections.defaultdict(float)
    for event in run.events():
        number, key = event.process.number, (event.process.number, *event.program)
        until[number] = max(until[number], event.time)
        if event.kind == Kind.DISPATCHED:
            programs[key] = calls[key[:2]] = _Program(event)
        elif event.kind in _SHOWN:
            begun[_place_of(event)] = event
        elif event.kind in _ENDS:
            begun.pop(_place_of(event), None)
        elif (program := programs.get(key)) is not None:
            program.has_returned |= event.kind == Kind.RETURNED
            program.failures += [event.text] * (event.kind == Kind.FAILED)
            if event.kind == Kind.CLOSE:
                program.closed.add((number, event.device))
                if len(program.closed) >= max(1, event.devices):
                    del programs[key]
    newest = [*run.newest()]
    for record in newest:
        until[record.process] = max(until[record.process], record.time)
    lines: list[str] = []
    for process in run.processes:
        end = time.time() if process.is_written else until[process.number]
        shown = f"Process {process.number}" if process.count > 1 else "The process"
        state = RUNS if process.is_written else ENDED if process.is_closed else KILLED
        lines.append(state.format(process=shown, time=time.strftime("%H:%M:%S", time.localtime(end))))
        unended = [each for key, each in programs.items() if key[0] == process.number]
        own = [*_shown_programs(unended, calls, newest, end)]
        for kind, text in _SHOWN.items():
            for (of, number, *_), each in begun.items():
                if (of, number) == (kind, process.number):
                    name = each.text if kind == Kind.OPERATION else _title(each.site)
                    place = {"where": _where(each.site), "device": each.device, "thread": each.program[0]}
                    own.append(text.format(name=name, ago=_ago(end, each.time), **place))
        mine = [record for record in newest if record.process == process.number]
        if not own and mine:
            record = max(mine, key=lambda record: record.time)
            own = [NOTHING.format(line=_place(record), ago=_ago(end, record.time))]
        lines += own
    return "\n".join(lines)


_SHOWN: dict[int, str] = {Kind.BEGUN: CALLBACK, Kind.OPERATION: OPERATION, Kind.BARRIER: BARRIER}
"""By what begins something beside programs: how it is shown while it has not ended."""

_ENDS: dict[int, Kind] = {Kind.DONE: Kind.BEGUN, Kind.OPERATION_DONE: Kind.OPERATION, Kind.BARRIER_DONE: Kind.BARRIER}


def _place_of(event: Event) -> tuple[Any, ...]:
    """What is the same when something begins and when it ends."""
    number, kind = event.process.number, _ENDS.get(event.kind, event.kind)
    if kind == Kind.BARRIER:
        return kind, number, event.program[0]
    return kind, number, event.token, event.device


def _shown_programs(
    programs: list[_Program], calls: dict[tuple[int, int], _Program], newest: list[Record], end: float
) -> Iterator[str]:
    for program in programs:
        called = program.called
        thread, epoch = called.program
        yield PROGRAM.format(name=called.text, thread=thread, epoch=epoch, ago=_ago(end, called.time))
        yield from (FAILED.format(text=text) for text in program.failures)
        if not program.has_returned:
            yield RETURNS_NOT
        for (process, of_thread), newer in calls.items():
            if of_thread == thread and newer.called.program[1] < epoch:
                name, number = newer.called.text, newer.called.program[1]
                yield CALLED_NOT.format(process=process, epoch=number, name=name)
        # Devices of other processes too: the program is one.
        here = [record for record in newest if (record.thread, record.token[1]) == called.program]
        at: dict[tuple[int, ...], list[Record]] = collections.defaultdict(list)
        for record in here:
            at[record.token[PHASE], record.token[INDEX], record.line].append(record)
        if not at:
            yield NOWHERE
        places = [at[place] for place in sorted(at)]
        for records in places:
            ago = _ago(end, max(record.time for record in records))
            yield STANDS.format(devices=_devices(records), line=_place(records[0]), ago=ago)
        if len(places) > 1:
            behind, first = [record for records in places[:-1] for record in records], places[-1]
            have, are = ("has" if len(behind) == 1 else "have"), ("is" if len(first) == 1 else "are")
            yield BEHIND.format(
                devices=_devices(behind), have=have, line=_place(first[0]), others=_devices(first).lower(), are=are
            )


def _devices(records: list[Record]) -> str:
    devices = sorted({(record.process, record.device) for record in records})
    several = len({record.process for record in records}) > 1
    names = [f"{device} of process {process}" if several else str(device) for process, device in devices]
    return f"Device {names[0]}" if len(names) == 1 else f"Devices {', '.join(names[:-1])} and {names[-1]}"


def _place(record: Record) -> str:
    text = errors.beginning(record.text)
    return f"the `{record.effect}` at {record.where} ({text})"


def _title(site: Site | None) -> str:
    return "?" if site is None else site.content.title


def _where(site: Site | None) -> str:
    return "a line that is not described" if site is None else str(site.where)


def _ago(end: float, begin: float) -> str:
    seconds = end - begin
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"
