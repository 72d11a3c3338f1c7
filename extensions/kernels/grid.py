"""The grid pass: in a kernel that JAX simulates, every effect knows which program of the grid has it.

It is of the same shape as the mask pass: the index of the program is a constant of every body that holds effects. So
are the index and the size along each axis, since JAX's simulation does not know them in loops and branches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from effects import _jax
from effects._jax import pallas
from effects._model.primitive import effect_p
from effects.lowering.holders import send
from effects.lowering.summary import summarize

LANES = f"{pallas.HIDDEN}lane "
"""The name, before a number, of the inputs by which a kernel gets its lane in each `vmap`."""


def needs_grid(params: dict[str, Any]) -> bool:
    """Returns True if a kernel has effects, or reads its place in the grid inside a loop or a branch."""
    kernel = params["jaxpr"]
    inside = (inner for eqn in kernel.eqns for inner in _jax.jaxprs_in(eqn.params))
    return bool(summarize(kernel).all_effects) or any(summarize(inner).needs_grid for inner in inside)


def show_grid(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a kernel in which effects, loops and branches know the place of their program in the grid."""
    rank = pallas.grid_rank(params)
    # The last applied `vmap` is the outermost.
    lanes = pallas.named_inputs(params, LANES)[::-1]

    def kernel(*references: Any) -> list[Any]:
        position, sizes = pallas.grid_position(rank)
        index = [references[lane][0, 0].astype(jnp.int32) for lane in lanes] + position
        vector = jnp.stack(index) if index else jnp.zeros(0, jnp.int32)
        return _with_index(_jax.closed_jaxpr(params["jaxpr"]), [*position, *sizes, vector], references)

    return pallas.with_kernel(params, kernel)


def with_lane(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a kernel that takes one input more: its lane in the next `vmap`."""
    kernel = _jax.closed_jaxpr(params["jaxpr"])
    name = f"{LANES}{len(pallas.named_inputs(params, LANES))}"
    return pallas.with_input(params, name, lambda _, *references: _jax.evaluate(kernel, references))


def visit_grid(params: dict[str, Any], order: Any) -> tuple[dict[str, Any], Any]:
    """The parameters of a kernel whose grid is visited in another order, and an operand that comes ahead of all others.

    `order` lists the programs by their numbers in the grid, the last axis first.
    """
    kernel = _jax.closed_jaxpr(params["jaxpr"])
    return pallas.with_grid_order(
        params, order, lambda position, sizes, *references: _with_index(kernel, [*position, *sizes], references)
    )


@dataclasses.dataclass(frozen=True)
class _Grid:
    """The grid pass. Its constants are the indices and the sizes along the axes, and the index that effects show,
    unless they show it already."""

    rank: int

    def bind(self, eqn: Any, operands: list[Any], consts: Sequence[Any], state: list[Any]) -> Sequence[Any] | None:
        if eqn.primitive is pallas.program_id_p:
            return [consts[eqn.params["axis"]]]
        if eqn.primitive is pallas.num_programs_p:
            return [consts[self.rank + eqn.params["axis"]]]
        if eqn.primitive is effect_p and len(consts) > 2 * self.rank:
            return _bind_effect(eqn, operands, consts[-1])
        return None

    def enters(self, eqn: Any) -> bool:
        return any(summarize(inner).needs_grid for inner in _jax.jaxprs_in(eqn.params))


def _with_index(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    return send(_Grid(len(consts) // 2), jaxpr, args, consts)[1]


def _bind_effect(eqn: Any, operands: Sequence[Any], index: Any) -> Sequence[Any]:
    """Binds an effect with the index of its program."""
    operands, site = eqn.params["site"].with_hidden(operands, "grid", index)
    return effect_p.bind(*operands, site=site)
