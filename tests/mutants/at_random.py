"""Slips at random places, each with the tests that come there."""

from __future__ import annotations

import dataclasses
import random
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.helpers import ROOT
from tests.mutants.command import Say, print_at_once, run
from tests.mutants.copy import Copy
from tests.mutants.lines import Lines
from tests.mutants.places import files_in, places
from tests.mutants.slip import Slip
from tests.native_program import NAMES

DEFAULT = ("lowering", "dispatch/calling", "dispatch/runtime", "dispatch/native/order")
TESTS = {  # by folder of the product: the files of tests that are to notice slips in there
    "lowering": (
        *("tests/lowering/**/test_*.py", "tests/transformations/test_*.py", "tests/dispatch/**/test_*.py"),
        *("tests/effects/callback/test_*.py", "tests/extensions/asynchronous/test_async_references.py"),
        *("tests/effects/log/test_log.py", "tests/extensions/export/test_platforms.py"),
    ),
    "extensions": ("tests/extensions/**/test_*.py",),
    "dispatch/runtime": (
        *("tests/dispatch/**/test_*.py", "tests/effects/**/test_*.py"),
        "tests/extensions/asynchronous/test_callbacks.py",
    ),
    "dispatch/calling": (
        *("tests/dispatch/**/test_*.py", "tests/extensions/custom_calls/test_*.py"),
        *("tests/lowering/test_library_jits.py", "tests/effects/callback/test_several_devices.py"),
    ),
    "dispatch": ("tests/dispatch/**/test_*.py",),
    "effects": ("tests/effects/**/test_*.py",),
}


def run_at_random(
    paths: Sequence[str],
    number: int,
    seed: int,
    budget: float,
    jobs: int = 1,
    tree: Path = ROOT,
    say: Say = print_at_once,
) -> int:
    """Tries so many slips, and returns the exit code of the command."""
    slips = with_tests(tree, choose(tree, paths, number, seed), budget, say)
    return run(slips, jobs, lambda folder: Copy(folder, tree), say, at_random=True)


def choose(tree: Path, paths: Sequence[str], number: int, seed: int) -> list[tuple[Slip, range]]:
    """So many slips, on different lines of these files and folders. `FILE:LINE` stands for all slips on one line."""
    lines: dict[str, list[tuple[Slip, range]]] = defaultdict(list)
    for path in paths:
        folder, _, line = path.partition(":")
        for file in files_in(tree, folder):
            for place in places(file, (tree / file).read_text()):
                if not line or place[0].name == path:
                    lines[place[0].name].append(place)
    if all(":" in path for path in paths):
        return [place for of_line in lines.values() for place in of_line]
    chance = random.Random(seed)
    chosen = chance.sample(list(lines), min(number, len(lines)))
    return [chance.choice(lines[name]) for name in sorted(chosen, key=list(lines).index)]


def with_tests(tree: Path, slips: Sequence[tuple[Slip, range]], budget: float, say: Say) -> list[Slip]:
    """The slips, each with the tests that come to its lines, for so many seconds."""
    files = {slip.file for slip, _ in slips if not slip.is_native}
    tests = dict.fromkeys(each for file in sorted(files) for each in _tests(file))
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        lines = Lines(Copy(Path(place).resolve(), tree).root, files, list(tests), say)
    return [
        dataclasses.replace(slip, tests=_native_tests(slip) if slip.is_native else lines.tests_of(slip, at, budget))
        for slip, at in slips
    ]


def _tests(file: str) -> Sequence[str]:
    return next((tests for folder, tests in TESTS.items() if file.startswith(f"{folder}/")), ())


def _native_tests(slip: Slip) -> tuple[str, ...]:
    """All, those first that are named like the source or its folder."""
    *_, folder, stem = Path(slip.file).with_suffix("").parts
    first = sorted(NAMES, key=lambda name: not name.startswith((f"{stem}_", f"{folder}_")))
    return tuple("tests/native/{}.cc::{}".format(*name.split(".")) for name in first)
