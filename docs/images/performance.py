"""Draws performance.svg from the table in docs/performance.md: how many times slower JAX's own callbacks are.

python docs/images/performance.py
"""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent

ROWS = {  # name in the plot -> the row of JAX's time divided by ours, or the rows of JAX's and ours over a plain run
    "dispatch with an ordered print": (
        "with `jax.debug.print(ordered=True)` / plain",
        "dispatch with one ordered print / the same function plain",
    ),
    "a print in a loop of 1000, all in a file": ("a print in `fori_loop(1000)`, all in a file: JAX's / ours *",),
    "the same `jax.debug.print`, unchanged, under `fx.jit`": (
        "`jax.debug.print` there, unchanged, under `jax.jit` / under `fx.jit`",
    ),
    "time until the call of an 80 ms program returns": (
        "with `jax.debug.print` / plain",
        "time until the call of an 80 ms program with prints returns / plain",
    ),
    "a callback with a result, in a loop of 1000": (
        "a callback with a result in `fori_loop(1000)`: `io_callback(ordered=True)` / ours",
    ),
    "a callback without results there": ("a callback without results there, until all have run",),
    "logging three scalars, in a loop": (
        "`fx.log` of three scalars to `ListHandler`: `jax.debug.callback` appending / ours",
    ),
    "a print on each of 4 devices (JAX's: unordered)": (
        "with an unordered `jax.debug.print` / without",
        "a print on each of 4 virtual devices, per call of a `shard_map`, all out / the same without",
    ),
}


def read_table() -> tuple[list[str], dict[str, list[float]]]:
    """The versions, and each row's figures; of a span, its middle."""
    lines = (HERE.parent / "performance.md").read_text().splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    versions, _, *rows = table
    figures = {}
    for name, *cells in rows:
        spans = [[float(number) for number in re.findall(r"\d+\.?\d*", cell)] for cell in cells]
        figures[name.removeprefix("&nbsp;&nbsp;")] = [sum(span) / len(span) for span in spans]
    return versions[1:], figures


def main() -> None:
    """Writes the file."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "performance"  # the same table makes the same file
    from matplotlib import pyplot

    versions, figures = read_table()
    figure, axes = pyplot.subplots(figsize=(9, 4.6), layout="constrained")
    for i, version in enumerate(versions):
        values = [figures[rows[0]][i] / (figures[rows[1]][i] if rows[1:] else 1) for rows in ROWS.values()]
        places = [place + 0.4 * i - 0.2 for place in range(len(ROWS))]
        bars = axes.barh(places, values, 0.38, label=version, color=["#7aa6c2", "#1f5f8b"][i])
        axes.bar_label(bars, [f"{value:.0f}" for value in values], padding=3, fontsize=8)
    axes.set_yticks(range(len(ROWS)), [name.replace("`", "") for name in ROWS])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(1, 1000)
    axes.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    axes.set_xlabel("JAX's own time divided by ours (2 CPU cores, AMD EPYC virtual machine)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(HERE / "performance.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
