"""Run files against the oracle, in small numbers: what another process reads, and what `diff` finds."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.helpers import ROOT
from tests.oracle.expressions import Literal, Name
from tests.oracle.language import Case, Program, Run
from tests.oracle.observe import expect
from tests.oracle.runs import comparing, mutating
from tests.oracle.runs.comparing import check, compare_answer, compare_records
from tests.oracle.runs.reader import Reader
from tests.oracle.runs.recorded import RecordedReading
from tests.oracle.statements.callback import Callback
from tests.oracle.statements.effects import Effect, Log

PROGRAM = Program(
    (), (Effect("ordered", "one", (Name("a"),)), Log("log", "two", "INFO", (), False), Effect("ordered", "three", ()))
)
CASE = Case((Run(PROGRAM, (1, 2, 3)), Run(PROGRAM, (4, 2, 3))))


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--devices"], ["--kernels"]], ids=["plain", "devices", "kernels"])
def test_random_programs_are_read_as_they_were_recorded(options: list[str]) -> None:
    """Records, their order, texts and tokens, in `show`, `show --json` and `effects.runs.read`; and `diff`."""
    command = [sys.executable, "-m", "tests.oracle", "--runs", *options, "--programs", "2", "--seed", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "failed: 0" in done.stdout, done.stdout + done.stderr


MANY = Program((), tuple(Effect("ordered", f"e{number}", (Name("a"),)) for number in range(30)))
FULL = Case((Run(MANY, (1, 2, 3)),))


@pytest.mark.slow
@pytest.mark.parametrize("fill", [0.8, 1.5, 4])
@pytest.mark.parametrize("kind", mutating.MUTATIONS)
def test_diff_finds_place_in_files_that_are_full(kind: str, fill: float) -> None:
    """Files that have kept their newest records only."""
    assert mutating.check_cut(FULL, random.Random(0), kind, fill) == 2


DROPS_WHAT_PYTHON_FORMATS = """
from effects.extensions.runs.reading import Run
lines = Run.lines
Run.lines = lambda run, line: lines(run, lambda record: "")
"""
TAKES_CUT_FILES_FOR_WHOLE = """
from effects.extensions.runs import tables
tables._first_call = lambda runs: 0
"""


@pytest.fixture
def reader_with(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Reader]]:
    """Has the oracle ask a reader with a slip."""
    readers = []

    def make(slip: str) -> Reader:
        readers.append(Reader(slip))
        for module in (comparing, mutating):
            monkeypatch.setattr(module, "reader", lambda: readers[0])
        return readers[0]

    yield make
    for each in readers:
        each.close()


def test_reader_that_drops_what_python_formats_is_noticed(reader_with: Callable[[str], Reader]) -> None:
    """The lines of callbacks are made by Python."""
    callback = Callback("queued", "one", (Name("a"),), "flat", False, (), False)
    case = Case((Run(Program((), (callback,)), (1, 2, 3)),))
    check(case)
    reader_with(DROPS_WHAT_PYTHON_FORMATS)
    with pytest.raises(AssertionError, match="`show` has 0 lines for 1 records"):
        check(case)


def test_reader_that_takes_cut_files_for_whole_is_noticed(reader_with: Callable[[str], Reader]) -> None:
    """A part of what was written before is left in a file that was filled since."""
    reader_with(TAKES_CUT_FILES_FOR_WHOLE)
    with pytest.raises(AssertionError, match="diff with left out"):
        mutating.check_cut(FULL, random.Random(0), "left out", 1.5)


def _records() -> list[dict[str, Any]]:
    texts = [("one 1", "print"), ("two", "log"), ("three", "print"), ("one 4", "print"), ("two", "log")]
    texts.append(("three", "print"))
    return [
        {
            **{"text": text, "effect": effect, "level": 20 if effect == "log" else None, "ordered": True, "lane": []},
            **{"grid": None, "token": [256, number // 3, 0, number % 3], "device": 0, "process": 0},
        }
        for number, (text, effect) in enumerate(texts)
    ]


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(lambda records: records.pop(1), id="left out"),
        pytest.param(lambda records: records.insert(1, records[0]), id="twice"),
        pytest.param(lambda records: records.reverse(), id="another order"),
        pytest.param(lambda records: records[0].update(text="one 2"), id="another text"),
        pytest.param(lambda records: records[0].update(lane=[1]), id="a lane"),
        pytest.param(lambda records: records[2].update(token=[256, 0, 0, 7]), id="another token"),
    ],
)
def test_compare_records_reports_what_was_planted(planted: Any) -> None:
    """A reader that leaves out, repeats, moves or changes a record is noticed."""
    expected = expect(CASE, RecordedReading)
    assert compare_records(CASE, expected, _records()) == []
    records = _records()
    planted(records)
    assert compare_records(CASE, expect(CASE, RecordedReading), records)


def test_compare_answer_reports_line_that_show_leaves_out() -> None:
    """A `show` that drops what Python formats is noticed."""
    record = _records()[0]
    right = {"status": 0, "output": "one 1\n", "errors": ""}
    as_json = right | {"output": '{"text": "one 1"}\n'}
    answer = {"records": [record], "show": right, "json": as_json, "lost": 0}
    assert compare_answer(answer) == []
    assert compare_answer(answer | {"show": right | {"output": ""}})
    assert compare_answer(answer | {"json": as_json | {"output": '{"text": "one 2"}\n'}})
    assert compare_answer(answer | {"show": right | {"status": 1}})


def test_diff_finds_each_mutation_and_nothing_else() -> None:
    """A value that is changed, an effect that is moved, left out or added; and nothing in the same program again."""
    assert mutating.check(CASE, random.Random(0)) == 5


def test_compare_reports_diff_that_finds_another_place() -> None:
    """A `diff` that finds nothing, or something else, is noticed."""
    [mutation] = [each for each in mutating.mutations(PROGRAM) if each.kind == "value"]
    before, after = mutating.lines_of(CASE), mutating.lines_of(mutating.with_program(CASE, mutation))
    sites = [{"title": "one {}", "counts": [2, 2, 0, 0]}, {"title": "two", "counts": [2, 0, 0, 0]}]
    found = {"sites": sites, "parting": None, "equal": False, "command": {"status": 1, "output": ""}}
    assert mutating.compare(mutation, before, after, found) == []
    assert mutating.compare(None, before, before, found)
    sites[1]["counts"] = [1, 0, 1, 1]
    assert mutating.compare(mutation, before, after, found)
    assert Literal(1) in mutation.changed.body[0].operands[0].__dict__.values()


def test_failed_callbacks_and_what_follows_them_are_read() -> None:
    """A file has what a failure kept from being carried out."""
    from tests.oracle.test_oracle import FAILING, FAILING_SYNC

    check(Case((Run(FAILING, (1, 2, 3)), Run(FAILING_SYNC, (1, 2, 3)))))
