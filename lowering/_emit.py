"""From equations to StableHLO: the custom calls of the native sink, and what stands in for them elsewhere."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from effects import _jax_compat as compat
from effects._config import config
from effects._primitive import effect_p
from effects._sites import Site, remember
from lowering._record import close_p, host_sink, record_p

NATIVE_PLATFORMS = ("cpu",)
"""Where the native module has handlers."""


def _site_attributes(site: Site) -> dict[str, Any]:
    remember(site)
    return {
        "site": np.int64(site.id),
        "ordered": np.bool_(site.effect.ordered),
        "description": site.description,
    }


def _custom_call(ctx: Any, target: str, args: Any, **attributes: Any) -> Any:
    # XLA's partitioner wants to know what to do with a side effect, and refuses to replicate one. In its regions the
    # flag stays off: the token, which the program returns, keeps the call alive and in its place.
    automatic = compat.is_automatic_on_several_devices(ctx)
    lower = jax.ffi.ffi_lowering(target, has_side_effect=not automatic, operand_output_aliases={0: 0})
    out = lower(ctx, *args, replicated=np.bool_(automatic), **attributes)
    if automatic:
        compat.mark_replicated(ctx, compat.owner_of(out))
    return out


def _record_native_lowering(ctx: Any, token: Any, *operands: Any, site: Site, call: int, closes: bool) -> Any:
    if not config.native:
        return _record_callback_lowering(ctx, token, *operands, site=site, call=call, closes=closes)
    return _custom_call(
        ctx,
        "effects_record",
        (token, *operands),
        call=np.int32(call),
        closes=np.bool_(closes),
        **_site_attributes(site),
    )


def _close_native_lowering(ctx: Any, *tokens: Any) -> Any:
    if not config.native:
        return _close_callback_lowering(ctx, *tokens)
    return _custom_call(ctx, "effects_close", tokens)


def _effect_native_lowering(ctx: Any, *operands: Any, site: Site) -> Any:
    """In a program that JAX dispatches, JAX's own tokens keep the order, and the sink is the same."""
    if not config.native:
        return _effect_callback_lowering(ctx, *operands, site=site)
    attributes = _site_attributes(site)
    if not site.effect.ordered:
        lower = jax.ffi.ffi_lowering("effects_plain", has_side_effect=True)
        return lower(ctx.replace(avals_out=[]), *operands, **attributes)
    lower = jax.ffi.ffi_lowering("effects_plain", has_side_effect=True)
    token_ctx = ctx.replace(avals_in=[compat.abstract_token, *ctx.avals_in], avals_out=[compat.abstract_token])
    [token] = lower(token_ctx, ctx.tokens_in.get(site.effect), *operands, **attributes)
    ctx.set_tokens_out(compat.mlir.TokenSet({site.effect: token}))
    return []


# Platforms without a native handler: JAX's Python callback publishes the same record.


def _record_callback_lowering(ctx: Any, *args: Any, site: Site, call: int, closes: bool) -> Any:
    remember(site)

    def record(token: Any, *operands: Any) -> Any:
        token = host_sink().record(site, np.asarray(token), [np.asarray(x) for x in operands])
        return host_sink().close([token]) if closes else token

    return _callback_returning_token(ctx, record, args)


def _close_callback_lowering(ctx: Any, *tokens: Any) -> Any:
    return _callback_returning_token(ctx, lambda *tokens: host_sink().close([np.asarray(x) for x in tokens]), tokens)


def _callback_returning_token(ctx: Any, callback: Any, args: Any) -> Any:
    def call(token: Any, *rest: Any) -> Any:
        return jax.pure_callback(callback, jax.ShapeDtypeStruct(token.shape, token.dtype), token, *rest)

    return compat.mlir.lower_fun(call, multiple_results=False)(ctx, *args)


def _effect_callback_lowering(ctx: Any, *operands: Any, site: Site) -> Any:
    remember(site)
    return compat.lower_as_ordered_callback(
        ctx, lambda *args: host_sink().plain(site, [np.asarray(x) for x in args]), operands, site.effect
    )


for _platform in NATIVE_PLATFORMS:
    compat.mlir.register_lowering(record_p, _record_native_lowering, platform=_platform)
    compat.mlir.register_lowering(close_p, _close_native_lowering, platform=_platform)
    compat.mlir.register_lowering(effect_p, _effect_native_lowering, platform=_platform)
compat.mlir.register_lowering(record_p, _record_callback_lowering)
compat.mlir.register_lowering(close_p, _close_callback_lowering)
compat.mlir.register_lowering(effect_p, _effect_callback_lowering)
