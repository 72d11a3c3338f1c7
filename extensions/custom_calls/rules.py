"""The user's custom calls in programs: each calls our handler, which calls the user's.

Our handler takes a token after the user's operands, and returns it after the user's results. A call with several
results and no token returns an empty array in its place: if a loop's carry were exactly the results of one call, XLA
would take the carry for loop-invariant (see `record_p`). Our parameters are in one attribute, whose name sorts after
all that users may choose.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from effects import _jax
from effects._model.device import PLATFORMS, platforms_with_handlers
from effects._model.effect import Order, token_key
from effects._model.site import Site
from effects._model.wire import CUSTOM_CALL_TARGET, Attribute, CustomCallTrait, call_traits
from effects.dispatch.calling.eager import EAGER
from effects.dispatch.calling.jit import jit
from effects.extensions.custom_calls.api import Attributes
from effects.extensions.custom_calls.message import message_of
from effects.extensions.custom_calls.primitive import by_lane, custom_call_p
from effects.extensions.custom_calls.targets import platforms_of, unknown_target
from effects.lowering.effect import emit_call, has_no_order, own_devices
from effects.lowering.masks import MaskContext, register_mask_rule
from effects.lowering.sites import register_site
from effects.lowering.summary import declare_noted
from effects.lowering.tokens import TokenContext, Tokens, register_token_rule

MSG_PLAIN_SHARDED = (
    "Effect `{effect}` at {where} is in a program for several devices that `fx.jit` has not made. JAX keeps the order "
    "of effects on one device only, and XLA's partitioner refuses custom calls without an order. Write `fx.jit` in "
    "place of `jax.jit`, or around `jax.pmap`; with `jax_disable_jit` or `jax_debug_nans`, take out the custom call."
)

threaded_call_p: _jax.Primitive = _jax.Primitive("threaded_custom_call")
threaded_call_p.multiple_results = True
"""(*operands, token) -> (*results, token)."""


@threaded_call_p.def_abstract_eval
def _threaded_call_abstract_eval(*operands: Any, results: Any, **_: Any) -> list[Any]:
    return [*map(_jax.per_device, results), operands[-1]]


@register_token_rule(custom_call_p)
def _custom_call_token_rule(
    ctx: TokenContext, tokens: Tokens, *operands: Any, site: Site, **params: Any
) -> tuple[Tokens, list[Any]]:
    key = token_key(site.effect)
    # As for records: two unordered calls with equal parameters must not be merged.
    call = 0 if site.effect.ordered else ctx.call
    of_lanes, params = of_lanes_and_call(params)

    def make(token: Any, *operands: Any) -> tuple[Any, list[Any]]:
        *results, token = threaded_call_p.bind(*operands, token, site=site, call=call, **params)
        return token, results

    token, results = by_lane(make, tokens[key], operands, **of_lanes)
    return {key: token}, results


def of_lanes_and_call(params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits a call's parameters into those of `by_lane` and those of the call for one lane."""
    names = ("results", "masked", "lanes", "lanes_of")
    unroll = params["vmap_method"] == "sequential_unrolled"
    return {name: params[name] for name in names} | {"unroll": unroll}, {
        name: value for name, value in params.items() if name == "results" or name not in names
    }


def call_handler(
    ctx: Any,
    platform: str,
    operands: Sequence[Any],
    *,
    token: tuple[Any, ...] = (),
    counts: bool = False,
    call: int = 0,
    has_side_effect: bool,
    site: Site,
    results: Sequence[Any],
    aliases: Any,
    attributes: Attributes,
    **_: Any,
) -> Sequence[Any]:
    """Calls our handler. `token`: the type of the token after the operands, if any; `counts`: True if that token is
    ours."""
    target = message_of(site).target
    if platform not in platforms_of(target):
        raise unknown_target(target, site.where, f"the platform `{platform}`")
    devices = _jax.automatic_devices(ctx)
    site = dataclasses.replace(site, processes=_jax.processes_of(ctx)) if devices else site
    register_site(ctx, site)
    more = token or (_NOTHING,) * (len(results) > 1)
    has = {
        CustomCallTrait.HAS_TOKEN: bool(token),
        CustomCallTrait.COUNTS: counts and PLATFORMS[platform].tokens_on_host,
        CustomCallTrait.ORDERED: site.effect.ordered,
        CustomCallTrait.HAS_MORE: bool(more),
    }
    ours = {
        Attribute.TARGET: target,
        Attribute.PLATFORM: platform,
        Attribute.WHERE: str(site.where),
        Attribute.SITE: site.id,
        Attribute.TRAITS: call_traits(has, own_devices(ctx, devices), call),
        Attribute.DESCRIPTION: site.description,
    }
    outs = emit_call(
        ctx.replace(avals_out=[*ctx.avals_out[: len(results)], *more]),
        CUSTOM_CALL_TARGET,
        operands,
        {**attributes.values, Attribute.OURS: ours},
        replicated=bool(devices or _jax.replicas_per_group(ctx)),
        has_side_effect=has_side_effect,
        aliases=dict([*aliases, *([(len(operands) - 1, len(results))] if token else [])]),
    )
    return outs[: len(results) + len(token)]


_NOTHING = _jax.ShapedArray((0,), np.uint8)


def _threaded_call_lowering(ctx: Any, *operands: Any, platform: str, **params: Any) -> Any:
    token = (ctx.avals_out[-1],)
    return call_handler(ctx, platform, operands, token=token, counts=True, has_side_effect=True, **params)


def _custom_call_lowering(ctx: Any, *operands: Any, platform: str, site: Site, **params: Any) -> Any:
    """Lowers a call without an effect, or one in a program that JAX dispatches, where JAX's own tokens keep the
    order."""
    of_lanes, params = of_lanes_and_call(params)
    masked = of_lanes["masked"]
    if of_lanes["lanes"]:

        def make(nothing: Any, *operands: Any) -> tuple[Any, list[Any]]:
            lanes_of = ((),) * len(operands)
            outs = custom_call_p.bind(*operands, site=site, masked=False, lanes=(), lanes_of=lanes_of, **params)
            return nothing, outs

        return _jax.mlir.lower_fun(lambda *operands: by_lane(make, None, operands, **of_lanes)[1])(ctx, *operands)
    operands, avals = operands[masked:], ctx.avals_in[masked:]
    has_effect = message_of(site).has_effect
    if has_effect and has_no_order(ctx, site):  # devices of a per-device region may differ
        raise _jax.Refused(MSG_PLAIN_SHARDED.format(effect=site.effect, where=site.where))
    if not has_effect or not site.effect.ordered:
        call_ctx = ctx.replace(avals_in=avals)
        return call_handler(call_ctx, platform, operands, has_side_effect=has_effect, site=site, **params)
    order = Order(site.effect.domain)
    token = (_jax.abstract_token,)
    call_ctx = ctx.replace(avals_in=[*avals, *token])
    operands = (*operands, ctx.tokens_in.get(order))
    *results, after = call_handler(call_ctx, platform, operands, token=token, has_side_effect=True, site=site, **params)
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(_jax.mlir.TokenSet({order: after})))
    return results


def _refuse(ctx: Any, *operands: Any, site: Site, **params: Any) -> Any:
    raise unknown_target(message_of(site).target, site.where, "this platform")


@register_mask_rule(custom_call_p)
def _mask_custom_call(
    ctx: MaskContext, active: Any, *operands: Any, masked: bool, lanes: Any, lanes_of: Any, **params: Any
) -> Sequence[Any]:
    if masked:
        first = operands[0] & active
        return ctx.primitive.bind(first, *operands[1:], masked=True, lanes=lanes, lanes_of=lanes_of, **params)
    same = (False,) * len(lanes)
    return ctx.primitive.bind(active, *operands, masked=True, lanes=lanes, lanes_of=(same, *lanes_of), **params)


# A call outside of programs: a program with one call.


@custom_call_p.def_impl
def _custom_call_impl(*operands: Any, **params: Any) -> Any:
    with jax.disable_jit(False):  # a handler can be called only from a program
        return _program_of(**params)(*operands)


@functools.lru_cache(maxsize=256)
def _program_of(**params: Any) -> Callable[..., Any]:
    """A program that is one custom call."""

    def eager_call(*operands: Any) -> Any:
        return custom_call_p.bind(*operands, **params)

    eager_call.__qualname__ = eager_call.__name__ = EAGER.name
    return jit(eager_call)


declare_noted(custom_call_p)
for _primitive, _rule in ((threaded_call_p, _threaded_call_lowering), (custom_call_p, _custom_call_lowering)):
    _jax.mlir.register_lowering(_primitive, _refuse)
    for _platform in platforms_with_handlers():
        _lowering = functools.partial(_rule, platform=_platform)
        _jax.mlir.register_lowering(_primitive, _lowering, platform=_platform, cacheable=False)
