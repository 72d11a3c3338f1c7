"""The oracle against what only records' tokens show, and against rings that fill."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.oracle.compare import check, compare
from tests.oracle.devices.tokens import compare_tokens as compare_devices
from tests.oracle.expressions import Less, Literal, Name
from tests.oracle.generator import KINDS
from tests.oracle.language import DOMAINS, EFFECTS, Case, Program, Run
from tests.oracle.observe import Outcome, expect, observe
from tests.oracle.rings import RINGS
from tests.oracle.runners import library
from tests.oracle.statements.calls import Vmap
from tests.oracle.statements.control import Cond, Fori
from tests.oracle.statements.effects import Effect, Log
from tests.oracle.tokens import Seen

A, N = Name("a"), Name("n")

PROGRAM = Program(
    (),
    (
        Effect("ordered", "start", (N,)),
        Effect("apart", "own", (A,)),
        Fori("i", 2, 4, (Effect("ordered", "turn", (Name("i"),)), Effect("apart", "own turn", (Name("i"),)))),
        Vmap("l", (1, 2), A, (Log("log", "lane", "INFO", (Name("l"),), False),), A, "b"),
        Effect("unordered", "aside", (A,)),
        Effect("native", "end", (A,)),
    ),
)
CASE = Case((Run(PROGRAM, (5, 2, 7)), Run(PROGRAM, None)), capture=True)


def _seen() -> tuple[Outcome, Outcome]:
    expected = expect(CASE)
    seen = observe(CASE, library())
    assert not compare(CASE, expected, seen)
    return expected, seen


def test_places_agree_with_those_written_by_hand() -> None:
    """Each domain counts for itself, lanes have one place between them, and each dispatch begins anew."""
    places = expect(Case((Run(PROGRAM, (5, 2, 7)),))).places
    assert places is not None
    assert [(place.domain, place.index, place.lane) for place in places if place is not None] == [
        *[("program", 0, ()), ("oracle.apart", 0, ())],
        *[("program", 1, ()), ("oracle.apart", 1, ()), ("program", 2, ()), ("oracle.apart", 2, ())],
        *[("program", 3, (0,)), ("program", 3, (1,))],
        *[("", 0, ()), ("program", 4, ())],
    ]


def _change(seen: Outcome, text: str, **changes: Any) -> None:
    assert seen.tokens is not None
    at = next(number for number, line in enumerate(seen.lines) if line.startswith(text))
    record = seen.tokens[at]
    token = dict(zip(("stream", "epoch", "phase", "index"), record.token, strict=True))
    token |= {name: value(token[name]) for name, value in changes.items() if name in token}
    others = {name: value for name, value in changes.items() if name not in token}
    seen.tokens[at] = dataclasses.replace(record, token=tuple(token.values()), **others)


@pytest.mark.parametrize(
    ("text", "changes", "complaint"),
    [
        pytest.param("turn 1", {"index": lambda index: index + 1}, "should have the index 2 and has 3", id="index"),
        pytest.param("own", {"stream": lambda stream: stream + 1}, "several numbers of domains", id="domain"),
        pytest.param("turn 0", {"epoch": lambda epoch: epoch + 1}, "and others have another", id="epoch"),
        pytest.param("start", {"phase": lambda phase: 1}, "should be Place", id="phase"),
        pytest.param("lane", {"lane": (1,)}, "should be Place", id="lane"),
        pytest.param("turn 0", {"ordered": False}, "records of the domain program", id="order"),
        pytest.param("aside", {"ordered": True}, "was seen 0 times, not 1", id="unordered"),
        pytest.param("aside", {"lane": (0,)}, "was seen 1 times, not 0", id="unordered lane"),
        pytest.param("start", {"stream": lambda stream: 0xFFFFF000}, "nested streams", id="nested"),
    ],
)
def test_check_reports_tokens_that_are_wrong(text: str, changes: Any, complaint: str) -> None:
    """Every line is right, and a record says something else of its place than the reading."""
    expected, seen = _seen()
    _change(seen, text, **changes)
    assert complaint in "\n".join(compare(CASE, expected, seen))


def test_check_reports_lines_of_a_domain_in_another_order() -> None:
    """Lines of one domain have an order, and may stand anywhere among those of another."""
    expected = expect(CASE)
    apart = [line for line in expected.lines if line.startswith("own")]
    others = [line for line in expected.lines if not line.startswith("own")]
    seen = dataclasses.replace(expected, lines=apart + others)
    assert not compare(CASE, expected, seen)
    assert compare(CASE, expected, dataclasses.replace(expected, lines=apart[::-1] + others))


def test_records_of_another_domain_may_stand_elsewhere_than_their_lines() -> None:
    """Two threads of the drain show them."""
    expected, seen = _seen()
    for of_another_first in (True, False):
        moved = sorted(seen.lines, key=lambda line: line.startswith("own") != of_another_first)
        assert not compare(CASE, expected, dataclasses.replace(seen, lines=moved))


def test_records_of_unordered_effects_may_stand_elsewhere_than_their_lines() -> None:
    """A record is captured before its line is written or after, and what is unordered may come between. Whatever has an
    order has the same in both, and each line has its record."""
    expected, seen = _seen()
    at = seen.lines.index("aside 5")
    moved = [*seen.lines[:at], *seen.lines[at + 1 :], "aside 5"]
    assert not compare(CASE, expected, dataclasses.replace(seen, lines=moved))
    for lines in ([*seen.lines, "aside 5"], seen.lines[:at] + seen.lines[at + 1 :]):
        assert "records captured" in "\n".join(compare(CASE, expected, dataclasses.replace(seen, lines=lines)))


@pytest.mark.parametrize("rings", RINGS)
def test_case_with_small_rings_keeps_its_promise(rings: str) -> None:
    """What a full ring drops is counted, and the rest is in order; where it waits, all comes."""
    program = Program((), tuple(Fori(f"i{k}", 3, 4, (Effect("ordered", f"at{k}", (N, A)),)) for k in range(8)))
    case = Case((Run(program, (1, 2, 3)), *[Run(program, None)] * 39), capture=rings == "drop", rings=rings)
    seen = observe(case, library())
    assert not compare(case, expect(case), seen)
    assert (seen.dropped > 0) == (rings != "wait")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda lines: lines.insert(0, lines.pop()), "without some of them"),
        (lambda lines: lines.append("invented"), "without some of them"),
        (lambda lines: lines.pop(), "1 lines are not there, and 0 records"),
    ],
)
def test_check_reports_what_full_rings_must_not_do(change: Any, complaint: str) -> None:
    """Lines in another order, lines of nothing, and lines that are lost and not counted."""
    program = Program((), tuple(Effect("ordered", f"at{k}", ()) for k in range(4)))
    case = Case((Run(program, (1, 2, 3)),), rings="drop")
    expected = expect(case)
    seen = dataclasses.replace(expected, lines=list(expected.lines))
    change(seen.lines)
    assert complaint in "\n".join(compare(case, expected, seen))


def test_exported_program_is_as_the_function() -> None:
    """A dispatch of a program that was exported and read again means the same, beside those of others."""
    runs = (Run(PROGRAM, (5, 2, 7), exported=True), Run(PROGRAM, None), Run(PROGRAM, None, 2, exported=True))
    check(Case(runs, capture=True))


def test_tokens_of_devices_that_are_wrong() -> None:
    """Behind one another, of no device, and with a gap."""
    case = Case((Run(Program((), ()), None),))

    def record(phase: int, index: int, device: int = -1) -> Seen:
        return Seen((256, 0, phase, index), (), device, True)

    right = [record(0, 0), record(1, 0, 0), record(1, 0, 1), record(1, 1, 1), record(2, 1)]
    assert not compare_devices(case, right)
    assert "comes behind" in compare_devices(case, [right[0], right[2], right[1]])[0]
    assert "of no device" in compare_devices(case, [record(1, 0)])[0]
    assert "have the indices [0, 2]" in compare_devices(case, [record(0, 0), record(0, 2)])[0]
    branches = (Vmap("l", (1,), A, (Cond(Less(A, Literal(1)), (Effect("ordered", "e", ()),), ()),), A, "a"),)
    assert not compare_devices(Case((Run(Program((), branches), None),)), [record(0, 0), record(0, 2)])


def test_domains_are_those_of_kinds() -> None:
    """A kind with a domain of its own is ordered in it."""
    assert all(EFFECTS[kind] and kind in KINDS for kind in DOMAINS)
