"""The tables of docs/reference/transformations.md."""

from __future__ import annotations

from tests.transformations.constructs import CONSTRUCTS
from tests.transformations.language import TRANSFORMATIONS
from tests.transformations.programs import PROGRAMS


def table() -> str:
    """The tables of docs/reference/transformations.md."""
    rows = ["| Where the effect is | x = 1 | `vmap`, x = 1 and 2 | `grad`, x = 1 |", "| --- | --- | --- | --- |"]
    by_name = {transformation.name: transformation for transformation in TRANSFORMATIONS}
    for construct in CONSTRUCTS:
        cells = [_cell(by_name[name].expected(construct)) for name in ("`jit`", "`vmap`", "`grad`")]
        rows.append(f"| {construct.name} | {' | '.join(cells)} |")
    rows += ["", "| Transformation | of `a` at x and `b` at 2x |", "| --- | --- |"]
    rows += [f"| {t.name} | {_cell(t.expected(CONSTRUCTS[0]))} |" for t in TRANSFORMATIONS]
    rows += ["", "<details><summary>More programs</summary>", "", "| Program | Effects |", "| --- | --- |"]
    rows += [f"| {name} | {_cell(expected)} |" for name, (_, _, expected) in PROGRAMS.items()]
    rows += ["", "</details>"]
    return "\n".join(rows) + "\n"


def _cell(expected: str | None) -> str:
    if expected is None:
        return "not in JAX"
    return f"`{expected}`" if expected else "none"
