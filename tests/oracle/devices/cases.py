"""Random sequences of programs on random devices: by number, and as a Hypothesis strategy."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.oracle.devices.generator import DeviceGenerator
from tests.oracle.devices.language import DeviceCase, Item, MeshRun, Outside
from tests.oracle.devices.loose import loose_regions
from tests.oracle.devices.placing import DEVICES, ENTRIES, Placing
from tests.oracle.devices.region import Region
from tests.oracle.expressions import Less, Literal
from tests.oracle.generator import Generator
from tests.oracle.language import (
    AWAITED,
    EAGER,
    EFFECTS,
    FEATURES,
    MODULUS,
    REGISTERS,
    Program,
    Run,
    kinds_of_labels,
    statements,
)
from tests.oracle.place import Draw, HypothesisDraw, RandomDraw
from tests.oracle.statements.callback import Callback
from tests.oracle.statements.effects import Fails


def _placing(draw: Draw, pmap: bool) -> Placing:
    count = draw.choice((2, 4, 8, 4, 2))
    numbers = list(range(DEVICES))
    chosen = []
    permuted = not pmap and draw.integer(0, 2) > 0
    for _ in range(count):
        chosen.append(numbers.pop(draw.integer(0, len(numbers) - 1) if permuted else 0))
    rows = draw.choice([rows for rows in (2, 1, 4) if count % rows == 0])
    explicit = not pmap and draw.integer(0, 4) == 4
    return Placing(tuple(chosen), rows, explicit, draw.choice(ENTRIES))


UNSAID = {"check", "switches"}  # the error of a check does not say what has it, and devices do not wait for others
UNNAMED = {"nested"}  # what a callback does has no thread's name


def _sequence(draw: Draw, prefix: str, size: int, features: frozenset[str], most: int) -> tuple[Item, ...]:
    """Dispatches of a few programs, on one device or on several, and what is between them."""
    failure = draw.choice(("none", "none", "exact"))
    programs: list[tuple[Program, bool | None]] = []  # with whether it has a `pmap`, if it is for several devices

    def program() -> tuple[Program, bool | None]:
        name = f"{prefix}{'ABCDEF'[len(programs)]}"
        if draw.integer(0, 3) == 3:
            made = Generator(draw, name, features, failure).program(max(2, size // 2))
            programs.append((made, None))
        else:
            pmap = draw.integer(0, 5) == 5
            made = DeviceGenerator(draw, name, features, failure, pmap).program(size)
            has_pmap = any(isinstance(s, Region) and s.form == "pmap" for s in statements(made))
            programs.append((made, has_pmap))
        return programs[-1]

    def run(number: int) -> Run:
        made, pmap = draw.choice(programs) if programs and draw.integer(0, 1) else program()
        fresh = number == 0 or draw.integer(0, 1) == 0
        state = tuple(draw.integer(0, MODULUS - 1) for _ in REGISTERS) if fresh else None
        calls = any(isinstance(s, Callback) or "async_host" in s.kinds() for s in statements(made))
        exported = not calls and not pmap and draw.integer(0, 1) == 1
        barrier, kinds = "", {*kinds_of_labels(made).values()}
        if "barriers" in features and not draw.integer(0, 3):
            barrier = draw.choice([name for name in AWAITED if kinds & {*AWAITED[name]}] or ["print"])
        if pmap is None:
            by_default = draw.integer(0, 2) == 2
            return Run(made, state, draw.integer(0, DEVICES - 1), by_default, exported, barrier=barrier)
        placing = draw.choice(placings) if placings and draw.integer(0, 1) and not pmap else _placing(draw, pmap)
        placings.append(placing)
        # An exported program runs where its arguments are.
        exported = exported and placing.entry in ("replicated", "sharded") and not placing.explicit
        return MeshRun(made, state, exported=exported, placing=placing, barrier=barrier)

    placings: list[Placing] = []
    items: list[Item] = []
    for number in range(draw.choice(range(1, most + 1))):
        items.append(run(number))
        if draw.integer(0, 3) == 3:
            kind = draw.choice(("", *EAGER)) if "jax" in features else ""
            items.append(Outside(f"{prefix}Z{number}", draw.integer(0, 9), kind))
        if draw.integer(0, 4) == 4:
            items.append(Outside(""))
    return tuple(items)


def case(draw: Draw, size: int, features: frozenset[str]) -> DeviceCase:
    features -= UNSAID
    if draw.integer(0, 7) == 7:
        count = draw.choice((2, 3))
        size = max(3, size // 2)
        return _known(DeviceCase(tuple(_sequence(draw, f"t{n}", size, features - UNNAMED, 3) for n in range(count))))
    made = _known(DeviceCase((_sequence(draw, "", size, features - {"context"}, 4),)))
    loose = any(loose_regions(run.program) for run in made.runs)
    order = "process" if draw.integer(0, 9) == 9 else "thread"
    return dataclasses.replace(made, capture=loose or draw.integer(0, 4) == 4, order=order)


def _known(case: DeviceCase) -> DeviceCase:
    """The case, without failures if it would not be known which effects come after one, or if XLA may end the process
    for one."""
    stops = case.after_error == "stop" and any(map(_fails_loosely, case.runs))
    return without_failures(case) if stops else case


def _fails_loosely(run: Run) -> bool:
    """True if a callback without an order fails, or any in a program with a loose region. Ahead of the region, too: a
    device whose next callback there is not called has failed, and one that has no more of them waits for it in a
    collective."""
    failing = [s for s in statements(run.program) if isinstance(s, Callback) and s.fails_at]
    return any(not EFFECTS[s.kind] for s in failing) or (bool(failing) and bool(loose_regions(run.program)))


def without_failures(tree: Any) -> Any:
    """The same, in which no callback raises, and no custom call fails."""
    if isinstance(tree, tuple):
        return tuple(map(without_failures, tree))
    if not dataclasses.is_dataclass(tree) or isinstance(tree, type):
        return tree
    changes = {field.name: without_failures(getattr(tree, field.name)) for field in dataclasses.fields(tree)}
    if isinstance(tree, Callback):
        changes["fails_at"] = 0
    if isinstance(tree, Fails):
        changes["test"] = Less(Literal(1), Literal(0))
    return dataclasses.replace(tree, **changes)


def case_number(seed: int, number: int, features: frozenset[str] = FEATURES) -> DeviceCase:
    """Case `number` of the bulk run with `seed`: the same on every machine."""
    rng = random.Random(f"devices:{seed}:{number}")
    return case(RandomDraw(rng), rng.randint(3, 9), features)


@st.composite
def cases(draw: Callable[[st.SearchStrategy[Any]], Any], max_size: int = 6) -> DeviceCase:
    """The hypothesis strategy for `check`."""
    return case(HypothesisDraw(draw), draw(st.integers(2, max_size)), FEATURES)
