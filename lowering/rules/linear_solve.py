"""`custom_linear_solve`, which holds several functions of which one runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from effects import _jax
from effects.lowering.passes.masks import MaskContext, register_mask_rule
from effects.lowering.passes.tokens import TokenContext, Tokens, register_token_rule


@register_token_rule(_jax.linear_solve_p)
def _linear_solve_token_rule(
    ctx: TokenContext, tokens: Tokens, *args: Any, const_lengths: Any, jaxprs: Any
) -> tuple[Tokens, list[Any]]:
    """What runs is `solve`; the other functions are for differentiation and transposition."""
    begin = const_lengths.matvec + const_lengths.vecmat
    solve_consts = args[begin : begin + const_lengths.solve]
    return ctx.thread(jaxprs.solve, tokens, [*solve_consts, *args[sum(const_lengths) :]])


@register_mask_rule(_jax.linear_solve_p)
def _mask_linear_solve(ctx: MaskContext, active: Any, *args: Any, const_lengths: Any, jaxprs: Any) -> Sequence[Any]:
    """What runs is `solve`."""
    at = const_lengths.matvec + const_lengths.vecmat
    return ctx.primitive.bind(
        *args[:at],
        active,
        *args[at:],
        const_lengths=const_lengths._replace(solve=const_lengths.solve + 1),
        jaxprs=jaxprs._replace(solve=ctx.masked(jaxprs.solve)),
    )
