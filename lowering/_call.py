"""What means no more than a body by the time of lowering: it is evaluated in place.

What only mattered to transformations is over when the token pass runs, and so it is where effects get their masks, but
for functions that bring rules of their own (see `_masks.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from effects import _jax_compat as compat
from lowering._rules import TokenContext, Tokens, register_token_rule
from lowering.holders import Extra, holds


def _hold_inlined(primitive: Any, body_in: Any) -> None:
    @holds(primitive)
    def _inlined(extra: Extra, *args: Any, **params: Any) -> Sequence[Any]:
        return extra.run(body_in(params), args)


for _primitive, _body_in in compat.inlined_calls().items():
    _hold_inlined(_primitive, _body_in)


@register_token_rule(compat.linear_solve_p)
def _linear_solve_token_rule(
    ctx: TokenContext, tokens: Tokens, *args: Any, const_lengths: Any, jaxprs: Any
) -> tuple[Tokens, list[Any]]:
    """What runs is `solve`; the other functions are for differentiation and transposition."""
    begin = const_lengths.matvec + const_lengths.vecmat
    solve_consts = args[begin : begin + const_lengths.solve]
    return ctx.thread(jaxprs.solve, tokens, [*solve_consts, *args[sum(const_lengths) :]])
