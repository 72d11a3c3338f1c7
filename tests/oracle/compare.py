"""Comparing what was seen with what was expected: final states, lines and errors.

Ordered lines must agree one by one; unordered ones as a multiset, and they may stand anywhere between the ordered ones.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import difflib
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tests.oracle.failures import may_count_more, settle_domains, stopped_labels, unknown_labels
from tests.oracle.language import (
    AWAITED,
    EFFECTS,
    Case,
    Program,
    Run,
    T,
    domains_of_labels,
    kinds_of_labels,
    label_of,
    statements,
)
from tests.oracle.observe import NotInJax, Outcome, expect, observe
from tests.oracle.rings import compare_dropped, drops
from tests.oracle.runners import library
from tests.oracle.source import render
from tests.oracle.statements.callback import Callback
from tests.oracle.tokens import compare_places

if TYPE_CHECKING:
    from tests.oracle.host import Runner

KEPT_ERRORS = 100  # of one program


def check(case: Case | Sequence[Run], runner: Runner | None = None) -> Outcome:
    """Runs the sequence and raises an AssertionError that shows the programs and the difference, if there is one.

    Args:
      case: the dispatches, in order, and what is in force meanwhile.
      runner: what to run on; the library unless given.

    Returns:
      What was expected, and seen.
    """
    case = case if isinstance(case, Case) else Case(tuple(case))
    runner = library() if runner is None else runner
    expected = expect(case)
    run_and_compare(
        runner, lambda: observe(case, runner), lambda seen: compare(case, expected, seen), lambda: describe(case)
    )
    return expected


def run_and_compare(
    runner: Runner, run: Callable[[], T], compare: Callable[[T], list[str]], describe: Callable[[], str]
) -> None:
    """Raises an AssertionError that shows the source, if running fails or there is something wrong with what was seen.

    Raises:
      NotInJax: if running does.
    """
    try:
        seen = run()
    except NotInJax:
        raise
    except Exception as error:
        with contextlib.suppress(Exception):
            runner.barrier()  # what else has failed is not the next one's
        raise AssertionError(f"the case failed\n\n{traceback.format_exc()}\n{describe()}") from error
    if complaints := compare(seen):
        raise AssertionError("\n".join([*complaints, "", describe()]))


def compare(case: Case, expected: Outcome, seen: Outcome) -> list[str]:
    """What is wrong with `seen`, as texts; nothing if it keeps the promise."""
    kinds = kinds_of_labels(case.runs)
    unordered_labels = {label for label, kind in kinds.items() if not EFFECTS[kind]} | {"u"}
    apart = domains_of_labels(case.runs)
    checks = {label for label, kind in kinds.items() if kind == "check"}
    unknown = unknown_labels(case, expected)

    def split(lines: Iterable[str]) -> tuple[list[str], collections.Counter[str]]:
        ordered: list[str] = []
        lines = (line for line in lines if label_of(line) not in checks)  # which the output does not show
        lines = sorted(lines, key=lambda line: apart.get(label_of(line), ""))  # domains know nothing of each other
        unordered: collections.Counter[str] = collections.Counter()
        for line in lines:
            if label_of(line) in unknown:
                continue
            if label_of(line) in unordered_labels:
                unordered[line] += 1
            else:
                ordered.append(line)
        return ordered, unordered

    if drops(case):
        return compare_dropped(
            case,
            expected,
            seen,
            lambda line: label_of(line) in unordered_labels,
            lambda line: apart.get(label_of(line), ""),
        )
    complaints = _compare_counts(expected, seen) + _compare_barriers(case, expected, seen)
    expected, may_lack = settle_domains(case, expected, seen), stopped_labels(case, expected)
    lacking = 0
    for number, (want, got) in enumerate(zip(expected.states, seen.states, strict=True)):
        if want != got:
            complaints.append(f"dispatch {number} {_ended(got)} and should have {_ended(want)}")
    (want_ordered, want_unordered), (got_ordered, got_unordered) = split(expected.lines), split(seen.lines)
    if want_ordered != got_ordered:
        diff = difflib.unified_diff(want_ordered, got_ordered, "expected ordered lines", "seen", lineterm="", n=3)
        complaints.append("\n".join(diff))
    for line in sorted(want_unordered.keys() | got_unordered.keys()):
        want, got = want_unordered[line], got_unordered[line]
        if want > got and label_of(line) in may_lack:
            lacking += (want - got) * (line.split(" ", 1)[0] == label_of(line) != "u")
        elif want != got:
            complaints.append(f"unordered line {line!r} was seen {got} times and should have been seen {want} times")
    want_errors, got_errors = (
        sorted(error for error in errors if label_of(error) not in unknown) for errors in (expected.errors, seen.errors)
    )
    # Of many failures of one program the library keeps some, and says how many there were.
    if want_errors != got_errors and len(want_errors) <= KEPT_ERRORS:
        complaints.append(f"the barrier raised what {got_errors} raised and should have raised {want_errors}")
    left_out = expected.left_out + lacking
    if left_out > seen.left_out or (left_out < seen.left_out and not may_count_more(case, expected)):
        complaints.append(f"errors counted {seen.left_out} effects after them and should have counted {left_out}")
    if seen.records is not None:
        seen, found = _by_record(case, seen, lambda line: label_of(line) in unordered_labels, apart, checks)
        complaints += found
    if not complaints and seen.tokens is not None and expected.places is not None and not unknown:
        # Functions without order may run beside each other, so that it is not known which record has which line.
        aside = {s.label for run in case.runs for s in statements(run.program) if isinstance(s, Callback)}
        aside &= unordered_labels

        def without_values(outcome: Outcome) -> Outcome:
            names = [label_of(line) if label_of(line) in aside else line for line in outcome.lines]
            return dataclasses.replace(outcome, lines=names)

        complaints += compare_places(
            without_values(expected), without_values(seen), lambda line: label_of(line) in unordered_labels
        )
    return complaints


def _compare_counts(expected: Outcome, seen: Outcome) -> list[str]:
    """The mistakes in the counts of prints with filters. A program that fails may not have come to all of them."""
    if expected.errors or any(isinstance(state, str) for state in expected.states):
        return []
    complaints = []
    for label, want in expected.counts.items():
        if (got := seen.counts.get(label)) not in (want, None if want == (0, 0) else want):
            complaints.append(f"`fx.sites` counts {got} of {label}, and should count {want} (come, shown)")
    return complaints


def not_out(due: Sequence[str], lines: Sequence[str], awaited: Collection[str], kinds: Mapping[str, str]) -> list[str]:
    """Those of the lines that are due, of effects of the awaited kinds, that are not among the lines that are out."""
    wanted = [line for line in due if kinds.get(line.split(" ", 1)[0]) in awaited]
    return sorted(collections.Counter(wanted) - collections.Counter(lines))


def _compare_barriers(case: Case, expected: Outcome, seen: Outcome) -> list[str]:
    """What was not out when a barrier for effects of some names returned, or with `sync` when a call raised."""
    kinds, complaints = kinds_of_labels(case.runs), []
    has_failed = expected.errors or any(isinstance(state, str) for state in expected.states)

    def look(number: int, lines: Sequence[str], awaited: Collection[str], what: str) -> None:
        wanted = [] if expected.ends is None else expected.lines[: expected.ends[number]]
        if missing := not_out(wanted, lines, awaited, kinds):
            complaints.append(f"{what} ahead of {missing}")

    for number, lines in seen.at_barriers if not has_failed else ():
        name = case.runs[number].barrier
        look(number, lines, AWAITED[name], f"the barrier for {name} behind dispatch {number} returned")
    if sorted(number for number, _ in seen.at_eager) != [n for n, run in enumerate(case.runs) if run.eager]:
        complaints.append(f"effects outside of programs happened behind {[number for number, _ in seen.at_eager]}")
    for number, lines in seen.at_eager if not has_failed else ():
        eager = case.runs[number].eager
        look(number, lines, {*kinds.values()}, f"{eager} outside of programs, behind dispatch {number}, happened")
    for number, lines in seen.at_errors if case.sync else ():
        look(number, lines, ("ordered", "log", "queued", "native"), f"the call of dispatch {number} raised")
    return complaints


def _ended(state: tuple[int, ...] | str) -> str:
    return f"raised what {state} raised" if isinstance(state, str) else f"returned {state}"


def _by_record(
    case: Case, seen: Outcome, is_unordered: Callable[[str], bool], apart: Mapping[str, str], checks: Collection[str]
) -> tuple[Outcome, list[str]]:
    """What was seen, with its lines in the order of their records, and those of checks; and what is wrong with these.

    What was captured must be what the output shows, in the order of each domain. What is unordered or of another domain
    may stand elsewhere: another thread of the drain shows it, and a record is captured before its line is written or
    after.
    """
    assert seen.records is not None
    callbacks = {s.label for run in case.runs for s in statements(run.program) if isinstance(s, Callback)}
    lines: dict[str, list[str]] = {}  # by the text of their record
    texts = []
    for line in seen.lines:
        word = line.split(" ", 1)[0]
        texts.append(word if word in callbacks or word.endswith((".callback", ".asked")) else line)
        lines.setdefault(texts[-1], []).append(line)

    def split(texts: Iterable[str]) -> list[str]:
        return sorted(texts, key=lambda x: (is_unordered(x), x if is_unordered(x) else apart.get(label_of(x), "")))

    of_lines = [text for text in seen.records if label_of(text) not in checks]
    if (shown := split(texts)) != (captured := split(of_lines)):
        diff = difflib.unified_diff(shown, captured, "lines of the output", "records captured", lineterm="", n=3)
        return seen, ["\n".join(diff)]
    every = [text if label_of(text) in checks else lines[text].pop(0) for text in seen.records]
    return dataclasses.replace(seen, lines=every), []


def describe(case: Case) -> str:
    """The sequence as Python source: each program once, then the dispatches."""
    numbers, sources = sources_of(case.runs)
    runs = [
        f"# dispatch {number}: program {numbers[run.program]} from {run.state or 'the state before'}{where(run)}"
        for number, run in enumerate(case.runs)
    ]
    return "\n".join([*sources, *runs, f"# {', '.join(case.kinds())}"])


def sources_of(runs: Iterable[Run]) -> tuple[dict[Program, int], list[str]]:
    """The programs of dispatches, each with a number, and their sources."""
    numbers = {program: number for number, program in enumerate(dict.fromkeys(run.program for run in runs))}
    return numbers, [f"# program {number}\n{render(program)}" for program, number in numbers.items()]


def where(run: Run) -> str:
    how = "by default " if run.by_default else ""
    exported = (" exported" if run.exported else "") + f", after {run.change!r}" * bool(run.change)
    exported += f", then {run.eager} outside of programs" * bool(run.eager)
    exported += f", then a barrier for {run.barrier}{', held' * run.held}" * bool(run.barrier)
    return exported if run.device is None else f"{exported} {how}on device {run.device}"
