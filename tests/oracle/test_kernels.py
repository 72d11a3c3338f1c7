"""Random programs with Pallas kernels against the oracle, and the oracle against what it must notice."""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest

import effects as fx
from tests.oracle import observe
from tests.oracle.compare import check
from tests.oracle.expressions import Binary, Less, Literal, Name, Read
from tests.oracle.generator import KINDS
from tests.oracle.kernels.blocks import FORMS, Block
from tests.oracle.kernels.generator import case_number
from tests.oracle.kernels.kernel import Kernel
from tests.oracle.kernels.rewriting import check_both_ways, rewritten
from tests.oracle.kernels.statements import Element, GridPrint, MaskedSum, ProgramId, Store, When
from tests.oracle.language import Case, Program, Run, statements
from tests.oracle.runners import library, library_after
from tests.oracle.statements.callback import Callback
from tests.oracle.statements.calls import Vmap
from tests.oracle.statements.control import Cond, Fori
from tests.oracle.statements.effects import Check, Effect, Log
from tests.oracle.statements.state import Assign, Write


@pytest.mark.slow
def test_random_programs_with_kernels_keep_program_order() -> None:
    """A kernel has its effects in the order of its grid, whatever it is in and whatever is in it, and by a log too."""
    programs = sum(check_both_ways(case_number(1, number))[-1].rewritten for number in range(5))
    assert programs > 2


A, B, N = Name("a"), Name("b"), Name("n")
ROW, COLUMN = ProgramId("p_0", 0), ProgramId("p_1", 1)


def _kernel(grid: tuple[int, ...], *body: Any, **parameters: Any) -> Kernel:
    given = {"dynamic": None, "table": (), "shift": None, "inputs": (), "outputs": (), "cells": (), "closes": ("n",)}
    return Kernel("p", grid, **{**given, "carries": False, "keep": True, "target": "c", "body": body, **parameters})


BLOCKS = _kernel(
    (2, 2),
    GridPrint("ordered", "at", (Element("u", (2,), COLUMN), MaskedSum("u", 2, Literal(1)), Read("m"))),
    Write("m", Binary("+", Read("m"), Literal(1))),
    When(Less(ROW, COLUMN), (Store(Element("o", (3,), Literal(0)), Element("u", (2,), Literal(1))),)),
    Fori("i", COLUMN, 4, (GridPrint("pallas", "turn", (ROW, COLUMN)),)),
    Assign("a", Binary("+", A, Literal(1))),
    inputs=(Block("u", "table", (0,), Literal(0)),),  # the blocks [10, 15] and [0, 5] of [0, 5, 10, 15]
    outputs=(Block("o", "squeezed", (1,), Literal(1), "alias"),),  # the rows [1, 6, 11] and [16, 21, 26]
    table=(1, 0),
    cells=(("m", 3),),
    carries=True,
)
BLOCKS_LINES = [
    *("at (0, 0) 10 10 3", "at (0, 1) 15 10 4", "turn 0 1"),
    *("at (1, 0) 0 0 5", "at (1, 1) 5 0 6", "turn 1 1"),
    "end 5 2 79",  # 1 + 2 * 6 + 3 * 11 + 4 * 15 + 5 * 21 + 6 * 26 + 3, where (0, 1) has written 15 over 16
]


def test_kernel_agrees_with_lines_written_by_hand() -> None:
    """Programs of the grid come in row-major order; scratch memory, registers and outputs last from one to the next."""
    program = Program((), (BLOCKS, Effect("ordered", "end", (A, B, Name("c")))))
    assert check(Case((Run(program, (1, 2, 3)),), capture=True)).lines == BLOCKS_LINES


LANES = Program(
    (),
    (
        Vmap(
            *("l", (0, 1, 2), Literal(0)),
            (
                Effect("ordered", "before", (Name("l"),)),
                Cond(
                    Less(Literal(0), Name("l")),
                    (
                        _kernel(
                            (2,),
                            GridPrint("ordered", "at", (Name("l"),)),
                            Log("log", "event", "INFO", (ProgramId("p_0", 0),), False),
                            Callback("queued", "later", (Name("l"),), "flat", True, (), False),
                            Vmap("k", (4, 5), Literal(0), (Effect("ordered", "in", (Name("k"),)),), Name("k"), "b"),
                            closes=("n", "l"),
                        ),
                    ),
                    (Effect("ordered", "not", ()),),
                ),
            ),
            *(A, "c"),
        ),
    ),
)


def test_kernel_in_lanes_agrees_with_lines_written_by_hand() -> None:
    """A lane that has the kernel makes its whole grid, and the next one does after it. The lane stands ahead of the
    index, and lanes of the kernel's own are the record's."""
    lines = check(Case((Run(LANES, (1, 2, 3)),), capture=True)).lines
    programs = [
        [
            f"at ({lane}, {index}) {lane}",
            f"event x0={index} INFO grid ({lane}, {index})",
            f"later {lane} @0 grid ({lane}, {index})",
            *("in 4", "in 5"),
        ]
        for lane in (1, 2)
        for index in (0, 1)
    ]
    assert lines == ["before 0", "before 1", "before 2", "not", *(line for program in programs for line in program)]


def test_kernel_in_lanes_of_lanes_agrees_with_lines_written_by_hand() -> None:
    """The lane of the outer `vmap` stands first, and comes first."""
    at = GridPrint("ordered", "at", (Name("l"), Name("r")))
    inner = Vmap("r", (3, 4), Literal(0), (_kernel((1,), at, closes=("n", "l", "r")),), Name("r"), "b")
    program = Program((), (Vmap("l", (5, 6), Literal(0), (inner,), A, "c"),))
    lines = check(Case((Run(program, (1, 2, 3)),), capture=True)).lines
    assert lines == ["at (0, 0, 0) 5 3", "at (0, 1, 0) 5 4", "at (1, 0, 0) 6 3", "at (1, 1, 0) 6 4"]


CHECKED = Program(
    (),
    (
        Check("outside", Less(B, A), (A, B)),
        Vmap(
            "l",
            (4, 5),
            Literal(0),
            (_kernel((3,), Check("in", Less(N, ROW), (Name("l"),)), closes=("n", "l")),),
            A,
            "c",
        ),
        Effect("ordered", "end", (A,)),
    ),
)


@pytest.mark.parametrize("is_rewritten", [False, True], ids=["direct", "rewritten"])
def test_checks_agree_with_what_is_written_by_hand(is_rewritten: bool) -> None:
    """What fails is raised at the barrier, with its lane and its program of the grid; what holds is not."""
    case = Case((Run(CHECKED, (1, 2, 3)),), capture=True)
    found = check(rewritten(case) if is_rewritten else case)
    errors = ["outside 1 2", "in 4 grid (0, 0)", "in 5 grid (1, 0)"]
    assert found.rewritten == is_rewritten
    assert (found.errors, found.lines) == (errors, [*errors, "end 1"])


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        pytest.param(lambda holds, fmt, *args: None, "should have raised ['in 4 grid (0, 0)'", id="lost"),
        pytest.param(lambda holds, fmt, *args: fx.check(False, fmt, *args), "raised what", id="holds"),
        pytest.param(lambda holds, fmt, *args: fx.check(holds, f"{fmt}.", *args), "in 4.", id="message"),
    ],
)
def test_check_reports_wrong_checks(wrong: Callable[..., None], complaint: str) -> None:
    """Checks that are not raised, are raised although they hold, or say something else."""
    with pytest.raises(AssertionError) as raised:
        check(Case((Run(CHECKED, (1, 2, 3)),)), dataclasses.replace(library(), check=wrong))
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        pytest.param(lambda lines: lines.insert(1, lines.pop(0)), "+at (0, 1) 15 10 4\n at (0, 0)", id="swapped"),
        pytest.param(lambda lines: lines.remove("turn 1 1"), "-turn 1 1", id="lost"),
        pytest.param(
            lambda lines: lines.__setitem__(3, lines[3].replace("(1, 0)", "(0, 1)")), "+at (0, 1) 0 0 5", id="index"
        ),
    ],
)
def test_check_reports_changed_lines_of_kernels(change: Callable[[list[str]], None], complaint: str) -> None:
    """Programs of the grid that change places, effects that are lost, and indices that are wrong."""
    with pytest.raises(AssertionError) as raised:
        check([Run(Program((), (BLOCKS,)), (1, 2, 3))], library_after(change))
    assert complaint in str(raised.value)


def test_check_reports_records_of_another_program_of_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index that a record says is compared, and not only where a line shows it."""
    right = observe.seen_of
    monkeypatch.setattr(observe, "seen_of", lambda record: dataclasses.replace(right(record), grid=(7,)))
    program = Program((), (_kernel((2,), Effect("ordered", "at", (A,))),))
    with pytest.raises(AssertionError, match=r"should be .*grid=\(0,\)"):
        check(Case((Run(program, (1, 2, 3)),), capture=True))


@pytest.mark.slow
def test_cases_reach_every_statement() -> None:
    """Every kind of statement, block and grid is generated early, and kernels stand in whatever may be around one."""
    counts: collections.Counter[str] = collections.Counter()
    for number in range(400):
        for statement in statements(tuple(run.program for run in case_number(0, number).runs)):
            counts.update(statement.kinds())
            if not isinstance(statement, Kernel) and any(isinstance(s, Kernel) for s in statements(statement)):
                counts[f"kernel_in_{type(statement).__name__}"] += 1
    more = {
        "kernel",
        "kernel_carries",
        "kernel_dropped",
        "scratch",
        "grid_dynamic",
        "grid_order",
        "kernel_parallel",
        *(f"kernel_cores_{n}" for n in (1, 2, 3)),
        "table_shifted",
        *(f"grid_rank_{n}" for n in range(4)),
    }
    more |= {f"{way}_{form}" for form in FORMS for way in ("in", "out")} | {"out_alias", "out_fill"}
    more |= {
        "when",
        "loop",
        "run_scoped",
        "store",
        "block_print",
        "block_print_row",
        "grid_ordered",
        "grid_unordered",
        "pallas_print",
    }
    more |= {f"kernel_in_{around}" for around in ("Vmap", "Cond", "Switch", "Fori", "While", "Scan", "Map", "Wrapped")}
    assert more <= set(counts)
    assert {kind for kind in counts if not kind.startswith("kernel_in_")} - more <= KINDS


def test_case_number_depends_on_seed_and_number_only() -> None:
    """A failing case of a bulk run can be had again from its two numbers."""
    again = [case_number(3, number) for number in (7, 5)]
    random.seed(0)
    assert again == [case_number(3, number) for number in range(8)][7:4:-2]
    assert case_number(4, 7) != again[0]
