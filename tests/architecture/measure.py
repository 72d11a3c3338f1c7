"""All that is measured of a tree, by the rows of the table."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.architecture import sources

HERE = Path(__file__).parent
PATHS = {
    "scan_print": "`fx.print` in a scan",
    "callback_result": "a callback's result",
    "error_in_call": "a callback's error, raised by the call",
    "error_at_barrier": "a callback's error, raised by the barrier",
}
"""By scenario of `paths.py`: what the table calls it."""

FILES, FUNCTIONS, CHANGES = "files entered", "functions called", "changes of package"
LATER = "the same, a later call"

WALKS = "walks over the outermost jaxpr of a program"
TRACES = "jaxprs that the passes trace for one scan"
REPLACED = "things of JAX's own that the import replaces"
ADDED = "rules that the import adds to primitives of JAX's"
REGISTERED = "registrations for primitives and types of the library's own"

STATEMENTS = "statements that assign into JAX"
STATEMENT_FILES = "files that have them"
WIRE = "places that know the wire"
WIRE_FILES = "files that know the wire"
QUESTIONS = "questions of which kind a content is"
QUESTION_FILES = "files that ask"
KIND = "files that name one kind of content"
LONG = f"files of more than {sources.LIMIT} lines in the packages"
LONG_BESIDE = "the same in tests, benchmarks and examples"


@dataclasses.dataclass
class Measured:
    """What was measured.

    Attributes:
        rows: The figures, by row.
        paths: By scenario: the calls of the caller's thread in order, and those of the drain's threads.
        jax: The version of JAX, if anything was run.
        details: What was counted.
    """

    rows: dict[str, int] = dataclasses.field(default_factory=dict)
    paths: dict[str, tuple[list[list[str]], list[list[str]]]] = dataclasses.field(default_factory=dict)
    jax: str = ""
    details: list[str] = dataclasses.field(default_factory=list)


def package_of(call: Sequence[str]) -> str:
    """The package of a call's function: the first folder of its file."""
    return call[0].split("/")[0]


def files_entered(calls: Sequence[Sequence[str]]) -> list[str]:
    """The files of calls, in the order in which they are entered first."""
    return list(dict.fromkeys(file for file, _ in calls))


def functions_called(calls: Sequence[Sequence[str]]) -> int:
    """How many functions are called, each counted once."""
    return len(set(map(tuple, calls)))


def changes_of_package(calls: Sequence[Sequence[str]]) -> int:
    """How often a call is of a function in another package than the call before it."""
    packages = list(map(package_of, calls))
    return sum(one != other for one, other in itertools.pairwise(packages))


def path_rows(scenario: str) -> list[str]:
    """The rows of a scenario."""
    calls = [PATHS[scenario], *([LATER] if scenario == "scan_print" else [])]
    return [f"{call}: {what}" for call in calls for what in (FILES, FUNCTIONS, CHANGES)]


OF_PATHS = [row for scenario in PATHS for row in path_rows(scenario)]
OF_RUNS = [*OF_PATHS, WALKS, TRACES, REPLACED, ADDED, REGISTERED]
"""Rows that are measured by running the tree. They may differ between versions of JAX."""

OF_SOURCES = [
    WIRE,
    WIRE_FILES,
    STATEMENTS,
    STATEMENT_FILES,
    QUESTIONS,
    QUESTION_FILES,
    KIND,
    LONG,
    LONG_BESIDE,
]
"""Rows that are counted in the text of the sources."""


def run_script(script: str, tree: Path, python: str, *arguments: str) -> dict[str, Any]:
    """Runs a script of this folder in a process of its own; returns what it has written."""
    # Without what this process was told of devices and the like, so that the same is measured everywhere.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_", "PYTHON"))}
    environment |= {"JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1"}
    if (compiled := os.environ.get("PYTHONPYCACHEPREFIX")) is not None:
        environment["PYTHONPYCACHEPREFIX"] = compiled
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        command = [python, "-P", str(HERE / script), str(tree), *arguments, out]
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"`{' '.join(command)}` has failed.\n{done.stderr}")
        return json.loads(Path(out).read_text(encoding="utf-8"))


def measure_path(tree: Path, scenario: str, python: str = sys.executable) -> Measured:
    """Measures one path."""
    result = run_script("paths.py", tree, python, scenario)
    calls = [result["first"], *([result["again"]] if "again" in result else [])]
    figures = [
        figure
        for some in calls
        for figure in (len(files_entered(some)), functions_called(some), changes_of_package(some))
    ]
    measured = Measured(dict(zip(path_rows(scenario), figures, strict=True)), jax=result["jax"])
    measured.paths[scenario] = result["first"], result["drain"]
    return measured


def measure_runs(tree: Path, python: str = sys.executable) -> Measured:
    """Measures what the tree does when it runs."""
    measured = Measured()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:  # each process waits for one thread or another
        of_walks = pool.submit(run_script, "paths.py", tree, python, "walks")
        of_changes = pool.submit(run_script, "patches.py", tree, python)
        for of_path in pool.map(lambda scenario: measure_path(tree, scenario, python), PATHS):
            measured.rows |= of_path.rows
            measured.paths |= of_path.paths
        walks, changes = of_walks.result(), of_changes.result()
    measured.jax = changes["jax"]
    measured.rows |= {
        WALKS: len(walks["walks"]),
        TRACES: len(walks["traces"]),
        REPLACED: len(changes["changed"]),
        ADDED: len(changes["added"]),
        REGISTERED: len(changes["own"]),
    }
    measured.details += [f"walk over the jaxpr: {file} {name}" for file, name in walks["walks"]]
    measured.details += [f"trace of a jaxpr: {file} {name}" for file, name in walks["traces"]]
    for key, what in (("changed", "replaced in JAX"), ("added", "added to JAX's"), ("own", "registered")):
        measured.details += [f"{what}: {holder} {name}" for holder, name in changes[key]]
    return measured


def measure_sources(tree: Path) -> Measured:
    """Counts what the sources of a tree have."""
    wire, changes, questions = sources.wire_places(tree), sources.changes_of_jax(tree), sources.questions_for_kind(tree)
    of_kinds = sources.files_by_kind(tree)
    long = sources.long_files(tree, sources.PACKAGES)
    long_beside = sources.long_files(tree, ("tests", "benchmarks", "examples"))
    rows = {
        WIRE: len(wire),
        WIRE_FILES: len({found.file for found in wire}),
        STATEMENTS: sum(len(found.lines) for found in changes),
        STATEMENT_FILES: len(changes),
        QUESTIONS: sum(len(found.lines) for found in questions),
        QUESTION_FILES: len(questions),
        KIND: max(map(len, of_kinds.values()), default=0),
        LONG: len(long),
        LONG_BESIDE: len(long_beside),
    }
    details = [str(found) for found in (*wire, *changes, *questions, *long, *long_beside)]
    details += [f"names the kind {kind}: {file}" for kind, files in of_kinds.items() for file in files]
    return Measured(rows, details=details)


def measure(tree: Path, python: str = sys.executable) -> Measured:
    """Measures a tree, which `python` must be able to import."""
    runs, counted = measure_runs(tree, python), measure_sources(tree)
    runs.rows |= counted.rows
    runs.details += counted.details
    return runs
