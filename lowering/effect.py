"""The effects themselves: each becomes a record, and where only some lanes are there it has a mask."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from effects import _errors as errors
from effects import _jax
from effects._api.print import print_grad_p
from effects._model.callback import HostCall
from effects._model.effect import effect_p, token_key
from effects._model.site import Site, size_operands
from effects.lowering import host_path as _callbacks
from effects.lowering import native_calls as _native
from effects.lowering.masks import MaskContext, register_mask_rule
from effects.lowering.native_calls import calls_handlers, has_no_order, have_handlers
from effects.lowering.regions import OUTSIDE, in_region
from effects.lowering.shard_map import MSG_REGION_WITHOUT_NATIVE
from effects.lowering.shards import checking_sharding
from effects.lowering.tokens import (
    BoundaryMarkers,
    TokenContext,
    Tokens,
    close_p,
    record_p,
    records_p,
    register_token_rule,
)


@register_token_rule(effect_p)
def _effect_token_rule(ctx: TokenContext, tokens: Tokens, *operands: Any, site: Site) -> tuple[Tokens, list[Any]]:
    if not ctx.ahead:
        return bind_record(ctx, tokens, operands, site)
    key = token_key(site.effect)
    token, each = tokens[key], [(one, [*size_operands(one), *own]) for one, own in [*ctx.ahead, (site, operands)]]
    if ctx.edges.leaves:  # the last gives back the token around the region
        each[-1][1].insert(0, token if ctx.edges.enters else ctx.outer_token)
    for one, _ in each:
        token = checking_sharding(token, one)
    args = itertools.chain.from_iterable(own for _, own in each)
    records = tuple((one, len(own)) for one, own in each)
    [token] = _jax.stage(records_p, token, *args, records=records, call=_call_number(ctx, site), edges=ctx.edges)
    return {key: token}, []


def bind_record(ctx: TokenContext, tokens: Tokens, operands: Sequence[Any], site: Site) -> tuple[Tokens, list[Any]]:
    """Publishes a record in place of an equation."""
    key = token_key(site.effect)
    outer_tokens = () if ctx.outer_token is None else (ctx.outer_token,)
    waits = isinstance(site.content, HostCall) and site.results is not None and not site.content.runs_with_empty_mask
    token = tokens[key] if site.origin is None else checking_sharding(tokens[key], site)
    *results, token = _jax.stage(
        record_p,
        token,
        *outer_tokens,
        *size_operands(site),
        *operands,
        site=site,
        call=_call_number(ctx, site),
        edges=ctx.edges,
        region=in_region() if waits else OUTSIDE,
    )
    return {key: token}, results


def _call_number(ctx: TokenContext, site: Site) -> int:
    """Ordered calls differ in their tokens. Unordered ones may be the same in all, and still are two."""
    return 0 if site.effect.ordered else ctx.call


@register_mask_rule(effect_p, print_grad_p)
def _mask_site(ctx: MaskContext, active: Any, *operands: Any, site: Site) -> Sequence[Any]:
    if site.mask is None:
        return ctx.primitive.bind(active, *operands, site=site.with_mask())
    mask, *others = operands
    return ctx.primitive.bind(mask & active, *others, site=site)


MSG_EXPORTED_BY_JAX = (
    "Effect `{effect}` at {where} is in a program that `jax.export` exports. There no call gives it a place in an "
    "order. Write `fx.export(f)(*args)` in place of `jax.export.export(jax.jit(f))(*args)`."
)

# Which lowerings a program has: those of `native_calls` where handlers can be called, else those of `host_path`.

# JAX knows no rules of several platforms for what has several results, so that there is one for all.


def _lower_record(ctx: Any, *args: Any, **params: Any) -> Any:
    """A program that is exported calls handlers, whatever the platform. Where there are none, the process that calls
    the program puts callbacks of its own in their place."""
    is_for_export = _jax.is_for_export(ctx)
    if is_for_export and params["edges"].enters and not have_handlers(ctx):
        raise errors.MissingTokenRule(MSG_REGION_WITHOUT_NATIVE)
    return (_native if is_for_export else _module(ctx)).record_lowering(ctx, *args, **params)


def _lower_records(
    ctx: Any, token: Any, *operands: Any, records: Sequence[tuple[Site, int]], call: int, edges: BoundaryMarkers
) -> Any:
    """Where one call cannot publish them all, each has its own."""
    edges_of = [edges.part(at == 0, at == len(records) - 1) for at in range(len(records))]
    if _native.have_one_call(ctx):
        return _native.records_lowering(ctx, token, operands, records, call, edges_of)

    def publish(token: Any, *operands: Any) -> list[Any]:
        left = iter(operands)
        for (site, count), own in zip(records, edges_of, strict=True):
            args = itertools.islice(left, count)
            [token] = record_p.bind(token, *args, site=site, call=call, edges=own, region=OUTSIDE)
        return [token]

    return _jax.mlir.lower_fun(publish)(ctx, token, *operands)


def _lower_effect(ctx: Any, *operands: Any, site: Site) -> Any:
    """In a program that JAX dispatches, JAX's own tokens keep the order, and the sink is the same."""
    if _jax.is_for_export(ctx):
        raise _jax.Refused(MSG_EXPORTED_BY_JAX.format(effect=site.effect, where=site.where))
    if has_no_order(ctx, site):
        return _callbacks.lower_without_order(ctx, operands, site)
    return _module(ctx).effect_lowering(ctx, *operands, site=site)


def _module(ctx: Any) -> Any:
    return _native if calls_handlers(ctx) else _callbacks


def _lower(primitive: _jax.Primitive) -> Any:
    return lambda ctx, *args, **params: _module(ctx).LOWERINGS[primitive](ctx, *args, **params)


_jax.mlir.register_lowering(record_p, _lower_record, cacheable=False)  # as a program keeps its sites
_jax.mlir.register_lowering(records_p, _lower_records, cacheable=False)
_jax.mlir.register_lowering(effect_p, _lower_effect, cacheable=False)
for _primitive in _native.LOWERINGS:
    _jax.mlir.register_lowering(_primitive, _lower(_primitive), cacheable=_primitive is not close_p)
