"""`effects show`: the records of a run as text, as JSON, counted, or what each device came to last."""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import jax
import rich.cells
import rich.console
import rich.table
import rich.text

from effects import _errors as errors
from effects._model.record import Record, encode, plain, site_of
from effects.extensions.runs.last import last, last_of
from effects.extensions.runs.reading import Run, RunError, read
from effects.extensions.runs.unshown import is_shown

UNWHOLE = "{path}: {what} left out."
UNSHOWN = "{records} not shown as in their program, each in a line that says why."


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
        print(encode({"processes": last_of(run)}) if options.json else last(run))
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
    yield from run.left_out
    for process in run.processes:
        if process.torn:
            yield UNWHOLE.format(
                path=process.path, what=f"what is not whole in {errors.counted(process.torn, 'place')}"
            )
        if process.lost:
            yield UNWHOLE.format(path=process.path, what=f"{errors.counted(process.lost, 'record')} without room")
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
