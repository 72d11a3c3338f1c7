"""`python -m tests.architecture`; see the package."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.architecture import document
from tests.architecture.measure import Measured, measure


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.architecture", description=document.__doc__)
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[2], help="the checkout to measure")
    parser.add_argument("--python", default=sys.executable, help="an interpreter in which it is installed")
    parser.add_argument("--before", type=Path, help="a checkout from before the refactoring, measured too")
    parser.add_argument("--before-python", default=sys.executable, help="an interpreter in which that is installed")
    parser.add_argument("--markdown", action="store_true", help="print the table as the document has it")
    parser.add_argument("--places", action="store_true", help="list what was counted")
    parser.add_argument("--write", action="store_true", help="write what was measured into docs/architecture.md")
    parser.add_argument("--column", choices=document.COLUMNS, default="after", help="which column the tree is")
    options = parser.parse_args()

    text = document.DOCUMENT.read_text(encoding="utf-8")
    columns = {options.column: measure(options.tree.resolve(), options.python)}
    if options.before is not None:
        columns["before"] = measure(options.before.resolve(), options.before_python)
    for column, measured in columns.items():
        text = document.write(text, column, measured)
    if options.places:
        show_places(columns)
    show(document.read_table(text), options.markdown)
    if options.write:
        document.DOCUMENT.write_text(text, encoding="utf-8")


def show_places(columns: dict[str, Measured]) -> None:
    for column, measured in columns.items():
        for detail in measured.details:
            print(f"{column}: {detail}")


def show(cells: document.Cells, as_markdown: bool) -> None:
    if as_markdown:
        print(document.make_table(cells))
        return
    table = Table("", *document.COLUMNS)
    for row, figures in cells.items():
        table.add_row(row, *figures)
    Console().print(table)


main()
