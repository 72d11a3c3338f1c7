"""`effects show`: the records of a run as text, as JSON, counted, or what each device came to last."""

from __future__ import annotations

import argparse
import collections
import os
import sys
from collections.abc import Iterator
from typing import Any

import jax
import rich.console
import rich.markup
import rich.table

from effects import _errors as errors
from effects._model.content import NativeText
from effects._model.line import parts_of_line
from effects._model.record import Record, after_shard, encode, plain, site_of
from effects._model.text import NativeRows, text_plan
from effects.extensions.runs.last import last, last_of
from effects.extensions.runs.reading import Process, Run, RunError, read, tell_left_out

UNWHOLE = "{path}: {what} left out."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="run", nargs="+", help="run files of the processes of one run, or their folder")
    parser.add_argument("--json", action="store_true", help="each record as a JSON object on a line of its own")
    parser.add_argument("--last", action="store_true", help="what each device came to last, and what has not ended")
    parser.add_argument("--stats", action="store_true", help="how many records each site has")
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
    tell_left_out(run)
    for process in run.processes:
        if what := _left_out(process):
            print(UNWHOLE.format(path=process.path, what=what), file=sys.stderr)
    try:
        if options.last:
            print(encode({"processes": last_of(run)}) if options.json else last(run))
        elif options.stats:
            rich.console.Console().print(stats(run))
        else:
            for lines in json_lines(run) if options.json else text_lines(run):
                sys.stdout.write(lines)
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _left_out(process: Process) -> str:
    counts = {
        "which are not whole": process.torn,
        "which found no room": process.lost,
        "of unknown sites": process.unknown,
    }
    return ", ".join(f"{errors.counted(count, 'record')} {what}" for what, count in counts.items() if count)


# All of them.


def line_of(record: Record) -> str:
    """A record as a line: a print as it was printed, others behind their level or effect."""
    content = site_of(record).content
    if record.level is None and isinstance(content, NativeText) and content.writes_text:
        return f"{after_shard(record, record.text)}\n"
    name, text, where = parts_of_line(record)
    return f"{name:<8} {text} {where}\n"


def text_lines(run: Run) -> Iterator[str]:
    """The records as text, many at a time."""
    return run.map(NativeRows(lambda site: text_plan(site, line_of)), line_of)


def json_lines(run: Run) -> Iterator[str]:
    """The records as lines of JSON."""
    return (encode(record.dict_with(plain)) + "\n" for record in run)


def stats(run: Run) -> rich.table.Table:
    """How many records each line has, how many of them there were a second, and which share of all that is."""
    lines: dict[tuple[str, str, str], list[Any]] = collections.defaultdict(list)
    for count in run.counts():
        where = count.site.where
        line = f"{os.path.basename(where.file)}:{where.line}"
        lines[line, count.site.effect.name, count.site.content.title].append(count)
    total = sum(count.number for counts in lines.values() for count in counts)
    table = rich.table.Table("site", "effect", "what", "count", "each second", "share")
    for line, counts in sorted(lines.items(), key=lambda each: -sum(count.number for count in each[1])):
        number = sum(count.number for count in counts)
        seconds = max(count.last for count in counts) - min(count.first for count in counts)
        rate = f"{(number - 1) / seconds:,.0f}" if seconds > 0 else ""
        table.add_row(*map(rich.markup.escape, line), f"{number:,}", rate, f"{number / total:.1%}")
    return table
