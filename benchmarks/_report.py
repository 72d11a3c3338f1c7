"""Results as JSON for programs and as tables for people. Tables are made from the JSON, so a file shows as a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.table import Table

from benchmarks._cases import CASES, Curve, Result
from benchmarks._measure import Figure
from benchmarks._ratios import spread

_SCALES = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")),
    "B": ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1.0, "B")),
}


def to_json(results: Mapping[str, Result], machine: Mapping[str, str], repeats: int) -> dict[str, Any]:
    """All of it as plain values; times in seconds, sizes in bytes."""
    return {
        "machine": dict(machine),
        "repeats": repeats,
        "cases": {
            name: {
                "what": CASES[name].what,
                "per": result.per,
                "ratios": [
                    {
                        "label": ratio.label,
                        "value": _rounded(ratio.value),
                        "spread": None if ratio.spread is None else [_rounded(x) for x in ratio.spread],
                        "better": ratio.better,
                        "target": ratio.target,
                        "met": ratio.met,
                        "rounds": [_rounded(x) for x in ratio.rounds],
                    }
                    for ratio in result.ratios
                ],
                "counts": {label: _rounded(count) for label, count in result.counts.items()},
                "figures": {contender: _figure(figure) for contender, figure in result.figures.items()},
                "curve": None if result.curve is None else _curve(result.curve),
            }
            for name, result in results.items()
        },
    }


def _figure(figure: Figure) -> dict[str, Any]:
    values = {"median": figure.median, "low": figure.low, "high": figure.high}
    of_rounds = spread(figure.rounds)
    half = None if of_rounds is None else [_rounded(x) for x in of_rounds]
    return {name: _rounded(value) for name, value in values.items()} | {"spread": half, "unit": figure.unit}


def _curve(curve: Curve) -> dict[str, Any]:
    lines = {
        name: [None if figure is None else _figure(figure) for figure in line] for name, line in curve.lines.items()
    }
    sizes = list(curve.sizes)
    return {"of": curve.of, "unit": curve.unit, "in_bytes": curve.in_bytes, "sizes": sizes, "lines": lines}


def _rounded(value: float) -> float:
    """Five digits are more than any measurement has."""
    return float(f"{value:.5g}")


def show(run: Mapping[str, Any], console: Console) -> None:
    """Prints a run: ratios and counts first, then the figures behind them."""
    ratios = Table("case", "ratio", title="Ratios", title_justify="left")
    counts = Table("case", "count", title="Counts", title_justify="left")
    figures = Table("case", "contender", title="Figures", title_justify="left")
    _add_columns(ratios, "is", "middle half", "target")
    ratios.add_column("met")
    _add_columns(counts, "is")
    _add_columns(figures, "median", "least", "most")
    legend = Table.grid(padding=(0, 2))
    for name, case in run["cases"].items():
        legend.add_row(name, case["what"])
        for i, ratio in enumerate(case["ratios"]):
            met = {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[ratio["met"]]
            half = "" if ratio["spread"] is None else " to ".join(map(_show_ratio, ratio["spread"]))
            label, value = ratio["label"], _show_ratio(ratio["value"])
            ratios.add_row("" if i else name, label, value, half, ratio["target"] or "", met)
        for i, (label, count) in enumerate(case["counts"].items()):
            counts.add_row("" if i else name, label, f"{count:,.5g}" if count < 1000 else f"{count:,.0f}")
        for i, (contender, figure) in enumerate(case["figures"].items()):
            values = (_show_quantity(figure[key], figure["unit"]) for key in ("median", "low", "high"))
            figures.add_row("" if i else f"{name}, per {case['per']}", contender, *values)
        for table in (ratios, counts, figures):
            table.add_section()
    tables = [part for table in (ratios, counts, figures) if table.row_count for part in ("", table)]
    console.print(Group(describe(run), "", legend, *tables))


def _add_columns(table: Table, *columns: str) -> None:
    for column in columns:
        table.add_column(column, justify="right")


def describe(run: Mapping[str, Any]) -> str:
    """Where and how a run was made, on one line."""
    machine = "{cpu}, {cores} cores, {system}; Python {python}, JAX {jax}, device {device}".format(**run["machine"])
    return f"{machine}; median of {run['repeats']} repeats, interleaved"


def _show_ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _show_quantity(value: float, unit: str) -> str:
    for scale, name in _SCALES[unit]:
        if abs(value) >= scale:
            return f"{value / scale:.3g} {name}" if value / scale < 1000 else f"{value / scale:,.0f} {name}"
    return f"{value:g} {unit}"
