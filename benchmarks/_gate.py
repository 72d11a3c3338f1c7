"""Whether a run is worse than the baseline, beyond what either of them spreads.

A ratio is worse if it has moved in the bad direction by more than the middle halves of its rounds are wide, the
baseline's and the run's together, and by more than `FLOOR` at least: two processes differ though each is steady in
itself. A median of eleven rounds moves so far by chance in fewer than one of a thousand comparisons. Widths are
quotients, as the ratios are, so that a ratio of 300 is treated like one of 1.5. What noise does not change is compared
within `COUNT_FLOOR`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import jax
from rich.console import Console
from rich.table import Table

from benchmarks._ratios import LEAST_ROUNDS, spread

FLOOR = 1.15
COUNT_FLOOR = 1.05
COUNT_STEP = 0.1
"""Counts are compared within a tenth of a one too: how many records the drain takes at a time is chance, so what it
does for them all, divided by their number, is not quite the same each time."""

FOLDER = Path(__file__).with_name("baseline")
"""Has a file for each version of JAX, written by `--json`. The file says on which machine."""

Outcome = Literal["worse", "better", "within the spread", "not judged"]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of one ratio or count."""

    case: str
    label: str
    outcome: Outcome
    before: float | None = None
    now: float | None = None
    allowed: float | None = None  # the quotient of the two that is not yet called worse
    why: str = ""  # it is not judged


def committed_baseline() -> Path:
    """The baseline for the version of JAX that runs."""
    return FOLDER / f"jax-{'.'.join(jax.__version__.split('.')[:2])}.json"


def judge(baseline: Mapping[str, Any], now: Mapping[str, Any]) -> list[Verdict]:
    """Compares two runs, both as `--json` writes them.

    Returns:
        A verdict for each ratio with a better direction and each count of the run, in its order.
    """
    verdicts: list[Verdict] = []
    for name, case in now["cases"].items():
        before = baseline["cases"].get(name, {})
        ratios = {ratio["label"]: ratio for ratio in before.get("ratios", ())}
        for ratio in case["ratios"]:
            if ratio["better"] is not None:
                verdicts.append(_judge_ratio(name, ratios.get(ratio["label"]), ratio))
        counts = before.get("counts", {})
        verdicts += (_judge_count(name, label, counts.get(label), value) for label, value in case["counts"].items())
    return verdicts


def _judge_ratio(case: str, before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> Verdict:
    label = now["label"]
    if before is None:
        return Verdict(case, label, "not judged", now=now["value"], why="the baseline has no such ratio")
    spreads = [spread(tuple(run["rounds"])) for run in (before, now)]
    widths = [math.log(high / low) for low, high in filter(None, spreads)]
    if len(widths) < 2:
        why = f"one of the two has fewer than {LEAST_ROUNDS} rounds, or a round that is not positive"
        return Verdict(case, label, "not judged", before["value"], now["value"], why=why)
    allowed = max(math.exp(sum(widths)), FLOOR)
    worse = now["value"] / before["value"]
    if now["better"] == "more":
        worse = 1 / worse
    outcome: Outcome = "worse" if worse > allowed else "better" if worse < 1 / allowed else "within the spread"
    return Verdict(case, label, outcome, before["value"], now["value"], allowed)


def _judge_count(case: str, label: str, before: float | None, now: float) -> Verdict:
    if before is None:
        return Verdict(case, label, "not judged", now=now, why="the baseline has no such count")
    step = max(before * (COUNT_FLOOR - 1), COUNT_STEP)
    outcome: Outcome = "worse" if now > before + step else "better" if now < before - step else "within the spread"
    return Verdict(case, label, outcome, before, now, (before + step) / before if before else None)


def show(verdicts: list[Verdict], baseline: Mapping[str, Any], now: Mapping[str, Any], console: Console) -> None:
    """Prints the verdicts, what is worse last, where a reader looks first."""
    colours = {"worse": "red", "better": "green", "within the spread": "", "not judged": "dim"}
    table = Table("case", "ratio or count", title="Against the baseline", title_justify="left")
    for column in ("baseline", "now", "allowed"):
        table.add_column(column, justify="right")
    table.add_column("outcome")
    for verdict in sorted(verdicts, key=lambda verdict: verdict.outcome == "worse"):
        values = ("" if x is None else f"{x:,.4g}" for x in (verdict.before, verdict.now))
        allowed = "" if verdict.allowed is None else f"x {verdict.allowed:.2f}"
        outcome = f"{verdict.outcome}{': ' if verdict.why else ''}{verdict.why}"
        table.add_row(verdict.case, verdict.label, *values, allowed, outcome, style=colours[verdict.outcome])
    console.print(table)
    for line in _remarks(verdicts, baseline, now):
        console.print(line, highlight=False, soft_wrap=True)


def _remarks(verdicts: list[Verdict], baseline: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    of, here = baseline["machine"], now["machine"]
    if other := [f"{key} {of[key]} there, {here[key]} here" for key in here if of.get(key) != here[key]]:
        yield f"The baseline is from another environment: {'; '.join(other)}."
    if missing := baseline["cases"].keys() - now["cases"].keys():
        yield f"Not measured in this run: {', '.join(sorted(missing))}."
    worse = sum(verdict.outcome == "worse" for verdict in verdicts)
    judged = sum(verdict.outcome != "not judged" for verdict in verdicts)
    yield f"{worse} of {judged} ratios and counts are worse than the baseline beyond the spread."
