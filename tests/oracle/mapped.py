"""Along which axes of the `vmap`s around the operands of JAX's own effects are mapped."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tests.oracle.expressions import names
from tests.oracle.language import Program, is_of_jax
from tests.oracle.statements.calls import Vmap
from tests.oracle.statements.control import Cond, Switch

Axes = frozenset[str]
"""Axes, each named by the variable of its lanes."""


def mapped_axes(program: Program) -> dict[str, Axes]:
    """The axes along which an operand of each of JAX's own effects is mapped, by the effect's label."""
    mapped: dict[str, Axes] = {}
    _walk(program, {}, frozenset(), mapped)
    return mapped


def _walk(tree: object, lanes: Mapping[str, Axes], others: Axes, mapped: dict[str, Axes]) -> None:
    """Notes the effects below a node in `mapped`.

    Args:
      tree: the node.
      lanes: the axes along which each lane's own value is mapped, by its name.
      others: those along which all other values are mapped.
      mapped: where the effects are noted.
    """

    def along(*expressions: object) -> Axes:
        return frozenset[str]().union(*(lanes.get(name, others) for name in names(expressions)))

    if isinstance(tree, Vmap):
        lanes = {**lanes, tree.variable: along(tree.base) | {tree.variable}}
    elif isinstance(tree, Cond | Switch):  # JAX maps all that comes from outside as it maps the predicate
        differs = along(tree.test if isinstance(tree, Cond) else tree.index)
        lanes, others = {name: axes | differs for name, axes in lanes.items()}, others | differs
    elif is_of_jax(getattr(tree, "kind", "")):
        mapped[tree.label] = along(*tree.operands)  # type: ignore[attr-defined]
    elif getattr(tree, "by_jax", False):  # a print of an array that is sharded
        mapped[tree.label] = along(tree.base)  # type: ignore[attr-defined]
    if isinstance(tree, tuple):
        for each in tree:
            _walk(each, lanes, others, mapped)
    elif dataclasses.is_dataclass(tree):
        for field in dataclasses.fields(tree):
            _walk(getattr(tree, field.name), lanes, others, mapped)
