"""What is kept of every version of JAX, as the table of `docs/jax-tests.md`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tests.jax_suite.compare import Comparison, Runs


def table(runs: Runs) -> str:
    """The table in Markdown: a row for each file, and a column for each version with outcomes beside `runs`."""
    rows: dict[str, dict[Path, Comparison]] = {}
    versions = sorted(runs.results.parent.glob("jax-*"))
    totals = {version: Comparison() for version in versions}
    for version in versions:
        for plain in sorted(version.glob("*.jax.jsonl")):
            file = plain.name.partition(".")[0]
            kept = dataclasses.replace(runs, results=version).kept(file)
            rows.setdefault(file, {})[version] = kept
            totals[version].add(kept)
    lines = [["File", *(f"JAX {version.name.removeprefix('jax-')}" for version in versions)]]
    lines.append(["---"] * len(lines[0]))
    for file, of_versions in sorted(rows.items()):
        lines.append([f"`{file}.py`", *(_cell(of_versions.get(version)) for version in versions)])
    lines.append(["**all**", *(f"**{_cell(total)}, {total.percent:.2f} %**" for total in totals.values())])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(one: Comparison | None) -> str:
    if one is None:
        return ""
    return f"{one.passed} of {one.plain}" + " (in part)" * bool(one.unfinished)
