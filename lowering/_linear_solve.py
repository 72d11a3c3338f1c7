"""`custom_linear_solve`, which holds several functions of which one runs."""

from __future__ import annotations

from typing import Any

from effects import _jax as compat
from lowering._rules import TokenContext, Tokens, register_token_rule


@register_token_rule(compat.linear_solve_p)
def _linear_solve_token_rule(
    ctx: TokenContext, tokens: Tokens, *args: Any, const_lengths: Any, jaxprs: Any
) -> tuple[Tokens, list[Any]]:
    """What runs is `solve`; the other functions are for differentiation and transposition."""
    begin = const_lengths.matvec + const_lengths.vecmat
    solve_consts = args[begin : begin + const_lengths.solve]
    return ctx.thread(jaxprs.solve, tokens, [*solve_consts, *args[sum(const_lengths) :]])
