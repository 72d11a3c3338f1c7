"""`effects show`: the records of a run as text, as JSON or counted, or the last progress of each device."""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import jax

from effects import _errors as errors
from effects._model.record import Record, encode, plain, site_of
from effects.extensions.runs.last import last, last_of
from effects.extensions.runs.reading import Run, RunError, missing, read
from effects.extensions.runs.report import columns
from effects.extensions.runs.unshown import is_shown

UNSHOWN = "{records} not shown as in their program, each in a line that says why."


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument("runs", metavar="run", nargs="+", help="run files of the processes of one run, or their folder")
    parser.add_argument("--json", action="store_true", help="each record as a JSON object on a line of its own")
    parser.add_argument("--site", metavar="line", help="a line, as train.py:31, or a file")
    parser.add_argument("--effect", metavar="name", help="an effect, as print")
    parser.add_argument("--device", type=int, metavar="n", help="a position in jax.devices()")
    parser.add_argument("--process", type=int, metavar="n", help="a number of a process")


def selected(run: Run, options: argparse.Namespace, since: float | None = None) -> Run:
    return run.select(options.site, effect=options.effect, device=options.device, process=options.process, since=since)


def run_command(options: argparse.Namespace) -> int:
    """Writes the selected records or a report. Returns the exit status: 0, or 2 if the run cannot be read."""
    jax.config.update("jax_platforms", "cpu")  # the run's process may hold the other platforms
    try:
        run = selected(read(*options.runs), options, options.since)
    except RunError as error:
        print(error, file=sys.stderr)
        return 2
    if None is not (options.device if options.process is None else options.process) and not len(run._records):
        print("No record of the run is selected.", file=sys.stderr)
    writer = Writer(options.json)
    if options.last:
        print(encode(last_of(run)) if options.json else last(run))
    elif options.stats:
        rows = stats(run)
        if options.json:
            print("\n".join(encode(row) for row in rows))
        else:
            print("\n".join(_table(rows)))
    else:
        writer.write(run)
    lines = missing(run)
    if writer.unshown:
        lines.append(UNSHOWN.format(records=errors.counted(writer.unshown, "record")))
    for line in lines:
        print(line, file=sys.stderr)
    return 1 if options.strict and lines else 0


class Writer:
    """Writes records to the output.

    Args:
        as_json: True to write records as lines of JSON, not of text.

    Attributes:
        unshown: The number of records whose text this process cannot make.
    """

    def __init__(self, as_json: bool):
        self._as_json = as_json
        self.unshown: int = 0
        with contextlib.suppress(AttributeError):
            sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] - shown in any case

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
        _ = record.text  # `is_shown` is known after the attempt to make the text
        self.unshown += not is_shown(record)


def stats(run: Run) -> list[dict[str, Any]]:
    """Counts the records of each line, with their rate and their share of all records."""
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


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The lines of a table, cut at the terminal's width. Numbers and the names of files are never cut."""
    cells = [("line", "effect", "count", "each second", "share", "what")]
    for row in rows:
        rate = "" if row["each second"] is None else f"{row['each second']:,.0f}"
        place = f"{os.path.basename(row['file'])}:{row['line']}"
        cells.append((place, row["effect"], f"{row['count']:,}", rate, f"{row['share']:.1%}", row["what"]))
    for line, (*_, what) in zip(columns([row[:-1] for row in cells]), cells, strict=True):
        room = max(4, shutil.get_terminal_size().columns - len(line) - 2)
        yield f"{line}  {what if len(what) <= room else what[: room - 1] + '…'}"
