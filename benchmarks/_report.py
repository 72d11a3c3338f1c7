"""Results as tables for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.table import Table

from benchmarks._cases import CASES, Result

_SCALES = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")),
    "B": ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1.0, "B")),
}


def show(results: Mapping[str, Result], machine: Mapping[str, str], repeats: int, console: Console) -> None:
    """Prints the results: ratios first, then the figures behind them."""
    ratios = Table("case", "ratio", "is", "target", "met", title="Ratios", title_justify="left")
    figures = Table("case", "contender", "median", "least", "most", title="Figures", title_justify="left")
    for column in (2, 3):
        ratios.columns[column].justify = "right"
    for column in (2, 3, 4):
        figures.columns[column].justify = "right"
    for name, result in results.items():
        for i, ratio in enumerate(result.ratios):
            met = {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[ratio.met]
            target = "" if ratio.target is None else str(ratio.target)
            ratios.add_row("" if i else name, ratio.label, _show_ratio(ratio.value), target, met)
        for i, (contender, figure) in enumerate(result.figures.items()):
            values = (_show_quantity(x, figure.unit) for x in (figure.median, figure.low, figure.high))
            figures.add_row("" if i else f"{name}, per {result.per}", contender, *values)
        ratios.add_section()
        figures.add_section()
    legend = Table.grid(padding=(0, 2))
    for name in results:
        legend.add_row(name, CASES[name].what)
    of = "{cpu}, {cores} cores, {system}; Python {python}, JAX {jax}, device {device}".format(**machine)
    console.print(Group(f"{of}; median of {repeats} repeats, interleaved", "", legend, "", ratios, "", figures))


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
                        "value": ratio.value,
                        "target": None if ratio.target is None else str(ratio.target),
                        "met": ratio.met,
                    }
                    for ratio in result.ratios
                ],
                "figures": {contender: dataclasses.asdict(figure) for contender, figure in result.figures.items()},
            }
            for name, result in results.items()
        },
    }


def _show_ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _show_quantity(value: float, unit: str) -> str:
    for scale, name in _SCALES[unit]:
        if abs(value) >= scale:
            return f"{value / scale:.3g} {name}" if value / scale < 1000 else f"{value / scale:,.0f} {name}"
    return f"{value:g} {unit}"
