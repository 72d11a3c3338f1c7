"""The table and the figures of `docs/architecture.md`: made from what was measured, written, and read again.

The document holds the figures from before the refactoring as data: a column of its table, and figures of their own.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.architecture.measure import (
    OF_RUNS,
    OF_SOURCES,
    PATHS,
    Measured,
    files_entered,
    functions_called,
    package_of,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "architecture.md"
COLUMNS = ("before", "after")
UNKNOWN = "—"

Cells = dict[str, tuple[str, str]]
"""The table: by row, what there was before and what there is after."""


def read_table(text: str) -> Cells:
    """The table of the document."""
    cells: Cells = {}
    for line in _section(text, "table").splitlines():
        parts = [part.strip() for part in line.strip().strip("|").split("|")]
        if len(parts) == 3 and parts[0] in (*OF_RUNS, *OF_SOURCES):
            cells[parts[0]] = parts[1], parts[2]
    return cells


def read_jax(text: str) -> str:
    """The version of JAX with which the column `after` was measured; empty if it was not measured yet."""
    found = re.search(r"<!-- measured with JAX (\S*) -->", text)
    return found[1] if found else ""


def minor(version: str) -> str:
    """A version up to its second number."""
    return ".".join(version.split(".")[:2])


def make_table(cells: Mapping[str, tuple[str, str]]) -> str:
    """The table as Markdown."""
    lines = ["| | before | after |", "|---|---:|---:|"]
    for row in (*OF_RUNS, *OF_SOURCES):
        before, after = cells.get(row, (UNKNOWN, UNKNOWN))
        lines.append(f"| {row} | {before} | {after} |")
    return "\n".join(lines)


def with_column(cells: Mapping[str, tuple[str, str]], column: str, measured: Measured) -> Cells:
    """The table with one column as it was measured."""
    at = COLUMNS.index(column)
    result: Cells = {}
    for row in (*OF_RUNS, *OF_SOURCES):
        both = list(cells.get(row, (UNKNOWN, UNKNOWN)))
        both[at] = str(measured.rows.get(row, UNKNOWN))
        result[row] = both[0], both[1]
    return result


def make_figure(caller: Sequence[Sequence[str]], drain: Sequence[Sequence[str]]) -> str:
    """The files of a path, in the order in which the caller's thread enters them first, a line for each stay in a
    package; then those that only the drain's threads enter."""
    lines = [f"{len(caller)} calls of {functions_called(caller)} functions in the caller's thread", ""]
    entered = files_entered(caller)
    for thread, files in (("caller", entered), ("drain", sorted(set(files_entered(drain)) - set(entered)))):
        stays: list[tuple[str, list[str]]] = []
        for file in files:
            package = package_of([file])
            if not stays or stays[-1][0] != package:
                stays.append((package, []))
            stays[-1][1].append(re.sub(r"^[^/]*/|\.py$", "", file))
        for at, (package, names) in enumerate(stays):
            start = f"{thread if at == 0 else '':8}{package:10}"
            lines += textwrap.wrap(", ".join(names), 110, initial_indent=start, subsequent_indent=" " * len(start))
    return "\n".join(lines)


def write(text: str, column: str, measured: Measured) -> str:
    """The document with one column, and the figures that belong to it, as they were measured."""
    text = _replace(text, "table", make_table(with_column(read_table(text), column, measured)))
    for scenario in PATHS:
        figure = make_figure(*measured.paths[scenario])
        text = _replace(text, f"{scenario} {column}", f"```text\n{figure}\n```")
    if column == "after":
        text = re.sub(r"<!-- measured with JAX \S* -->", f"<!-- measured with JAX {minor(measured.jax)} -->", text)
    return text


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"


def _section(text: str, name: str) -> str:
    begin, end = _marks(name)
    return text.split(begin)[1].split(end)[0]


def _replace(text: str, name: str, content: str) -> str:
    begin, end = _marks(name)
    start, rest = text.split(begin)
    return f"{start}{begin}{content}\n{end}{rest.split(end, 1)[1]}"
