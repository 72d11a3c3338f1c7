"""Runs as pictures: what JAX's own takes beside ours, and how cost grows with size.

They are drawn from what `--json` writes, so that `--read FILE... --plot DIR` draws runs that were made before, and
those of several versions of JAX in one picture. They can be read on a phone, and have no background: text and axes are
light where the page that shows them is dark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._growth import show_size

Run = Mapping[str, Any]

BARS = {
    ("dispatch", "jax.debug.print / fx.print"): "a call with an ordered print",
    ("loop", "jax.debug.print / fx.print"): "a print in a loop of 1000, all in a file",
    ("arrays", "jax.debug.print / fx.print"): "a print of 16 floats there",
    ("unchanged", "jax.jit / fx.jit"): "jax.debug.print there, unchanged, under fx.jit",
    ("asynchronous", "jax.debug.print / fx.print"): "until the call of an 80 ms program returns",
    ("sync", "io_callback(ordered=True) / fx.callback"): "a callback with a result, in a loop of 1000",
    ("queued", "io_callback(ordered=True) / fx.callback"): "a callback without results there",
    ("log", "jax.debug.callback / fx.log"): "logging three scalars, in a loop",
    ("devices", "jax.debug.print / fx.print"): "a print on each of 4 devices (JAX's: unordered)",
}
"""Which ratios are in the picture of the README, from the case and the label to what it calls them."""

COLOURS = ("#7aa6c2", "#2f7fb8")
LINES = {"fx": ("#2f7fb8", "-", "o"), "plain": ("#999999", ":", "s"), "other": ("#c2703d", "--", "^")}
INK, GRID = "#1f2328", "#d8dce2"  # on a light page
STYLE = f"""\
 <style>
  svg {{ --ink: {INK}; --grid: {GRID}; }}
  @media (prefers-color-scheme: dark) {{ svg {{ --ink: #dcdfe4; --grid: #3a4048; }} }}
 </style>
"""
CURVES = {  # the same contender looks the same in all pictures
    "scale-prints": "A print in programs with few and with many",
    "scale-operand": "A callback with small and with large operands",
    "scale-devices": "A print on each of few and of many devices",
    "scale-threads": "A call with a print on few and on many threads",
    "scale-ring": "A print in a loop with a small and a large ring",
}


def draw(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Draws what the runs have, into a folder, and returns the files.

    Args:
        runs: What `--json` writes. The ratios of all are drawn side by side, the curves of the last.
        folder: Where `performance.svg` and a file for each curve go.
    """
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "performance", "axes.spines.top": False, "axes.spines.right": False}
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    matplotlib.rcParams |= {"font.size": 9, **dict.fromkeys(inked, INK)}
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    if any(_bars(run) for run in runs):
        drawn.append(_draw_bars(runs, folder / "performance.svg"))
    for name, case in runs[-1]["cases"].items():
        if name in CURVES and case["curve"]:
            drawn.append(_draw_curve(CURVES[name], case["curve"], runs[-1], folder / f"{name}.svg"))
    return drawn


def _bars(run: Run) -> dict[str, dict[str, Any]]:
    """The ratios of a run that are in the picture, by what it calls them."""
    found = {}
    for (case, label), name in BARS.items():
        for ratio in run["cases"].get(case, {}).get("ratios", ()):
            if ratio["label"] == label:
                found[name] = ratio
    return found


def _draw_bars(runs: Sequence[Run], file: Path) -> Path:
    from matplotlib import pyplot

    bars = [_bars(run) for run in runs]
    names = [name for name in BARS.values() if any(name in there for there in bars)]
    figure, axes = pyplot.subplots(figsize=(4.6, 1 + 0.55 * len(names)), layout="constrained")
    height = 0.6 / len(runs)
    for i, (run, there) in enumerate(zip(runs, bars, strict=True)):
        shown = [name for name in names if name in there]
        values = [there[name]["value"] for name in shown]
        places = [names.index(name) + height * (i - (len(runs) - 1) / 2) for name in shown]
        label = "JAX {jax}, Python {python}".format(**run["machine"])
        drawn = axes.barh(places, values, 0.95 * height, label=label, color=COLOURS[(i + 1) % 2])
        spreads = [there[name]["spread"] for name in shown]
        errors = _errors(values, spreads)
        axes.errorbar(values, places, xerr=errors, fmt="none", ecolor=INK, elinewidth=0.8, capsize=2)
        for bar, value, more in zip(drawn, values, errors[1], strict=True):
            at = value + more, bar.get_y() + bar.get_height() / 2
            axes.annotate(f"{value:.0f}", at, (4, 0), textcoords="offset points", va="center", fontsize=8)
    for i, name in enumerate(names):  # above its bars, where a narrow screen has room for it
        axes.annotate(name, (1, i - 0.3), (3, 3), textcoords="offset points")
    axes.set_yticks([])
    axes.set_ylim(len(names) - 0.6, -0.7)
    axes.set_xscale("log")
    axes.set_xlim(left=1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("JAX's own time divided by ours")
    figure.legend(loc="outside upper center", ncols=len(runs), frameon=False)
    _say_how(figure, runs[-1])
    return _save(figure, file)


def _draw_curve(title: str, curve: Mapping[str, Any], run: Run, file: Path) -> Path:
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(figsize=(4.6, 3.6), layout="constrained")
    for name, line in curve["lines"].items():
        kind = "fx" if name.startswith("fx.") else "plain" if name in ("plain", "a copy") else "other"
        colour, style, marker = LINES[kind]
        there = [(size, point) for size, point in zip(curve["sizes"], line, strict=True) if point]
        sizes = [size for size, _ in there]
        medians = [point["median"] for _, point in there]
        errors = _errors(medians, [point["spread"] for _, point in there])
        axes.errorbar(
            sizes,
            medians,
            yerr=errors,
            label=name,
            color=colour,
            ls=style,
            marker=marker,
            ms=5,
            elinewidth=0.8,
            capsize=2,
        )
    axes.set_xscale("log", base=2 if curve["in_bytes"] or curve["sizes"][1] == 2 else 10)
    axes.set_yscale("log")
    axes.set_xticks(curve["sizes"], [show_size(size, curve["in_bytes"]) for size in curve["sizes"]])
    axes.minorticks_off()
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1,) if high / low > 50 else (1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: _show_seconds(value))
    axes.set_xlabel(curve["of"])
    axes.set_ylabel(f"time per {curve['unit']}")
    axes.set_title(title, fontsize=10, pad=10)
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    figure.legend(loc="outside upper center", ncols=len(curve["lines"]), frameon=False)
    _say_how(figure, run, "JAX {jax}, Python {python}; ")
    return _save(figure, file)


def _errors(values: Sequence[float], spreads: Sequence[Sequence[float] | None]) -> tuple[list[float], list[float]]:
    """How far the middle half of the rounds reaches below and above each value; 0 where it is not known."""
    halves = [half or (value, value) for value, half in zip(values, spreads, strict=True)]
    below = [max(0.0, value - low) for value, (low, _) in zip(values, halves, strict=True)]
    return below, [max(0.0, high - value) for value, (_, high) in zip(values, halves, strict=True)]


def _say_how(figure: Any, run: Run, versions: str = "") -> None:
    machine = (versions + "{cpu}, {cores} cores").format(**run["machine"])
    figure.supxlabel(f"medians; lines across: the middle half of {run['repeats']} rounds\n{machine}", fontsize=7)


def _show_seconds(value: float) -> str:
    for scale, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= 0.999 * scale:
            return f"{value / scale:g} {unit}"
    return f"{value / 1e-9:g} ns"


def _save(figure: Any, file: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(file, metadata={"Date": None}, transparent=True)
    pyplot.close(figure)
    drawn = file.read_text().replace(INK, "var(--ink)").replace(GRID, "var(--grid)")
    file.write_text(drawn.replace(" <metadata>\n", f"{STYLE} <metadata>\n", 1))
    return file
