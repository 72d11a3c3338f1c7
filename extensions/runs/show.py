"""`effects show`: the records of a run as text, as JSON, counted, or what each device came to last."""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import rich.cells
import rich.console
import rich.table
import rich.text

from effects import _errors as errors
from effects._model.record import Record, encode, plain, site_of
from effects._model.site import Site
from effects._model.wire import INDEX, PHASE, Kind
from effects.extensions.runs.reading import Event, Process, Run, RunError, read
from effects.extensions.runs.unshown import is_shown

UNWHOLE = "{path}: {what} left out."
UNSHOWN = "{records} not shown as in their program, each in a line that says why."
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="run", nargs="+", help="run files of the processes of one run, or their folder")
    parser.add_argument("--json", action="store_true", help="each record as a JSON object on a line of its own")
    parser.add_argument("--last", action="store_true", help="what each device came to last, and what has not ended")
    parser.add_argument("--stats", action="store_true", help="how many records each site has")
    parser.add_argument(
        "--strict", action="store_true", help="exit status 1 if a record is missing, or not shown as in its program"
    )
    add_selection(parser)
    parser.add_argument(
        "--since", type=float, metavar="s", help="seconds since 1970; if negative, seconds ahead of the newest record"
    )


def add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--site", metavar="line", help="a line, as train.py:31, or a file")
    parser.add_argument("--effect", metavar="name", help="an effect, as print")
    parser.add_argument("--device", type=int, metavar="n", help="a position in jax.devices()")
    parser.add_argument("--process", type=int, metavar="n", help="a number of a process")


def selected(run: Run, options: argparse.Namespace, since: float | None = None) -> Run:
    return run.select(options.site, effect=options.effect, device=options.device, process=options.process, since=since)


def run_command(options: argparse.Namespace) -> int:
    """Writes what is asked for. Returns the exit status: 0, or 2 if the run cannot be read."""
    jax.config.update("jax_platforms", "cpu")  # the process of the run, if it is still there, has the others
    try:
        run = selected(read(*options.runs), options, options.since)
    except RunError as error:
        print(error, file=sys.stderr)
        return 2
    writer = Writer(options.json)
    if options.last:
        print(last(run))
    elif options.stats:
        rows = stats(run)
        if options.json:
            print("\n".join(encode(row) for row in rows))
        else:
            table, console = _table(rows), rich.console.Console()
            console.width = max(console.width, least_width(table))
            console.print(table)
    else:
        writer.write(run)
    missing = [*_missing(run, writer.unshown)]
    for line in missing:
        print(line, file=sys.stderr)
    return 1 if options.strict and missing else 0


def _missing(run: Run, unshown: int) -> Iterator[str]:
    """Lines that say what is not shown, or otherwise than in its program."""
    for process in run.processes:
        counts = {"which are not whole": process.torn, "which found no room": process.lost}
        if what := ", ".join(f"{errors.counted(count, 'record')} {of}" for of, count in counts.items() if count):
            yield UNWHOLE.format(path=process.path, what=what)
    if unshown:
        yield UNSHOWN.format(records=errors.counted(unshown, "record"))


# All of them.


class Writer:
    """Writes records to the output.

    Args:
        as_json: Whether each is a line of JSON, and not of text.

    Attributes:
        unshown: How many there were whose text this process cannot make.
    """

    def __init__(self, as_json: bool):
        self._as_json = as_json
        self.unshown: int = 0
        with contextlib.suppress(AttributeError):
            sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] - a line is shown in any case

    def write(self, run: Run) -> None:
        """Writes the records of a run."""
        for lines in map(self._json, run) if self._as_json else run.lines(self._line):
            sys.stdout.write(lines)
        sys.stdout.flush()

    def _line(self, record: Record) -> str:
        self._count(record)
        return site_of(record).content.line(record)

    def _json(self, record: Record) -> str:
        self._count(record)
        return encode(record.dict_with(plain)) + "\n"

    def _count(self, record: Record) -> None:
        _ = record.text  # the attempt says whether it can be made
        self.unshown += not is_shown(record)


def stats(run: Run) -> list[dict[str, Any]]:
    """How many records each line has, how many of them there were a second, and which share of all that is."""
    lines: dict[tuple[Any, ...], list[Any]] = collections.defaultdict(list)
    for count in run.counts():
        site = count.site
        lines[site.where.file, site.where.line, site.effect.name, site.content.title].append(count)
    total = sum(count.number for counts in lines.values() for count in counts)
    rows = []
    for (file, line, effect, title), counts in lines.items():
        number = sum(count.number for count in counts)
        seconds = max(count.last for count in counts) - min(count.first for count in counts)
        rate = (number - 1) / seconds if seconds > 0 else None
        row = {"file": file, "line": line, "effect": effect, "what": title, "count": number}
        rows.append({**row, "each second": rate, "share": number / total})
    return sorted(rows, key=lambda row: -row["count"])


def _table(rows: list[dict[str, Any]]) -> rich.table.Table:
    table = table_of_sites("count", "each second", "share")
    for row in rows:
        rate = "" if row["each second"] is None else f"{row['each second']:,.0f}"
        place = f"{os.path.basename(row['file'])}:{row['line']}"
        add_row(table, place, row["effect"], row["what"], f"{row['count']:,}", rate, f"{row['share']:.1%}")
    return table


def table_of_sites(*columns: str, **options: Any) -> rich.table.Table:
    """A table of lines with these columns behind those that say which. On a narrow terminal texts are cut, and nothing
    else."""
    table = rich.table.Table(**options)
    for name in ("site", "effect", "what", *columns):
        is_cut = name in ("what", "last")
        table.add_column(name, no_wrap=not is_cut, min_width=_LEAST if is_cut else len(name))
    return table


_LEAST = 4
"""Columns of a terminal that a text has at least."""


def least_width(table: rich.table.Table) -> int:
    """Columns of a terminal that a table of lines takes at least."""
    return 1 + sum((column.min_width or 0) + 3 for column in table.columns)


def add_row(table: rich.table.Table, site: str, *cells: str) -> None:
    """Adds a line to a table of lines."""
    for column, cell in zip(table.columns, (site, *cells), strict=True):
        if column.no_wrap:
            column.min_width = max(column.min_width or 0, rich.cells.cell_len(cell))
    table.add_row(*(rich.text.Text(cell, no_wrap=True, overflow="ellipsis") for cell in (site, *cells)))


# What came last.


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
