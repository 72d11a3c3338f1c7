"""Random sequences of programs: by number, for campaigns, and as a Hypothesis strategy, which shrinks what it finds."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.oracle.generator import Generator
from tests.oracle.language import (
    AWAITED,
    EAGER,
    FEATURES,
    MODULUS,
    REGISTERS,
    Case,
    Program,
    Run,
    kinds_of_labels,
    statements,
)
from tests.oracle.place import Draw, HypothesisDraw, RandomDraw
from tests.oracle.rings import KEEPS_ALL, RINGS
from tests.oracle.statements.asynchronous import InFlight
from tests.oracle.statements.callback import Callback
from tests.oracle.statements.effects import Fails


def _case(draw: Draw, size: int, features: frozenset[str], generator: type[Generator] = Generator) -> Case:
    """One to four dispatches: a program, then the same again or a smaller one; after one that may fail one more."""
    rings = draw.choice((*[""] * 9, *RINGS)) if "rings" in features else ""
    if rings.startswith("drop"):
        features -= KEEPS_ALL
    failures = (*["none"] * 5, *["exact"] * 4, "loose", *["native"] * ("native_fails" in features))
    failure = draw.choice(failures) if "failures" in features else "none"
    if failure == "native":
        features -= {"check"}  # whose errors `sync` would raise with those of custom calls

    def program(size: int) -> Program:
        made = generator(draw, "ABCDEFGH"[len(programs)], features, failure).program(size)
        programs.append(made)
        return made

    def run(program: Program, fresh: bool) -> Run:
        state = tuple(draw.integer(0, MODULUS - 1) for _ in REGISTERS) if fresh else None
        # Neither a function can travel with a program nor JAX's interpreter of kernels for TPUs.
        calls = any(isinstance(s, Callback | InFlight) or getattr(s, "cores", 0) for s in statements(program))
        barrier = ""
        kinds = {*kinds_of_labels(program).values()}
        if "barriers" in features and not rings and not draw.integer(0, 1 if "queued_apart" in kinds else 3):
            barrier = draw.choice([name for name in AWAITED if kinds & {*AWAITED[name]}] or ["print"])
        exported = "export" in features and not calls and draw.integer(0, 2) == 2
        if not on_devices or draw.integer(0, 1) == 0:
            run = Run(program, state, exported=exported)
        else:
            run = Run(program, state, draw.integer(0, 3), draw.integer(0, 2) == 2, exported)
        held = bool(barrier) and failure == "none" and barrier != "apart_print" and _may_be_held(program)
        eager = draw.choice(("", "", "", *EAGER)) if "jax" in features and not rings and not held else ""
        return dataclasses.replace(run, barrier=barrier, held=held, eager=eager)

    programs: list[Program] = []
    on_devices = "devices" in features and draw.integer(0, 3) == 3
    program(size)
    runs: list[Run] = []
    for number in range(draw.choice((4, 6, 8) if rings.startswith("drop") else (1, 2, 3, 4))):
        again = number == 0 or draw.integer(0, 3) < 3
        chosen = draw.choice(programs) if again else program(max(2, size // 2))
        runs.append(run(chosen, number == 0 or draw.integer(0, 1) == 0))
    if any(isinstance(s, Fails) or getattr(s, "fails_at", 0) for s in statements(tuple(programs))):
        runs.append(run(draw.choice(programs), False))
    after_error = "go_on" if draw.integer(0, 2) == 2 or any(map(_races, programs)) else "stop"
    return Case(
        tuple(runs),
        "process" if "process" in features and draw.integer(0, 9) == 9 else "thread",
        draw.integer(0, 2) == 2 and "capture" in features,
        "context" in features and draw.integer(0, 1) == 1,
        failure == "native",  # else a later call might raise the error
        after_error,
        rings,
    )


def _may_be_held(program: Program) -> bool:
    """Whether there are functions that may be held: not where a barrier in a callback would wait for them."""
    callbacks = [s for s in statements(program) if isinstance(s, Callback)]
    return any(s.kind == "queued_apart" for s in callbacks) and not any("barrier" in s.actions for s in callbacks)


def _races(program: Program) -> bool:
    """Whether it is not said what comes before a failure: that is of something unordered, or the program waits for
    what may come before or after it."""
    calls = [s for s in statements(program) if isinstance(s, Callback)]
    failing = {call.kind for call in calls if call.fails_at}
    waits_apart = any(call.kind == "sync_unordered" for call in calls)
    return "queued_unordered" in failing or (waits_apart and bool(failing & {"queued", "jax_queued", "jax_io"}))


def generate(rng: random.Random, size: int, failure: str = "none") -> Program:
    """A random program of about `size` statements."""
    return Generator(RandomDraw(rng), "A", FEATURES, failure).program(size)


def generate_case(
    rng: random.Random,
    features: frozenset[str] = FEATURES,
    generator: type[Generator] = Generator,
    sizes: tuple[int, int] = (4, 14),
) -> Case:
    """A random sequence for `check`, of programs with about so many statements."""
    return _case(RandomDraw(rng), rng.randint(*sizes), features, generator)


@st.composite
def cases(draw: Callable[[st.SearchStrategy[Any]], Any], max_size: int = 12) -> Case:
    """The hypothesis strategy for `check`: what it finds, it shrinks."""
    return _case(HypothesisDraw(draw), draw(st.integers(2, max_size)), FEATURES)


def case_number(seed: int, number: int, features: frozenset[str] = FEATURES) -> Case:
    """Sequence `number` of the bulk run with `seed`: the same on every machine and for every number of jobs."""
    return generate_case(random.Random(f"{seed}:{number}"), features)
