"""Comparing what another process reads in a run file with what must have been recorded."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import difflib
import functools
import json
import logging
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import effects as fx
from tests.oracle import compare
from tests.oracle.devices import compare as device_compare
from tests.oracle.devices.language import DeviceCase
from tests.oracle.devices.observe import expect as expect_on_devices
from tests.oracle.devices.region import Region
from tests.oracle.failures import settle_domains, stopped_labels, unknown_labels
from tests.oracle.host import in_lane
from tests.oracle.language import EFFECTS, Case, Run, domains_of_labels, kinds_of_labels, label_of, statements
from tests.oracle.observe import Outcome, expect, without_signed_zeros
from tests.oracle.runners import library
from tests.oracle.runs.reader import Reader
from tests.oracle.runs.recorded import RecordedDeviceReading, RecordedReading
from tests.oracle.statements.asynchronous import InFlight
from tests.oracle.statements.callback import Callback
from tests.oracle.tokens import Seen, compare_places

CALLED = ("callback", "queued_apart", "jax.debug", "jax.io_callback")
"""Effects whose text is a call, of which the line has the name. `jax.debug` is prints too."""


ROOM = 64 << 20  # bytes of each file: the log of a kernel is one record


@functools.cache
def reader() -> Reader:
    """The process that reads, one for all cases."""
    return Reader()


@contextlib.contextmanager
def recorded(describe: Callable[[], str]) -> Iterator[Callable[[Callable[[list[dict[str, Any]]], list[str]]], None]]:
    """Records what runs inside. It gets a function that reads the file, and raises an AssertionError with the program
    if something is wrong with that, or with its records, as a function says."""
    library()  # which has effects of its own
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "run.fx"))

        def read(complain: Callable[[list[dict[str, Any]]], list[str]]) -> None:
            recording.close()
            answer = reader().ask("read", path)
            complaints = compare_answer(answer) or complain(answer["records"])
            if complaints:
                raise AssertionError("\n".join(["read in the run file:", *complaints, "", describe()]))

        with fx.record(path, max_bytes=ROOM) as recording:
            yield read


def check(case: Case) -> Outcome:
    """Checks a case as `compare.check` does, and what another process reads of it."""
    with recorded(lambda: compare.describe(case)) as read:
        outcome = compare.check(case)
        read(lambda records: compare_records(case, expect(case, RecordedReading), records))
    return outcome


def check_devices(case: DeviceCase) -> list[Outcome]:
    """Checks a case over several devices as their `compare.check` does, and what another process reads of it."""
    with recorded(lambda: device_compare.describe(case)) as read:
        outcomes = device_compare.check(case)
        read(lambda records: compare_device_records(case, records))
    return outcomes


# What was read in three ways.


def compare_answer(answer: dict[str, Any]) -> list[str]:
    """What is wrong between the records, the lines of `show`, and those of `show --json`."""
    complaints = []
    records, shown, as_json = answer["records"], answer["show"], answer["json"]
    for name in ("show", "json"):
        if answer[name]["status"] or answer[name]["errors"]:
            complaints.append(f"{name} ended with {answer[name]['status']}: {answer[name]['errors']}")
    if answer["lost"]:
        complaints.append(f"{answer['lost']} records were lost")
    objects = [json.loads(line) for line in as_json["output"].splitlines()]
    if len(objects) != len(records):
        return [*complaints, f"`show --json` has {len(objects)} records of {len(records)}"]
    for record, object_ in zip(records, objects, strict=True):
        for name, value in object_.items():
            if name in record and record[name] != value:
                complaints.append(f"`show --json` has the {name} {value!r} in place of {record[name]!r}")
    lines = shown["output"].splitlines()
    if len(lines) != len(records):
        return [*complaints, f"`show` has {len(lines)} lines for {len(records)} records"]
    for record, line in zip(records, lines, strict=True):
        if record["effect"] == "print" or (record["effect"] == "jax.debug" and "(" not in record["text"]):
            is_right = line == record["text"]
        elif record["effect"] == "log":
            is_right = line.startswith(f"{logging.getLevelName(record['level']):<8} {record['text']}")
        else:
            is_right = record["text"] in line
        if not is_right:
            complaints.append(f"`show` has the line {line!r} for {record}")
    return complaints


# The records.


def line_of(record: dict[str, Any]) -> str:
    """A record as the line that the reading has of it."""
    text, lane = (
        record["text"],
        in_lane(tuple(record["lane"]), None if record["grid"] is None else tuple(record["grid"])),
    )
    if record["effect"] == "check":
        return text + lane
    if record["effect"] == "log":
        return f"{text} {logging.getLevelName(record['level'])}{lane}"
    return text.split("(", 1)[0] if record["effect"] in CALLED else text


def is_of_operation(record: dict[str, Any]) -> bool:
    """Whether it says of an asynchronous operation that it has begun, of which there is no line."""
    return record["effect"] == "async" or record["text"].startswith("async_")


def seen_of(record: dict[str, Any]) -> Seen:
    grid = None if record["grid"] is None else tuple(record["grid"])
    return Seen(tuple(record["token"]), tuple(record["lane"]), record["device"], record["ordered"], grid)


def named(runs: Any, lines: Iterable[str]) -> list[str]:
    """The lines, of which those of callbacks are names only, as in their records."""
    callbacks = {s.label for s in statements(runs) if isinstance(s, Callback)}
    words = ((line.split(" ", 1)[0], line) for line in lines)
    return [word if word in callbacks or word.endswith((".callback", ".asked")) else line for word, line in words]


def _outcomes(runs: Any, expected: Outcome, records: Sequence[dict[str, Any]]) -> tuple[Outcome, Outcome]:
    """The expected outcome, and the outcome that was read."""
    records = [record for record in records if not is_of_operation(record)]
    lines, tokens = without_signed_zeros(map(line_of, records)), [*map(seen_of, records)]
    seen = dataclasses.replace(expected, lines=lines, tokens=tokens)
    return dataclasses.replace(expected, lines=named(runs, expected.lines), stopped=[]), seen


def compare_records(case: Case, expected: Outcome, records: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong with the records of a case: their order in each domain, their texts, and their tokens."""
    stopped = stopped_labels(case, expected)
    expected, seen = _outcomes(case.runs, expected, records)
    seen = _without_late(_may_be_late(case.runs, expected), expected, seen)
    expected = settle_domains(case, expected, seen)
    kinds = kinds_of_labels(case.runs)
    unordered = {label for label, kind in kinds.items() if not EFFECTS[kind]} | {"u"}
    apart = domains_of_labels(case.runs)
    unknown = unknown_labels(case, expected)

    def split(lines: Iterable[str]) -> tuple[list[str], collections.Counter[str]]:
        known = [line for line in lines if label_of(line) not in unknown]
        ordered = [line for line in known if label_of(line) not in unordered]
        ordered.sort(key=lambda line: apart.get(label_of(line), ""))  # domains know nothing of each other
        return ordered, collections.Counter(line for line in known if label_of(line) in unordered)

    complaints = difference(split(expected.lines), split(seen.lines), stopped)
    if not complaints and expected.places is not None and not unknown:
        complaints = compare_places(expected, seen, lambda line: label_of(line) in unordered, bool(stopped))
    return complaints


def compare_device_records(case: DeviceCase, records: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong with the records of a case over several devices."""
    complaints = []
    for number, sequence in enumerate(case.sequences):
        runs = tuple(item for item in sequence if isinstance(item, Run))
        several = len(case.sequences) > 1
        own = [record for record in records if not several or record["text"].startswith(f"t{number}")]
        expected, places = expect_on_devices(sequence, case.after_error == "stop", RecordedDeviceReading)
        expected, seen = _outcomes(runs, expected, own)
        may_be_late = _may_be_late(runs, expected)
        if case.after_error == "stop":
            regions = [s for s in statements(runs) if isinstance(s, Region)]
            may_be_late |= {s.label for region in regions for s in statements(region.body) if hasattr(s, "label")}
        else:
            threads = {seen_of(record).thread for record in own}
            seen.tokens = [each for each in map(seen_of, records) if each.thread in threads]  # of operations, too
        seen = _without_late(may_be_late, expected, seen)
        texts = [(record["text"].split("(", 1)[0], record["device"]) for record in own]
        complaints += device_compare.compare(sequence, expected, places, seen, texts)
    return complaints


def _may_be_late(runs: Any, expected: Outcome) -> set[str]:
    """The labels of asynchronous functions, where a program has failed: one may have started by then."""
    failed = any(isinstance(state, str) for state in expected.states)
    return {s.label for s in statements(runs) if failed and isinstance(s, InFlight)}


def _without_late(labels: Collection[str], expected: Outcome, seen: Outcome) -> Outcome:
    """What was read without the records of these labels that devices publish after one of them has ended the program.
    The sequential reading ends there, and a device may come any way further."""
    if not labels:
        return seen
    late = collections.Counter(seen.lines)
    late.subtract(expected.lines)
    dropped = set()
    for kind, _, _, start, stop in difflib.SequenceMatcher(None, expected.lines, seen.lines, False).get_opcodes():
        for at in range(start, stop):
            line = seen.lines[at]
            if kind != "equal" and late[line] > 0 and label_of(line) in labels:
                late[line] -= 1
                dropped.add(at)
    kept = [at for at in range(len(seen.lines)) if at not in dropped]
    assert seen.tokens is not None
    return dataclasses.replace(seen, lines=[seen.lines[at] for at in kept], tokens=[seen.tokens[at] for at in kept])


Split = tuple[Sequence[str], collections.Counter[str]]


def difference(expected: Split, seen: Split, stopped: Collection[str] = ()) -> list[str]:
    """What is wrong with ordered lines, and with the counts of others. What callbacks with the `stopped` labels have
    called may be missing."""
    complaints = []
    if [*expected[0]] != [*seen[0]]:
        diff = difflib.unified_diff(expected[0], seen[0], "expected records", "read", lineterm="", n=3)
        complaints.append("\n".join(diff))
    for line in sorted(expected[1].keys() | seen[1].keys()):
        want, got = expected[1][line], seen[1][line]
        may_lack = got < want and label_of(line) in stopped and line.split(" ", 1)[0] != label_of(line)
        if want != got and not may_lack:
            complaints.append(f"the unordered record {line!r} was read {got} times, not {want} times")
    return complaints
