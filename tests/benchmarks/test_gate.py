"""What the gate of the benchmarks calls worse, on made-up runs."""

from __future__ import annotations

import json
import random

import pytest

from benchmarks import _gate
from benchmarks.__main__ import main
from benchmarks._cases import CASES, Case, Result
from benchmarks._measure import Figure
from benchmarks._ratios import aside, cost, gain
from benchmarks._report import to_json

MACHINE = dict.fromkeys(("cpu", "cores", "system", "python", "jax", "jaxlib", "device"), "any")
STEADY = (1.00, 1.01, 1.02, 1.03, 1.04)
NOISY = (0.5, 0.8, 1.0, 1.3, 2.0)


@pytest.fixture(autouse=True)
def _case(monkeypatch):
    result = Result("call", [], {})
    monkeypatch.setitem(CASES, "made up", Case("made up", "nothing is measured", lambda repeats: result, "usual"))


def run_of(ratio=None, machine=MACHINE, **counts):
    """A run of one case, as `--json` writes it."""
    result = Result("call", [] if ratio is None else [ratio], {}, counts)
    return json.loads(json.dumps(to_json({"made up": result}, machine, 5)))


def ratio_of(kind, rounds, times=1.0):
    """A ratio with these rounds, all so many times as large."""
    return kind("one / other", Figure(tuple(times * x for x in rounds)), Figure((1.0,) * len(rounds)))


def outcome(before, now):
    [verdict] = _gate.judge(before, now)
    return verdict.outcome


@pytest.mark.parametrize(
    ("kind", "rounds", "times", "expected"),
    [
        (cost, STEADY, 1.0, "within the spread"),
        (cost, STEADY, 1.3, "worse"),
        (cost, STEADY, 0.7, "better"),
        (gain, STEADY, 1.3, "better"),
        (gain, STEADY, 0.7, "worse"),
        (cost, STEADY, 1.1, "within the spread"),  # two processes differ by so much though each is steady
        (gain, STEADY, 0.9, "within the spread"),
        (cost, NOISY, 1.3, "within the spread"),
        (gain, NOISY, 0.7, "within the spread"),
        (cost, NOISY, 10, "worse"),
        (gain, NOISY, 0.1, "worse"),
        (cost, STEADY[:4], 10, "not judged"),  # too few rounds to know how far they spread
    ],
)
def test_ratio_is_worse_beyond_the_spread(kind, rounds, times, expected):
    """In the direction that is bad for it."""
    assert outcome(run_of(ratio_of(kind, rounds)), run_of(ratio_of(kind, rounds, times))) == expected


@pytest.mark.parametrize(("before", "now"), [(STEADY, NOISY), (NOISY, STEADY)])
def test_spread_of_either_run_counts(before, now):
    """A noisy run is not failed by a steady baseline, nor a steady run by a noisy baseline."""
    assert outcome(run_of(ratio_of(cost, before)), run_of(ratio_of(cost, now, 1.3))) == "within the spread"


def test_noise_alone_is_hardly_ever_worse_and_twice_the_cost_always_is():
    """Of rounds with a deviation of a tenth."""
    chance = random.Random(0)

    def rounds(times=1.0):
        return run_of(ratio_of(cost, [chance.lognormvariate(0, 0.1) for _ in range(11)], times))

    assert sum(outcome(rounds(), rounds()) == "worse" for _ in range(2000)) <= 4
    assert all(outcome(rounds(), rounds(2)) == "worse" for _ in range(200))


def test_what_is_not_ours_is_not_judged():
    """JAX's own print may become slower."""
    assert _gate.judge(run_of(ratio_of(aside, STEADY)), run_of(ratio_of(aside, STEADY, 10))) == []


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (1000, 1000, "within the spread"),
        (1000, 1040, "within the spread"),
        (1000, 1100, "worse"),
        (1000, 900, "better"),
        (0, 0.1, "within the spread"),
        (0, 1, "worse"),
        (3, 4, "worse"),
    ],
)
def test_counts_are_compared_closely(before, now, expected):
    """Noise does not change them."""
    assert outcome(run_of(calls=before), run_of(calls=now)) == expected


def gate(tmp_path, capsys, before, now):
    """The exit code of the command, and its output."""
    files = [tmp_path / "before.json", tmp_path / "now.json"]
    for file, run in zip(files, (before, now), strict=True):
        if run is not None:
            file.write_text(json.dumps(run))
    code = main(["--read", str(files[1]), "--gate", str(files[0])])
    return code, " ".join(capsys.readouterr().out.split())


def test_command_fails_if_something_is_worse(tmp_path, capsys):
    """And says how many."""
    code, out = gate(tmp_path, capsys, run_of(ratio_of(cost, STEADY)), run_of(ratio_of(cost, STEADY, 2)))
    assert code == 1
    assert "1 of 1 ratios and counts are worse than the baseline" in out


def test_command_passes_if_nothing_is_worse(tmp_path, capsys):
    """A better figure is shown as such."""
    code, out = gate(tmp_path, capsys, run_of(ratio_of(cost, STEADY, 2)), run_of(ratio_of(cost, STEADY)))
    assert code == 0
    assert "better" in out
    assert "another environment" not in out


def test_what_the_baseline_lacks_is_said_and_passes(tmp_path, capsys):
    """A new ratio, a new count, a case that was not measured, and another machine."""
    before = run_of(machine={**MACHINE, "cores": "8"})
    before["cases"]["left out"] = before["cases"]["made up"]
    code, out = gate(tmp_path, capsys, before, run_of(ratio_of(cost, STEADY), calls=1))
    assert code == 0
    assert "0 of 0 ratios and counts" in out
    assert "cores 8 there, any here" in out
    assert "Not measured in this run: left out." in out
    assert out.count("not judged") == 2


def test_without_a_baseline_nothing_is_compared(tmp_path, capsys):
    """The command says how to write one."""
    code, out = gate(tmp_path, capsys, None, run_of(ratio_of(cost, STEADY)))
    assert code == 0
    assert "There is no baseline" in out
