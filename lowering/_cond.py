"""`cond` and `switch`: every branch takes all tokens and returns them, used or not."""

from __future__ import annotations

from typing import Any

from effects import _jax as compat
from lowering._rules import TokenContext, Tokens, register_token_rule


@register_token_rule(compat.cond_p)
def _cond_token_rule(
    ctx: TokenContext, tokens: Tokens, index: Any, *args: Any, branches: Any, **params: Any
) -> tuple[Tokens, list[Any]]:
    outs = compat.cond_p.bind(
        index,
        *tokens.values(),
        *args,
        branches=tuple(ctx.threaded(branch, tokens) for branch in branches),
        **params,
    )
    return dict(zip(tokens, outs, strict=False)), list(outs[len(tokens) :])
