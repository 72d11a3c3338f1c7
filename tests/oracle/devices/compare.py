"""Comparing what was seen on devices with what was expected."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.oracle.compare import compare as compare_outcomes
from tests.oracle.compare import not_out, run_and_compare, sources_of, where
from tests.oracle.devices.language import DeviceCase, Item, MeshRun, Outside
from tests.oracle.devices.loose import loose_regions
from tests.oracle.devices.observe import Seen, expect, jax_refuses, observe
from tests.oracle.devices.region import Region
from tests.oracle.devices.tokens import compare_tokens
from tests.oracle.failures import stopped_labels
from tests.oracle.language import AWAITED, EFFECTS, Case, Run, domains_of_labels, kinds_of_labels, label_of, statements
from tests.oracle.observe import NotInJax, Outcome
from tests.oracle.runners import library
from tests.oracle.statements.callback import Callback

if TYPE_CHECKING:
    from tests.oracle.host import Runner


def check(case: DeviceCase, runner: Runner | None = None) -> list[Outcome]:
    """Runs the case and raises an AssertionError that shows it and the difference, if there is one.

    Returns:
      What was expected of each thread, and seen.

    Raises:
      NotInJax: if JAX raises what the case does, without its effects too.
    """
    runner = library() if runner is None else runner
    expected = [expect(sequence, case.after_error == "stop") for sequence in case.sequences]

    def run() -> Seen:
        try:
            return observe(case, runner)
        except Exception as error:
            with contextlib.suppress(Exception):
                runner.barrier()
            if jax_refuses(case, runner, error):
                raise NotInJax(str(error)) from error
            raise

    def complaints(seen: Seen) -> list[str]:
        outcomes, lines, records = seen
        found = []
        for number, ((want, places), outcome) in enumerate(zip(expected, outcomes, strict=True)):
            several = len(outcomes) > 1
            outcome.lines = [line for line in lines if not several or line.startswith(f"t{number}")]
            found += compare(case.sequences[number], want, places, outcome, records if case.capture else None)
        return found

    run_and_compare(runner, run, complaints, lambda: describe(case))
    return [outcome for outcome, _ in expected]


def compare(
    sequence: Sequence[Item],
    want: Outcome,
    places: Sequence[tuple[str, int] | None],
    seen: Outcome,
    records: list[tuple[str, int]] | None,
) -> list[str]:
    """What is wrong with `seen`: its lines, and in loose regions each device's records."""
    runs = Case(tuple(item for item in sequence if isinstance(item, Run)))
    kinds = kinds_of_labels(runs)
    unordered = {label for label, kind in kinds.items() if not EFFECTS[kind]} | {"u"}
    apart = domains_of_labels(runs)
    want, places = _without_stopped_domains(runs, want, places, seen)

    def split(lines: Sequence[str]) -> tuple[list[str], list[str]]:
        known = [line for line in lines if label_of(line) not in unordered]
        known.sort(key=lambda line: apart.get(label_of(line), ""))  # domains know nothing of each other
        return known, [line for line in lines if label_of(line) in unordered]

    (want_ordered, want_rest), (seen_ordered, seen_rest) = split(want.lines), split(seen.lines)
    want_rest = _seen_or_known(want_rest, seen_rest, stopped_labels(runs, want))
    kept = [(line, place) for line, place in zip(want.lines, places, strict=True) if label_of(line) not in unordered]
    kept = [place for _, place in sorted(kept, key=lambda each: apart.get(label_of(each[0]), ""))]
    start = 0
    while start < len(kept):  # in a loose region lines may have any order
        end = start + 1
        if kept[start] is not None:
            while end < len(kept) and kept[end] is not None:
                end += 1
            want_ordered[start:end] = sorted(want_ordered[start:end])
            seen_ordered[start:end] = sorted(seen_ordered[start:end])
        start = end
    complaints = compare_outcomes(
        runs,
        dataclasses.replace(want, lines=want_ordered + want_rest, stopped=[]),
        dataclasses.replace(seen, lines=seen_ordered + seen_rest),
    )
    complaints += _compare_barriers(runs, want, seen)
    if records is not None:
        complaints += _compare_devices(runs, want, places, records, unordered)
    if seen.tokens is not None:
        complaints += compare_tokens(runs, seen.tokens)
    return complaints


def _compare_barriers(runs: Case, want: Outcome, seen: Outcome) -> list[str]:
    """What was not out when a barrier for effects of one name returned. One that fails says nothing of the others."""
    if want.errors or any(isinstance(state, str) for state in want.states):
        return []
    complaints, kinds = [], kinds_of_labels(runs)
    for (number, due), (_, lines) in zip(want.at_barriers, seen.at_barriers, strict=True):
        name = runs.runs[number].barrier
        if missing := not_out(due, lines, AWAITED[name], kinds):
            complaints.append(f"the barrier for {name} behind dispatch {number} returned ahead of {missing}")
    return complaints


def _without_stopped_domains(
    runs: Case, want: Outcome, places: Sequence[tuple[str, int] | None], seen: Outcome
) -> tuple[Outcome, Sequence[tuple[str, int] | None]]:
    """What was expected, without the last lines of other domains that were not seen, in programs whose effects a
    failure has stopped: domains know nothing of each other."""
    labels = {label for number in want.stopped for label in domains_of_labels(runs.runs[number].program)}
    missing = collections.Counter(line for line in want.lines if label_of(line) in labels)
    missing.subtract(line for line in seen.lines if label_of(line) in labels)
    kept = []
    for line, place in reversed([*zip(want.lines, places, strict=True)]):
        if missing[line] > 0:
            missing[line] -= 1
        else:
            kept.append((line, place))
    kept.reverse()
    return dataclasses.replace(want, lines=[line for line, _ in kept]), [place for _, place in kept]


def _seen_or_known(wanted: Sequence[str], seen: Sequence[str], may_lack: set[str]) -> list[str]:
    """Lines without an order that should have been seen. What may be missing after a failure is, if it was not seen."""
    there = collections.Counter(seen)
    there.subtract(wanted)  # below zero: so many are missing
    known = []
    for line in wanted:
        if label_of(line) in may_lack and there[line] < 0:
            there[line] += 1
        else:
            known.append(line)
    return known


def _compare_devices(
    runs: Case,
    want: Outcome,
    places: Sequence[tuple[str, int] | None],
    records: list[tuple[str, int]],
    unordered: set[str],
) -> list[str]:
    """In loose regions, each device's effects must have their order."""
    callbacks = {s.label for s in statements(tuple(run.program for run in runs.runs)) if isinstance(s, Callback)}
    of_regions = {
        s.label
        for run in runs.runs
        for region in statements(run.program)
        if isinstance(region, Region) and region.label in loose_regions(run.program)
        for s in (*statements(region.body), *statements(run.program.functions))
        if getattr(s, "kind", "") in ("ordered", "native", "queued", "sync")
        or getattr(s, "kind", "").startswith("jax_")
    } - unordered
    complaints = []
    for device in sorted({place[1] for place in places if place is not None}):
        wanted = [
            line.split(" ", 1)[0] if label_of(line) in callbacks else line
            for line, place in zip(want.lines, places, strict=True)
            if place is not None and place[1] == device and line.split(" ", 1)[0] in of_regions
        ]
        inside = set(map(label_of, wanted))
        got = [text for text, at in records if at == device and text.split(" ", 1)[0] in inside]
        if any(place is None and label_of(line) in inside for line, place in zip(want.lines, places, strict=True)):
            continue  # some are also from elsewhere: a function that is called in there too
        if wanted != got:
            complaints.append(f"device {device}: expected {wanted}\n        seen {got}")
    return complaints


def describe(case: DeviceCase) -> str:
    """The case as Python source: each program once, then what each thread does."""
    numbers, texts = sources_of(case.runs)
    for thread, sequence in enumerate(case.sequences):
        for item in sequence:
            if isinstance(item, Outside):
                text = f"{item.kind or 'print'} {item.label} {item.value}" if item.label else "barrier"
            else:
                exported = " exported" if item.exported else ""
                exported += f", after {item.change!r}" * bool(item.change)
                exported += f", then a barrier for {item.barrier}" * (bool(item.barrier) and isinstance(item, MeshRun))
                at = f"{exported} on {item.placing}" if isinstance(item, MeshRun) else where(item)
                text = f"program {numbers[item.program]} from {item.state or 'the state before'}{at}"
            texts.append(f"# thread {thread}: {text}")
    return "\n".join([*texts, f"# {', '.join(case.kinds())}"])
