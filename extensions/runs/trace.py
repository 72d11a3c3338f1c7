"""`effects trace`: a run as a timeline, in the JSON that Perfetto and `chrome://tracing` read.

Calls and barriers of threads, programs on devices, and callbacks are slices, on tracks of their process. All slices are
in memory at once, as they are few; records are written one by one.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from effects import _removed
from effects._model.record import Record
from effects._model.site import Site
from effects._model.wire import ALL_DEVICES, EPOCH, PHASE, PLAIN_THREAD, STREAM, Kind, in_region, thread_of
from effects.extensions.runs.collectives import Note, is_note
from effects.extensions.runs.reading import Event, Run, RunError, read, tell_missing

MSG_OUTPUT = "The trace cannot be written to {path}: {why}. The output is a file of its own. Name another after `-o`."

_OPERATIONS = "asynchronous operations"
"""The track of asynchronous operations."""

_PER_SECOND = 1_000_000
"""Times are whole microseconds since 1970. Perfetto rounds decimals, and leaves out slices that then overlap."""

Program = tuple[int, tuple[int, int]]
"""A process, and in it a thread and the number of its dispatch."""


@dataclasses.dataclass(slots=True, eq=False)
class Slice:
    """Something that took some time: a "call", a "barrier", a "program" on a device, a "callback", or an asynchronous
    "operation", such as a collective that was noted."""

    kind: str
    track: tuple[int, str]  # the process, and the name of the track
    name: str
    start: int
    program: tuple[int, int]
    site: Site | None = None
    device: int = ALL_DEVICES
    end: int = 0  # 0: it has not ended
    is_unfinished: bool = False  # its end is the last known time
    row: int = 0  # the thread's number in the trace

    @property
    def duration(self) -> int:
        return max(self.end - self.start, 1)  # a clock may have been set back


class Timeline:
    """The slices of a run, by their start."""

    def __init__(self, run: Run):
        self.run = run
        self.slices: list[Slice] = []
        self.failures: list[Event] = []
        self.calls: dict[Program, Slice] = {}
        self.programs: dict[Program, dict[int, Slice]] = {}  # by device
        self._open: dict[Any, Slice] = {}
        self._operations: dict[Any, Slice] = {}  # by process, token and device
        self._last: dict[int, int] = {}  # by process: the last known time
        for event in run.events():
            self._add_event(event)
        for process in run.processes:
            # A run has a record that processes share once, for one of them. Each file has a copy.
            alone = run if len(run.processes) == 1 else read(process.path)
            alone.processes[0].number = process.number
            self._add_records(alone)
        self._close()
        self.slices.sort(key=lambda each: each.start)

    def _begin(self, key: Any, begun: Slice) -> Slice:
        self._open[key] = begun
        self.slices.append(begun)
        return begun

    def _end(self, key: Any, time: int) -> None:
        if (begun := self._open.pop(key, None)) is not None:
            begun.end = time

    def _add_event(self, event: Event) -> None:
        process, program, kind = event.process.number, event.program, event.kind
        time = self._time(process, event.time)
        call, thread = (process, program), f"thread {program[0]}"
        function = process, event.token, event.device, event.text
        if kind == Kind.DISPATCHED:
            self.calls[call] = self._begin(call, Slice("call", (process, thread), event.text, time, program))
        elif kind == Kind.RETURNED:
            self._end(call, time)
        elif kind == Kind.FAILED:
            self.failures.append(event)
            self._end(call, time)  # a call that raises has no RETURNED event
        elif kind == Kind.BARRIER:
            self._begin((process, thread), Slice("barrier", (process, thread), "barrier", time, program))
        elif kind == Kind.BARRIER_DONE:
            self._end((process, thread), time)
        elif kind == Kind.BEGUN and not event.text.endswith("held"):  # that is the done of an asynchronous function
            name = "callback" if event.site is None else event.site.content.title
            track = process, "callbacks"
            self._begin(function, Slice("callback", track, name, time, program, event.site, event.device))
        elif kind == Kind.DONE:
            self._end(function, time)
        elif kind == Kind.OPERATION:
            if program[0] != PLAIN_THREAD:  # all of JAX's own dispatches have one program number
                self._on_device(call, event.device, time)
            begun = Slice("operation", (process, _OPERATIONS), event.text, time, program, device=event.device)
            if is_note(event):
                if (note := Note.read(event.text)).is_program:  # which has a slice
                    return
                begun.name, begun.track = note.name, (process, f"device {event.device}: collectives")
            self._operations[process, event.token, event.device] = begun
            self.slices.append(begun)
        elif kind == Kind.OPERATION_DONE:
            # Each lane has an event of its end. An operation started before the recording has no event of its start.
            if (begun := self._operations.get((process, event.token, event.device))) is not None:
                begun.end = time
        elif kind == Kind.CLOSE:
            on_device = self._on_device(call, event.device, time)
            on_device.end = max(on_device.end, time)

    def _time(self, process: int, seconds: float) -> int:
        time = round(seconds * _PER_SECOND)
        self._last[process] = max(self._last.get(process, time), time)
        return time

    def _on_device(self, program: Program, device: int, time: int) -> Slice:
        """The slice of a program on a device, which begins at `time` or before."""
        devices = self.programs.setdefault(program, {})
        device = _first_of(devices, device)
        if device not in devices:
            call = self.calls.get(program)
            plain = "a program of JAX's" if program[1][0] == PLAIN_THREAD else "program"
            name = plain if call is None else call.name
            track = program[0], "all devices" if device < 0 else f"device {device}"
            devices[device] = Slice("program", track, name, time, program[1], device=device)
            self.slices.append(devices[device])
        devices[device].start = min(devices[device].start, time)
        return devices[device]

    def _add_records(self, run: Run) -> None:
        """Lets programs begin at their first record or before. Values of records are not read."""
        for process, (_, token, number, _, seconds) in run._parts():
            time, device = self._time(process.number, seconds), process.place(number) if number >= 0 else number
            program = process.number, (thread_of(token[STREAM]), token[EPOCH])
            self._on_device(program, device, time)
            if not in_region(token[PHASE]):  # all devices reach it, and the run has one record
                for each in self.programs[program].values():
                    each.start = min(each.start, time)

    def _close(self) -> None:
        """Ends the slices that have no end. A call that raised, or an interrupted barrier, ends at its thread's next
        event."""
        for event in self.failures:
            for each in self.programs.get((event.process.number, event.program), {}).values():
                each.end = each.end or max(round(event.time * _PER_SECOND), each.start)
        following: dict[tuple[int, str], int] = {}
        for each in reversed(self.slices):  # in the order of their events
            if not each.end:
                each.end = max(following.get(each.track, self._last[each.track[0]]), each.start)
                each.is_unfinished = each.track not in following
            if each.kind in ("call", "barrier"):
                following[each.track] = each.start


def _first_of(devices: dict[int, Slice], device: int) -> int:
    """The device; or the first of the program's devices, if all of them publish a record together."""
    return min(devices, default=device) if device < 0 else device


# As JSON


@_removed.without_arguments("effects.runs.trace", "profile")
def trace(run: Run, path: str | os.PathLike[str]) -> None:
    """Writes a timeline of a run for Perfetto (https://ui.perfetto.dev), as JSON of trace events.

    Each process of the run has a track for each thread that calls programs, for each device, for callbacks and for
    asynchronous operations. The numbers that `fx.log` was given are counters. Times are in microseconds since 1970.

    Args:
        run: A run, from `effects.runs.read`.
        path: The file, which is replaced.

    Raises:
        OSError: if the file cannot be written.

    Example:
        >>> import effects as fx, json, pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> with fx.record(folder / "run.fx"):
        ...     fx.jit(lambda x: fx.log("step", loss=x))(0.5)
        >>> fx.runs.trace(fx.runs.read(folder / "run.fx"), folder / "trace.json")
        >>> events = json.loads((folder / "trace.json").read_text())["traceEvents"]
        >>> [event["args"] for event in events if event["ph"] == "C"]
        [{'loss': 0.5}]
    """
    if any(os.path.realpath(each.path) == os.path.realpath(path) for each in run.processes):
        raise OSError("it is a file of the run")
    timeline, encode = Timeline(run), json.JSONEncoder(allow_nan=False).encode
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write('{"displayTimeUnit": "ns", "traceEvents": [')
        for at, event in enumerate(_trace_events(timeline)):
            file.write((",\n" if at else "\n") + encode(event))
        file.write("\n]}\n")


_INSTANT = {"ph": "i", "s": "t"}


def _trace_events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    has_several = len({device for devices in timeline.programs.values() for device in devices if device >= 0}) > 1
    rows: dict[tuple[int, str], list[tuple[int, int]]] = {}  # by track: each row's number, and when it is free
    numbers = itertools.count(1)
    for process in timeline.run.processes:
        name = f"process {process.number}: {' '.join(process.command)}"
        yield from _named(process.number + 1, None, name, process.number)
    for each in timeline.slices:
        known = rows.setdefault(each.track, [])
        free = next((at for at, (_, end) in enumerate(known) if end <= each.start), len(known))
        pid = each.track[0] + 1
        if free == len(known):
            known.append((next(numbers), 0))
            name = each.track[1] + (f" ({free + 1})" if free else "")
            yield from _named(pid, known[free][0], name, _ORDER.index(each.kind))
        each.row = known[free][0]
        known[free] = each.row, each.start + each.duration
        args: dict[str, Any] = {"thread": each.program[0], "dispatch": each.program[1]}
        args |= {"line": str(each.site.where)} if each.site is not None else {}
        args |= {"device": each.device} if each.kind == "operation" else {}
        args |= {"unfinished": True} if each.is_unfinished else {}
        name = f"{each.name} (unfinished)" if each.is_unfinished else each.name
        place = {"pid": pid, "tid": each.row, "ts": each.start, "dur": each.duration}
        yield {"ph": "X", "name": name, "cat": each.kind, **place, "args": args}
    for event in timeline.failures:
        process, time = event.process.number, round(event.time * _PER_SECOND)
        if (call := timeline.calls.get((process, event.program))) is not None:
            place = {"pid": process + 1, "tid": call.row, "ts": time}
            yield {**_INSTANT, "name": f"failed: {event.text}", "cat": "failure", **place}
    for record in timeline.run:
        devices = timeline.programs[record.process, (record.thread, record.token[EPOCH])]
        on_device = devices[_first_of(devices, record.device)]
        time = round(record.time * _PER_SECOND)
        place = {"pid": record.process + 1, "ts": time}
        args = {"effect": record.effect, "line": str(record.where), "token": record.token}
        args |= {"lane": record.lane} if record.lane else {}
        yield {**_INSTANT, "name": _text(record), "cat": "record", **place, "tid": on_device.row, "args": args}
        if record.event is not None:
            of = f" device {record.device}" if has_several and record.device >= 0 else ""
            of += f" lane {record.lane}" if record.lane else ""
            numbers = {field: _number(value) for field, value in record.fields.items()}
            if numbers := {field: number for field, number in numbers.items() if number is not None}:
                yield {"ph": "C", "name": f"{record.event}{of}", **place, "args": numbers}


_ORDER = ["call", "barrier", "program", "callback", "operation"]
"""The kinds of tracks from top to bottom."""


def _named(pid: int, tid: int | None, name: str, order: int) -> Iterator[dict[str, Any]]:
    of, place = ("process", {"pid": pid}) if tid is None else ("thread", {"pid": pid, "tid": tid})
    yield {"ph": "M", "name": f"{of}_name", **place, "args": {"name": name}}
    yield {"ph": "M", "name": f"{of}_sort_index", **place, "args": {"sort_index": order}}


def _text(record: Record) -> str:
    try:
        return record.text
    except Exception as error:  # a field that cannot be shown must not hide the others
        return f"{record.event or record.fmt or record.effect} <{error!r}>"


def _number(value: Any) -> float | None:
    """The value, if it is one number that JSON has: no field of another kind is a counter."""
    if isinstance(value, (np.ndarray, np.generic)) and value.shape == ():
        is_real = jnp.issubdtype(value.dtype, jnp.integer) or jnp.issubdtype(value.dtype, jnp.floating)
        value = float(value) if is_real else None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and abs(value) <= sys.float_info.max else None


# The command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="run", help="run files of one run, or the folder that has them")
    parser.add_argument(
        "-o", "--output", metavar="file", required=True, help="where the timeline goes, as JSON that Perfetto reads"
    )


def run_command(options: argparse.Namespace) -> int:
    """Writes a timeline. Returns the exit status: 0, or 2 if it cannot be written."""
    try:
        tell_missing(run := read(*options.runs))
        trace(run, options.output)
    except RunError as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:  # the output is a pipe whose reader has closed it
        raise
    except OSError as error:
        print(MSG_OUTPUT.format(path=options.output, why=error.strerror or error), file=sys.stderr)
        return 2
    return 0
