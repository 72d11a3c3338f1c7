"""Custom calls of the user's in programs: through a handler of ours, which calls theirs.

Ours takes one operand more behind theirs, the token, and gives one result more; where there is no token that result is
an empty array, since XLA must not take what a call gives for all that a loop carries (see `record_p`). What it must
know is in one attribute, whose name sorts behind all that users may choose.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from effects import _jax_compat as compat
from effects._custom_call import Attributes, custom_call_p, unknown_target
from effects._sites import Site
from effects._targets import PLATFORMS, platforms_of, target_names
from effects._types import Order
from lowering._emit import emit_call, meet, refuse_several_devices
from lowering._rules import TokenContext, Tokens, register_token_rule, token_key

threaded_call_p = compat.Primitive("threaded_custom_call")
threaded_call_p.multiple_results = True
"""(*operands, token) -> (*results, token)."""


@threaded_call_p.def_abstract_eval
def _threaded_call_abstract_eval(*operands: Any, results: Any, **_: Any) -> list[Any]:
    return [*map(compat.per_device, results), operands[-1]]


@register_token_rule(custom_call_p)
def _custom_call_token_rule(
    ctx: TokenContext, tokens: Tokens, *operands: Any, site: Site, **params: Any
) -> tuple[Tokens, list[Any]]:
    key = token_key(site.effect)
    # As for records: unordered calls that are alike in all are two all the same.
    call = 0 if site.effect.ordered else ctx.call
    *results, token = threaded_call_p.bind(*operands, tokens[key], site=site, call=call, **params)
    return {key: token}, results


@compat.weakref_lru_cache
def has_custom_calls(jaxpr: Any) -> bool:
    """Whether a jaxpr, or one inside it, calls handlers of the user's."""
    return bool(target_names()) and any(
        eqn.primitive is custom_call_p or any(map(has_custom_calls, compat.jaxprs_in(eqn.params))) for eqn in jaxpr.eqns
    )


_HAS_TOKEN, _COUNTS, _ORDERED, _DEVICES_SHIFT, _CALL_SHIFT = 1, 2, 4, 8, 32
"""The traits of a call, in one number; see `dispatch/native/custom_call.cc`."""


def _call(
    ctx: Any,
    platform: str,
    operands: Sequence[Any],
    token_avals: Sequence[Any],
    traits: int,
    *,
    site: Site,
    aliases: Any,
    layouts: Any,
    attributes: Attributes,
    has_side_effect: bool,
    **_: Any,
) -> Sequence[Any]:
    """Calls our handler. `token_avals`: types of the token behind the operands, if there is one."""
    target = site.content.target  # type: ignore[union-attr]
    if platform not in platforms_of(target):
        raise unknown_target(target, site.where, f"the platform `{platform}`")
    meet(ctx, site)
    devices = compat.automatic_devices(ctx)
    counts = bool(traits & _COUNTS) and platform == "cpu"  # elsewhere the token is in a device's memory
    ours = {
        "target": target,
        "platform": platform,
        "where": str(site.where),
        "site": site.id,
        "traits": traits - (traits & _COUNTS) + _COUNTS * counts | devices << _DEVICES_SHIFT,
        "description": site.description,
    }
    inputs, outputs = layouts
    if token_avals:
        at = len(inputs), len(outputs)
        aliases = (*aliases, at)
    avals = [*token_avals] or [_NOTHING]
    own = [tuple(range(getattr(aval, "ndim", 0))) for aval in avals]
    outs = emit_call(
        ctx.replace(avals_out=[*ctx.avals_out[: len(outputs)], *avals]),
        "effects_custom_call",
        operands,
        {**attributes.values, "~effects": ours},
        replicated=devices != 0,
        has_side_effect=has_side_effect,
        aliases=dict(aliases),
        layouts=((*inputs, *(own if token_avals else ())), (*outputs, *own)),
    )
    return outs if token_avals else outs[:-1]


_NOTHING = compat.ShapedArray((0,), np.uint8)


def _threaded_call_lowering(ctx: Any, *operands: Any, platform: str, call: int, **params: Any) -> Any:
    traits = _HAS_TOKEN | _COUNTS | _ORDERED * params["site"].effect.ordered | call << _CALL_SHIFT
    return _call(ctx, platform, operands, ctx.avals_out[-1:], traits, has_side_effect=True, **params)


def _custom_call_lowering(ctx: Any, *operands: Any, platform: str, **params: Any) -> Any:
    """Without an effect, or in a program that JAX dispatches, where JAX's own tokens keep the order."""
    site = params["site"]
    if not site.content.has_effect:
        return _call(ctx, platform, operands, (), 0, has_side_effect=False, **params)
    refuse_several_devices(ctx, site)
    if not site.effect.ordered:
        return _call(ctx, platform, operands, (), 0, has_side_effect=True, **params)
    order = Order(site.effect.domain)
    call_ctx = ctx.replace(avals_in=[*ctx.avals_in, compat.abstract_token])
    args = [*operands, ctx.tokens_in.get(order)]
    avals = [compat.abstract_token]
    *results, token = _call(call_ctx, platform, args, avals, _HAS_TOKEN | _ORDERED, has_side_effect=True, **params)
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(compat.mlir.TokenSet({order: token})))
    return results


def _refuse(ctx: Any, *operands: Any, site: Site, **params: Any) -> Any:
    raise unknown_target(site.content.target, site.where, "this platform")  # type: ignore[union-attr]


for _primitive, _rule in ((threaded_call_p, _threaded_call_lowering), (custom_call_p, _custom_call_lowering)):
    compat.mlir.register_lowering(_primitive, _refuse)
    for _platform in PLATFORMS:
        _lowering = functools.partial(_rule, platform=_platform)
        compat.mlir.register_lowering(_primitive, _lowering, platform=_platform, cacheable=False)
