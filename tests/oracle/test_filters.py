"""Some of the programs of `python -m tests.oracle --filters`, and what it must notice."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.forks import run_forked
from tests.oracle import compare
from tests.oracle.expressions import Name
from tests.oracle.language import Program, Run
from tests.oracle.runners import library
from tests.oracle.statements.control import Fori
from tests.oracle.statements.effects import Filtered

SAMPLE = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
from tests.oracle import filters

for number in range(4):
    filters.check(filters.case_number(0, number))
print("done")
"""


def test_counts_and_lines_of_random_programs_are_those_of_a_reading() -> None:
    """Random programs run on one device and on several, from one thread and from several, while filters are changed."""
    done = run_forked(SAMPLE)
    assert done.stdout.endswith("done\n"), done.stdout[-3000:] + done.stderr[-3000:]


SHOWS = Program((), (Fori("i", 4, 4, (Filtered("shows", (Name("n"), Name("i")), 2, 0, False, None),)),))
RUNS = [Run(SHOWS, (1, 2, 3), change=change) for change in ("", "off", "on", "level warning", "every 3")]


def test_change_counts_from_the_next_dispatch_on() -> None:
    """Hidden prints count as shown ones do, and a level replaces that of the logger."""
    outcome = compare.check(RUNS)
    assert outcome.lines == ["shows 0 0", "shows 0 2", "shows 2 0", "shows 2 2"]
    assert outcome.counts == {"shows": (20, 4)}


WRONG: dict[str, dict[str, Any]] = {
    "a count": {"counts": lambda: {"shows": (20, 5)}},
    "no count": {"counts": dict},
    "a change": {"change": lambda how: None},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_reported(name: str) -> None:
    """A count that is not the reading's, and a change that does nothing."""
    with pytest.raises(AssertionError, match=r"`fx.sites` counts|\+shows 1 0"):
        compare.check(RUNS, dataclasses.replace(library(), **WRONG[name]))
