"""The oracle where a failure leaves open what happens: as much as is promised, and no more."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.oracle.compare import check, compare
from tests.oracle.expressions import Name
from tests.oracle.language import Case, Program, Run
from tests.oracle.observe import Outcome, expect
from tests.oracle.statements.callback import Callback
from tests.oracle.statements.calls import Vmap
from tests.oracle.statements.effects import Effect

A = Name("a")
FAILS = Callback("queued", "bad", (A,), "flat", False, (), False, fails_at=1)
APART = tuple(Effect("apart", f"own{number}", (A,)) for number in range(3))
STOPPED = Program((), (APART[0], FAILS, *APART[1:], Effect("ordered", "after", (A,))))
"""A failure stops its effects. The program goes on to its end."""

ASKS = Callback("sync", "asks", (A,), "flat", False, (), False, target="a", results=(("int32", 0),))
ENDED = Program((), (*STOPPED.body, ASKS, Effect("apart", "last", (A,))))
"""And it waits for one of them, so that the failure ends it."""


def _case(program: Program) -> Case:
    """Twice, since only the first call of the callback raises: the second time everything happens."""
    return Case((Run(program, (1, 2, 3)), Run(program, (1, 2, 3))))


def _complaints(program: Program, shown: int, left_out: int, more: tuple[str, ...] = ()) -> str:
    """About the case, if so many of the effects of the other domain were seen of the first dispatch, and then more."""
    case = _case(program)
    expected = expect(case)
    assert expected.ends is not None
    first, second = expected.lines[: expected.ends[0]], expected.lines[expected.ends[0] :]
    own = [line for line in first if line.startswith("own")]
    first = [line for line in first if line not in own[shown:]] + list(more)
    seen = Outcome(expected.states, first + second, expected.errors, left_out=left_out)
    return "\n".join(compare(case, expected, seen))


@pytest.mark.parametrize("shown", range(4))
def test_effects_of_another_domain_happen_or_are_counted(shown: int) -> None:
    """A failure stops the effects of another domain wherever the drain is in it. What it stops is counted."""
    assert not _complaints(STOPPED, shown, 1 + 3 - shown)
    assert "should have counted" in _complaints(STOPPED, shown, 3 - shown)
    assert "should have counted" in _complaints(STOPPED, shown, 2 + 3 - shown)


@pytest.mark.parametrize("shown", range(4))
def test_effects_of_another_domain_may_not_be_reached_by_a_program_that_ends(shown: int) -> None:
    """The program may have come to none of them. What comes in the order of the failure is counted all the same."""
    for left_out in range(2, 2 + 3 - shown):
        assert not _complaints(ENDED, shown, left_out)
    assert "should have counted" in _complaints(ENDED, shown, 1)


def test_effects_of_another_domain_are_missing_from_the_last_on() -> None:
    """The domain keeps its own order: none of it is missing before another one that is seen."""
    assert "expected ordered lines" in _complaints(STOPPED, 1, 2, more=("own2 1",))
    assert "expected ordered lines" in _complaints(ENDED, 1, 3, more=("own2 1",))


def test_program_that_ends_may_have_come_to_effects_of_another_domain_behind() -> None:
    """To those that are its own, whose values are not known, and only behind all the others."""
    assert not _complaints(ENDED, 3, 2, more=("last 17",))
    assert "expected ordered lines" in _complaints(ENDED, 2, 3, more=("last 17",))
    assert "expected ordered lines" in _complaints(ENDED, 3, 2, more=("invented 17",))


def test_count_is_exact_where_nothing_is_left_open() -> None:
    """Of a program that ends, too, if everything in it has the order of the failure."""
    program = Program((), tuple(statement for statement in ENDED.body if getattr(statement, "kind", "") != "apart"))
    assert not _complaints(program, 0, 2)
    assert "should have counted 2" in _complaints(program, 0, 3)


@pytest.mark.parametrize("program", [STOPPED, ENDED])
@pytest.mark.parametrize("capture", [False, True])
def test_library_leaves_out_no_more_than_a_failure_stops(program: Program, capture: bool) -> None:
    """What the library makes of them is allowed."""
    check(dataclasses.replace(_case(program), capture=capture))


def test_library_leaves_out_lanes_of_another_domain() -> None:
    """Lanes that come behind a failure in their domain are counted too."""
    lanes: Any = Vmap("l", (1, 2), A, (FAILS, *APART, Effect("ordered", "lane", (Name("l"),))), A, "b")
    check(_case(Program((), (lanes, Effect("ordered", "after", (A,))))))
