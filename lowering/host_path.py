"""Lowerings without native handlers: JAX's Python callbacks publish the same records from the host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from effects import _errors as errors
from effects import _jax
from effects._model.dependency import dependency_p
from effects._model.effect import Order
from effects._model.filter import LOGGER
from effects._model.primitive import effect_p
from effects._model.site import Site
from effects._model.where import Where
from effects.lowering.shard_map import MSG_REGION_WITHOUT_NATIVE, enter_p, leave_p
from effects.lowering.sites import (
    publish_end,
    publish_in_program,
    publish_plain,
    refuse_missing_platform,
    refused_per_shard,
    register_site,
)
from effects.lowering.tokens import BoundaryMarkers, close_p, record_p, skip_p

MSG_WITHOUT_ORDER = (
    "Effect `{effect}` at {where} is in a program for several devices that `fx.jit` has not made. There JAX keeps no "
    "order of effects, so lines come as they come. Put `fx.jit` around the program for order."
)
MSG_PARTIAL = (
    "Effect `{effect}` at {where} has results, in a `jax.shard_map` over some axes of its mesh that `fx.jit` has not "
    "made. JAX calls no function for results there. Put `fx.jit` around the program."
)


def record_lowering(ctx: Any, *args: Any, site: Site, edges: BoundaryMarkers, **_: Any) -> Any:
    if edges.enters:
        raise errors.MissingTokenRule(MSG_REGION_WITHOUT_NATIVE)
    if site.per_shard and _jax.automatic_devices(ctx):
        raise refused_per_shard(site, "in a program without native code", "turn the setting `native` on")
    refuse_missing_platform(ctx, site)
    register_site(ctx, site)

    def record(token: Any, *operands: Any) -> list[Any]:
        token, *outs = publish_in_program(site.portable, np.asarray(token), [np.asarray(x) for x in operands])
        return [*outs, publish_end([token]) if edges.closes else token]

    return _callback(ctx, record, args)


def close_lowering(ctx: Any, *tokens: Any) -> Any:
    return _callback(ctx, lambda *tokens: [publish_end([np.asarray(x) for x in tokens])], tokens)


def _callback(ctx: Any, callback: Any, args: Any) -> Any:
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in ctx.avals_out]
    return _jax.mlir.lower_fun(lambda *args: jax.pure_callback(callback, shapes, *args))(ctx, *args)


def enter_lowering(ctx: Any, *tokens: Any, has_records: bool, has_groups: bool, **_: Any) -> Any:
    """Gives the tokens back: asynchronous operations are not counted, and what is in flight stays in the program."""
    if has_records or has_groups:
        raise errors.MissingTokenRule(MSG_REGION_WITHOUT_NATIVE)
    return tokens


def leave_lowering(ctx: Any, *tokens: Any, **_: Any) -> Any:
    return tokens[: len(tokens) // 2]


def effect_lowering(ctx: Any, *operands: Any, site: Site) -> Any:
    refuse_missing_platform(ctx, site)
    order = Order(site.effect.domain) if site.effect.ordered else None
    return _jax.lower_as_callback(ctx, _publisher(site, register_site(ctx, site)), operands, order)


def _publisher(site: Site, claim: object) -> Callable[..., Any]:
    """A function that publishes a site's records from the host, and keeps the claim on the site."""

    def publish(*args: Any, claim: object = claim) -> Any:
        return publish_plain(site, [np.asarray(x) for x in args])

    return publish


def lower_without_order(ctx: Any, operands: Sequence[Any], site: Site) -> Any:
    """Lowers an effect of a program over several devices that JAX dispatches, as JAX lowers its own callbacks: without
    an order, from one device if the operands are of all, and from each device of a per-device region."""
    if site.results is not None and _jax.replicas_per_group(ctx):
        raise _jax.Refused(MSG_PARTIAL.format(effect=site.effect, where=site.where))
    if site.per_shard:
        raise refused_per_shard(site, "in a program for several devices that `fx.jit` has not made", "write `fx.jit`")
    if (origin := site.origin) is None:
        say_once(site)
        call = functools.partial(_call_without_order, site, _publisher(site, register_site(ctx, site)))
    else:
        call = functools.partial(origin.restore, site)
    return _jax.mlir.lower_fun(lambda *operands: call(operands))(ctx, *operands)


def _call_without_order(site: Site, publish: Callable[..., Any], operands: Sequence[Any]) -> Sequence[Any]:
    if site.results is None:
        jax.debug.callback(publish, *operands)
        return []
    shapes = [jax.ShapeDtypeStruct(result.shape, result.stored) for result in site.results]
    return io_callback(publish, shapes, *operands)


def say_once(site: Site) -> None:
    if site.effect.ordered and not _said:
        _said.append(site.where)
        LOGGER.warning(MSG_WITHOUT_ORDER.format(effect=site.effect, where=site.where))


_said: list[Where] = []
"""The first place in such a program."""


LOWERINGS: dict[_jax.Primitive, Callable[..., Any]] = {
    record_p: record_lowering,
    effect_p: effect_lowering,
    close_p: close_lowering,
    enter_p: enter_lowering,
    leave_p: leave_lowering,
    skip_p: lambda ctx, token, count: [token],
    dependency_p: lambda ctx, *operands, tokens: operands[tokens:],  # without handlers no region waits
}
"""By primitive."""
