"""The command `python -m benchmarks`."""

from __future__ import annotations

import json

from benchmarks import __main__ as command
from benchmarks._cases import CASES, Case, Result
from benchmarks._measure import Figure


def test_failing_case_keeps_the_others(monkeypatch, tmp_path, capsys):
    """A case that cannot be measured is named, those before and after it are shown and written, and the command
    fails."""

    def works(repeats):
        return Result("call", [], {"something": Figure((1.0,))})

    def fails(repeats):
        raise ValueError("no such thing here")

    def exits(repeats):
        raise SystemExit("no compiler here")

    for name, run in {"first": works, "second": fails, "third": exits, "fourth": works}.items():
        monkeypatch.setitem(CASES, name, Case(name, "a case", run, "usual"))
    figures = tmp_path / "figures.json"
    assert command.main(["--only", "first", "second", "third", "fourth", "--json", str(figures)]) == 1
    assert list(json.loads(figures.read_text())["cases"]) == ["first", "fourth"]
    shown = capsys.readouterr()
    assert "first, per call" in shown.out and "fourth, per call" in shown.out
    assert "Failed, and not in the tables: second, third." in shown.out
    assert "no such thing here" in shown.err and "no compiler here" in shown.err
    assert command.main(["--only", "first"]) == 0
