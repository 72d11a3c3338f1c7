"""Random programs of which many prints have filters, which another thread changes between dispatches.

The lines that are shown, and the counts of `fx.sites`, must be those of a plain reading.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

from tests.oracle import cases, compare
from tests.oracle.devices import cases as device_cases
from tests.oracle.devices import compare as device_compare
from tests.oracle.devices.language import DeviceCase
from tests.oracle.language import CHANGES, FEATURES, Case, Run
from tests.oracle.observe import Outcome
from tests.oracle.place import RandomDraw
from tests.oracle.runners import library

_FEATURES = FEATURES - {"failures", "check", "rings"} | {"more_filters"}  # what fails may not come to all of its prints


def case_number(seed: int, number: int) -> Case | DeviceCase:
    """Case `number` of the bulk run with `seed`: by turns on one device at a time, and on several."""
    rng = random.Random(f"filters:{seed}:{number}")
    if number % 2:
        made = device_cases.without_failures(device_cases.case(RandomDraw(rng), rng.randint(3, 9), _FEATURES))
        if len(made.sequences) > 1:  # it would not be known which of a thread's dispatches a change is ahead of
            return made
        return dataclasses.replace(made, sequences=(_changed(rng, made.sequences[0]),))
    made = cases.generate_case(rng, _FEATURES)
    return dataclasses.replace(made, runs=_changed(rng, made.runs))


def _changed(rng: random.Random, items: Sequence[Any]) -> tuple[Any, ...]:
    """The same with changes of filters ahead of some dispatches."""
    return tuple(
        dataclasses.replace(item, change=rng.choice(CHANGES)) if isinstance(item, Run) and rng.random() < 0.5 else item
        for item in items
    )


def describe(case: Case | DeviceCase) -> str:
    return device_compare.describe(case) if isinstance(case, DeviceCase) else compare.describe(case)


def check(case: Case | DeviceCase) -> list[Outcome]:
    """Raises an AssertionError if anything, counts among it, is not as the reading has it."""
    return device_compare.check(case) if isinstance(case, DeviceCase) else [compare.check(case, library())]
