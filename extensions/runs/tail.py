"""`effects tail`: a run while it is written, as lines, as curves of fields, or as a table of sites."""

from __future__ import annotations

import argparse
import collections
import math
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import rich.console
import rich.live
import rich.table
import rich.text

from effects import _errors as errors
from effects._model.record import Record, site_of
from effects._model.whole import curve
from effects.extensions.runs.reading import Following, Run, RunError, tell_left_out
from effects.extensions.runs.show import Writer, add_row, add_selection, selected, table_of_sites

NO_FIELD = "No record has a field {field!r} with one number."

_INTERVAL = 0.25
"""Seconds between two looks at the file."""

_FIRST = 10
"""How many of the records that are there already are shown."""

_AT_ONCE = 1000
"""How many records of a look are plotted at most, and how many values a curve keeps."""

_LOOKS = 8
"""Over how many looks a rate is taken."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="run", nargs="+", help="run files of the processes of one run, or their folder")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="each record as a JSON object on a line of its own")
    how.add_argument("--plot", metavar="field", action="append", help="a curve of this logged field; may be repeated")
    how.add_argument("--sites", action="store_true", help="a table of lines with their counts and rates")
    add_selection(parser)


def run_command(options: argparse.Namespace) -> int:
    """Shows what comes until the recording ends. Returns the exit status: 0, or 2 if the run cannot be read."""
    jax.config.update("jax_platforms", "cpu")  # the process of the run has the others
    try:
        if options.sites:
            _watch(options, _Sites())
        elif options.plot:
            _watch(options, _Plot(options.plot))
        else:
            writer = Writer(options.json)
            for number, run in enumerate(_looks(options)):
                writer.write(run if number else run.last(_FIRST))
    except RunError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        pass
    return 0


def _looks(options: argparse.Namespace) -> Iterator[Run]:
    """What has come since the look before, until no process records any more."""
    following = Following(*options.runs)
    unmatched: RunError | None = None
    while True:
        run = following.look()
        try:
            yield selected(run, options)
            unmatched = None
        except RunError as error:  # the program may come to such a line later
            unmatched = error
        if not any(process.is_written for process in run.processes):
            break
        time.sleep(_INTERVAL)
    tell_left_out(run)
    if unmatched is not None:
        raise unmatched


def _watch(options: argparse.Namespace, view: _Plot | _Sites) -> None:
    """Shows a view of the whole run."""
    console = rich.console.Console()
    with rich.live.Live(view, console=console, auto_refresh=False) as live:
        for run in _looks(options):
            view.add(run)
            live.refresh()
    if not console.is_terminal:
        console.print()


class _Plot:
    """The newest values of fields, by line and process."""

    def __init__(self, fields: list[str]):
        self._fields = fields
        self._curves: dict[tuple[str, ...], collections.deque[float]] = {}

    def add(self, run: Run) -> None:
        for record in run.last(_AT_ONCE):
            for field in self._fields:
                value = record.fields.get(field)
                if value is not None and np.size(value) == 1 and np.isrealobj(value):
                    several = len(run.processes) > 1
                    key = (field, _line(record), *[f"process {record.process}"] * several)
                    values = self._curves.setdefault(key, collections.deque(maxlen=_AT_ONCE))
                    values.append(float(np.asarray(value).item()))

    def __rich_console__(self, console: rich.console.Console, options: rich.console.ConsoleOptions) -> Iterator[Any]:
        if not self._curves:
            yield NO_FIELD.format(field=self._fields[0])
            return
        table = rich.table.Table.grid(padding=(0, 2))
        width = max(8, options.max_width - max(len(" ".join(key)) for key in self._curves) - 40)
        for key, values in self._curves.items():
            shown = [*values][-width:]
            finite = [value for value in shown if math.isfinite(value)] or [math.nan]
            span = rich.text.Text(f"{min(finite):.4g} to {max(finite):.4g}", "dim")
            table.add_row(rich.text.Text(" ".join(key)), rich.text.Text(curve(shown)), f"{values[-1]:.4g}", span)
        yield table


class _Line(NamedTuple):
    file: str
    line: int
    effect: str
    title: str


class _Sites:
    """The lines of a run: how many records each has, how many come each second, and the newest one."""

    def __init__(self) -> None:
        self._counts: collections.Counter[_Line] = collections.Counter()
        self._newest: dict[_Line, str] = {}
        self._looks: collections.deque[tuple[float, collections.Counter[_Line]]] = collections.deque(maxlen=_LOOKS)

    def add(self, run: Run) -> None:
        for site in run.sites.values():
            self._counts[_line_of(site)] += 0
        for count in run.counts():
            self._counts[_line_of(count.site)] += count.number
        for record in run.last_of_sites():
            self._newest[_line_of(site_of(record))] = errors.beginning(record.text)
        self._looks.append((time.monotonic(), self._counts.copy()))

    def __rich_console__(self, console: rich.console.Console, options: rich.console.ConsoleOptions) -> Iterator[Any]:
        if not self._looks:
            return
        (begin, before), (now, counts) = self._looks[0], self._looks[-1]
        table = table_of_sites("count", "each second", "last", expand=True)
        for line in self._counts:
            rate = (counts[line] - before[line]) / (now - begin) if now > begin else 0.0
            shown = f"{os.path.basename(line.file)}:{line.line}", line.effect, line.title, f"{counts[line]:,}"
            add_row(table, *shown, f"{rate:,.0f}", self._newest.get(line, ""))
        yield table


def _line(record: Record) -> str:
    return f"{os.path.basename(record.where.file)}:{record.where.line}"


def _line_of(site: Any) -> _Line:
    return _Line(site.where.file, site.where.line, site.effect.name, site.content.title)
