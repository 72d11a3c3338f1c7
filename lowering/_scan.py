"""`scan`: tokens join what is carried, whatever the direction and the unrolling."""

from __future__ import annotations

from typing import Any

from effects import _jax as compat
from lowering._rules import TokenContext, Tokens, register_token_rule
from lowering._signature import consts_first


@register_token_rule(compat.scan_p)
def _scan_token_rule(
    ctx: TokenContext, tokens: Tokens, *args: Any, jaxpr: Any, **params: Any
) -> tuple[Tokens, list[Any]]:
    num_consts, _ = compat.read_scan(params)
    body = consts_first(ctx.threaded(jaxpr, tokens), len(tokens), num_consts)
    outs = compat.scan_p.bind(
        *args[:num_consts], *tokens.values(), *args[num_consts:], **compat.with_scan_tokens(params, body, len(tokens))
    )
    return dict(zip(tokens, outs, strict=False)), list(outs[len(tokens) :])
