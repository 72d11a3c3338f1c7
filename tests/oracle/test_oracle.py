"""Random programs against the oracle, and the oracle against what it must notice."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import effects as fx
from tests.oracle.cases import case_number, cases, generate
from tests.oracle.compare import check
from tests.oracle.expressions import Less, Literal, Name
from tests.oracle.generator import KINDS
from tests.oracle.language import Case, Program, Run, statements
from tests.oracle.runners import library, library_after, plain_jax
from tests.oracle.source import render
from tests.oracle.statements.callback import Callback
from tests.oracle.statements.control import Fori
from tests.oracle.statements.effects import Effect, Fails
from tests.oracle.test_by_hand import SMALL, SMALL_LINES


def test_jit_random_programs_keep_program_order() -> None:
    """Whatever is nested in whatever, effects appear in the order of a single-threaded Python program."""

    @settings(
        max_examples=25,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
    @given(cases())
    def holds(case: Case) -> None:
        check(case, runner)

    runner = library()
    holds()


A, N = Name("a"), Name("n")


def _failing(kind: str, **parameters: Any) -> Program:
    bad = Callback(kind, "bad", (A,), "flat", False, (), False, 2, **parameters)
    return Program(
        (), (Fori("i", 3, 4, (Effect("ordered", "before", (N, Name("i"))), bad)), Effect("ordered", "after", ()))
    )


FAILING = _failing("queued")
FAILING_SYNC = _failing("sync", target="a", results=(("int32", 0),))


def test_check_goes_on_after_queued_callback_that_raises() -> None:
    """What a queued callback raises is the barrier's, and nothing else changes, if that is what is asked for."""
    outcome = check(Case((Run(FAILING, (1, 2, 3)), Run(SMALL, (5, 2, 7))), after_error="go_on"))
    turns = [line for i in range(3) for line in (f"before 0 {i}", "bad 1 @0")]
    assert outcome.lines == [*turns, "after", *(line.replace("start 0", "start 1") for line in SMALL_LINES)]
    assert outcome.errors == ["bad"]


def test_check_stops_effects_after_queued_callback_that_raises() -> None:
    """What would have come after it in its program does not, and is counted; the next program goes on."""
    outcome = check([Run(FAILING, (1, 2, 3)), Run(SMALL, (5, 2, 7))])
    assert outcome.lines[:4] == ["before 0 0", "bad 1 @0", "before 0 1", "bad 1 @0"]
    assert outcome.lines[4:] == [line.replace("start 0", "start 1") for line in SMALL_LINES]
    assert (outcome.errors, outcome.left_out) == (["bad"], 3)


def test_check_ends_program_that_waits_after_queued_callback_that_raises() -> None:
    """The next callback that the program waits for is not called, and the call raises what has stopped the effects."""
    asks = Callback("sync", "asks", (A,), "flat", False, (), False, 0, "a", (("int32", 0),))
    program = Program((), (*FAILING.body, asks, Effect("ordered", "never", ())))
    outcome = check([Run(program, (1, 2, 3)), Run(SMALL, (5, 2, 7))])
    assert (outcome.states[0], outcome.errors, outcome.left_out) == ("bad", [], 4)


def test_check_reports_wrong_count_of_what_was_left_out() -> None:
    """An error that does not say how many effects came after it is reported."""

    def barrier() -> None:
        try:
            right.barrier()
        except right.error as error:
            vars(error).pop("not_carried_out")
            raise

    right = library()
    with pytest.raises(AssertionError, match="counted 0 effects after them and should have counted 3"):
        check([Run(FAILING, (1, 2, 3))], dataclasses.replace(right, barrier=barrier))


def test_check_ends_program_whose_callback_raises() -> None:
    """What a sync callback raises is the call's; the program ends there, and the next one goes on from before."""
    outcome = check([Run(FAILING_SYNC, (1, 2, 3)), Run(FAILING_SYNC, None)])
    assert outcome.states == ["bad", (57, 2, 3)]
    assert outcome.lines[:4] == ["before 0 0", "bad 1 @0", "before 0 1", "bad 9 @0"]
    assert outcome.lines[4:6] == ["before 1 0", "bad 1 @0"] and outcome.lines[-1] == "after"
    assert outcome.errors == []


def test_check_reports_swallowed_error() -> None:
    """An error that no barrier raises is reported."""

    def barrier() -> None:
        with contextlib.suppress(right.error):
            right.barrier()

    right = library()
    with pytest.raises(AssertionError, match=r"raised what \[\] raised and should have raised \['bad'\]"):
        check([Run(FAILING, (1, 2, 3))], dataclasses.replace(right, barrier=barrier))


HELD = Program((), (Callback("queued_apart", "own", (A,), "flat", False, (), False), Effect("ordered", "line", (A,))))


def test_a_barrier_waits_for_what_it_names_alone() -> None:
    """A function of another domain returns only after it."""
    assert check([Run(HELD, (1, 2, 3), barrier="print", held=True)]).lines == ["own 1 @0", "line 1"]


def test_check_reports_a_barrier_that_waits_for_others() -> None:
    """It never returns, since the function waits for it."""

    def barrier(effects: str = "") -> None:
        fx.effects_barrier(timeout=1 if effects else 120)

    with pytest.raises(AssertionError, match="BarrierTimeout"):
        check([Run(HELD, (1, 2, 3), barrier="print", held=True)], dataclasses.replace(library(), barrier=barrier))


def test_check_reports_a_barrier_that_returns_early() -> None:
    """A line is not out: it comes behind what a function writes that has not returned."""

    def barrier(effects: str = "") -> None:
        if not effects:
            right.barrier()

    right, program = library(), Program((), (HELD.body[0], Effect("apart_print", "late", (A,))))
    with pytest.raises(
        AssertionError, match=r"barrier for apart_print behind dispatch 0 returned ahead of \['late 1'\]"
    ):
        check([Run(program, (1, 2, 3), barrier="apart_print", held=True)], dataclasses.replace(right, barrier=barrier))


def test_a_custom_call_that_fails_comes_behind_the_lines_ahead_of_it() -> None:
    """Its call raises what it says, and nothing comes behind it; the next dispatch goes on from the state before."""
    ahead, behind = (Effect("ordered", label, (A,)) for label in ("ahead", "behind"))
    program = Program((), (ahead, Fails("bad", Less(A, Literal(5))), behind))
    runs = Run(program, (7, 2, 3)), Run(program, (1, 2, 3)), Run(program, (8, 2, 3))
    outcome = check(Case(runs, sync=True))
    assert (outcome.states, outcome.errors) == ([(7, 2, 3), "bad", (8, 2, 3)], [])
    assert outcome.lines == ["ahead 7", "behind 7", "ahead 1", "ahead 8", "behind 8"]


def test_check_reports_error_of_the_library() -> None:
    """An error that no callback raised on purpose is reported with its traceback."""

    def callback(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return right.callback(lambda *args, **kwargs: 1 / 0, *args, **kwargs)

    right = library()
    for program in (FAILING, FAILING_SYNC):
        with pytest.raises(AssertionError, match="ZeroDivisionError"):
            check([Run(program, (1, 2, 3))], dataclasses.replace(right, callback=callback))


@pytest.mark.slow
def test_check_agrees_with_ordered_effects_of_jax() -> None:
    """The oracle's reading of a program is JAX's reading of it, without our library in between."""
    runner = plain_jax()
    for number in range(8):
        check(case_number(0, number, runner.features), runner)


def _swap(lines: list[str], first: int, second: int) -> None:
    lines[first], lines[second] = lines[second], lines[first]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        pytest.param(lambda lines: _swap(lines, 1, 2), "+f 5\n loop 0\n-f 5", id="swapped"),
        pytest.param(lambda lines: lines.remove("f 6"), "-f 6", id="lost"),
        pytest.param(lambda lines: lines.insert(0, "start 0 5"), "+start 0 5", id="repeated"),
        pytest.param(lambda lines: lines.append("f 8"), "+f 8", id="invented"),
        pytest.param(lambda lines: lines.remove("aside 7"), "'aside 7' was seen 0 times", id="unordered-lost"),
        pytest.param(lambda lines: lines.append("aside 7"), "'aside 7' was seen 2 times", id="unordered-repeated"),
    ],
)
def test_check_reports_changed_lines(change: Callable[[list[str]], None], complaint: str) -> None:
    """Lines that are swapped, lost, repeated or invented are reported, with the program's source."""
    with pytest.raises(AssertionError) as raised:
        check([Run(SMALL, (5, 2, 7))], library_after(change))
    assert complaint in str(raised.value)
    assert render(SMALL) in str(raised.value)


def test_check_reports_records_in_another_order() -> None:
    """What was captured must have the order of the output."""
    with pytest.raises(AssertionError, match="records captured"):
        check(Case((Run(SMALL, (5, 2, 7)),), capture=True), library_after(lambda lines: _swap(lines, 1, 2)))


def test_check_reports_wrong_state() -> None:
    """A wrong result is reported, even if every line is right."""
    right = library()

    def jit(fun: Callable[..., Any]) -> Callable[..., Any]:
        jitted = right.jit(fun)
        return lambda *args: tuple(value + 1 for value in jitted(*args))

    with pytest.raises(AssertionError, match=r"dispatch 0 returned \(8, 3, 19\) and should have returned \(7, 2, 18\)"):
        check([Run(SMALL, (5, 2, 7))], dataclasses.replace(right, jit=jit))


def test_generate_reaches_every_statement_within_800_programs() -> None:
    """Every kind of statement and effect is generated early, and nothing is generated that is not counted."""
    seen: collections.Counter[str] = collections.Counter()
    for number in range(800):
        failure = ("none", "exact", "loose", "native")[number % 4]
        for statement in statements(generate(random.Random(number), 10, failure)):
            seen.update(statement.kinds())
    assert set(seen) == KINDS


def test_case_number_depends_on_seed_and_number_only() -> None:
    """A failing sequence of a bulk run can be had again from its two numbers."""
    again = [case_number(3, number) for number in (7, 5)]
    assert again == [case_number(3, number) for number in range(8)][7:4:-2]
    assert case_number(4, 7) != again[0]
