"""The effects themselves: each becomes a record, and where only some lanes are there it has a mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from effects import _jax
from effects._api.custom_call_primitive import custom_call_p
from effects._api.print import print_grad_p
from effects._model.primitive import effect_p
from effects._model.site import Site, size_operands
from effects.lowering.emit.callback_sharding import checking_sharding
from effects.lowering.emit.record import record_p
from effects.lowering.passes.in_region import OUTSIDE, in_region
from effects.lowering.passes.masks import MaskContext, register_mask_rule
from effects.lowering.passes.tokens import TokenContext, Tokens, register_token_rule, token_key


@register_token_rule(effect_p)
def _effect_token_rule(ctx: TokenContext, tokens: Tokens, *operands: Any, site: Site) -> tuple[Tokens, list[Any]]:
    return bind_record(ctx, tokens, operands, site)


def bind_record(ctx: TokenContext, tokens: Tokens, operands: Sequence[Any], site: Site) -> tuple[Tokens, list[Any]]:
    """Publishes a record in place of an equation."""
    key = token_key(site.effect)
    # Ordered calls differ in their tokens. Unordered ones may be the same in all, and still are two.
    call = 0 if site.effect.ordered else ctx.call
    around = () if ctx.around is None else (ctx.around,)
    token = tokens[key] if site.origin is None else checking_sharding(tokens[key], site)
    *results, token = _jax.stage(
        record_p,
        token,
        *around,
        *size_operands(site),
        *operands,
        site=site,
        call=call,
        edges=ctx.edges,
        region=OUTSIDE if site.results is None or site.content.comes_without_lanes else in_region(),
    )
    return {key: token}, results


@register_mask_rule(effect_p, print_grad_p)
def _mask_site(ctx: MaskContext, active: Any, *operands: Any, site: Site) -> Sequence[Any]:
    if site.mask is None:
        return ctx.primitive.bind(active, *operands, site=site.with_mask())
    mask, *others = operands
    return ctx.primitive.bind(mask & active, *others, site=site)


@register_mask_rule(custom_call_p)
def _mask_custom_call(
    ctx: MaskContext, active: Any, *operands: Any, masked: bool, lanes: Any, lanes_of: Any, **params: Any
) -> Sequence[Any]:
    if masked:
        first = operands[0] & active
        return ctx.primitive.bind(first, *operands[1:], masked=True, lanes=lanes, lanes_of=lanes_of, **params)
    same = (False,) * len(lanes)
    return ctx.primitive.bind(active, *operands, masked=True, lanes=lanes, lanes_of=(same, *lanes_of), **params)
