"""Asynchronous operations: starts, updates and dones become calls of the native module's handlers.

Of an operation of the host's the start publishes a record, without an order, from which the function begins; its done
is a callback with results, which waits for the function. What else is in flight the native module keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from effects import _jax
from effects._api.config import config
from effects._model.operation import ASYNC, Exchanged, HostRun, Operation
from effects._model.operation_primitives import MSG_ASYNC_OUTSIDE, async_done_p, async_start_p, async_update_p
from effects._model.platform import platforms_with
from effects._model.site import Site
from effects._wire import BEGIN_TARGET, KEEP_TARGET, POST_TARGET, TAKE_TARGET
from effects.lowering.emit.common import register_site
from effects.lowering.emit.native import emit_call, site_attributes
from effects.lowering.passes.collectives import after
from effects.lowering.passes.masks import MaskContext, register_mask_rule
from effects.lowering.passes.tokens import TokenContext, Tokens, register_token_rule, token_key
from effects.lowering.rules.effect import bind_record

MSG_ASYNC_PLATFORM = (
    "The asynchronous operation `{name}` at {where} is in a program for {platform}. What is in flight is kept by native "
    "handlers, which there are for CPUs, with the setting `native`. Compute it where it is needed, without a future."
)
MSG_ASYNC_DEVICES = (
    "The collective `{name}` at {where} was started outside of a `jax.shard_map` with all its axes. Each device sends "
    "its part, and XLA divides the work there. Start it inside a `jax.shard_map`."
)

operation_p = _jax.Primitive("operation")
operation_p.multiple_results = True
"""(token, *operands) -> (*results, token): calls one of the handlers of asynchronous operations."""


@operation_p.def_abstract_eval
def _operation_abstract_eval(token: Any, *operands: Any, results: Sequence[Any], **_: Any) -> list[Any]:
    return [*results, token]


_jax.infer_types_each_time(operation_p)


def _lower_operation(
    ctx: Any,
    *operands: Any,
    operation: Operation,
    target: str,
    attributes: tuple[tuple[str, Any], ...],
    site: Site | None,
    **_: Any,
) -> Any:
    platforms = set(_jax.platforms_of(ctx))
    if not config.native or not platforms <= set(platforms_with("native")):
        shown = {"name": operation.name, "where": operation.where, "platform": " and ".join(sorted(platforms))}
        raise NotImplementedError(MSG_ASYNC_PLATFORM.format(**shown))
    everywhere = bool(_jax.automatic_devices(ctx) or _jax.replicas_per_group(ctx))
    if everywhere and target == POST_TARGET:
        raise NotImplementedError(MSG_ASYNC_DEVICES.format(name=operation.name, where=operation.where))
    named = {name: np.array(x, np.int64) if isinstance(x, tuple) else x for name, x in attributes}
    if site is not None:
        register_site(ctx, site)
        named |= site_attributes(site, replicated=everywhere)
    return emit_call(ctx, target, operands, named, replicated=everywhere)


def _lower_outside(ctx: Any, *operands: Any, operation: Operation, **_: Any) -> Any:
    raise NotImplementedError(MSG_ASYNC_OUTSIDE.format(name=operation.name, where=operation.where))


_jax.mlir.register_lowering(operation_p, _lower_operation, cacheable=False)
for _primitive in (async_start_p, async_update_p, async_done_p):
    _jax.mlir.register_lowering(_primitive, _lower_outside)


def _call(
    token: Any,
    operands: Sequence[Any],
    results: Sequence[Any],
    operation: Operation,
    target: str,
    site: Site | None = None,
    **attributes: Any,
) -> tuple[list[Any], Any]:
    named = tuple(attributes.items())
    *outs, token = operation_p.bind(
        token, *operands, results=tuple(results), operation=operation, target=target, attributes=named, site=site
    )
    return outs, token


_KEY = token_key(ASYNC)


@register_token_rule(async_start_p)
def _start_token_rule(
    ctx: TokenContext, tokens: Tokens, *operands: Any, operation: Operation
) -> tuple[Tokens, list[Any]]:
    token, results = tokens[_KEY], [operation.ticket]
    if isinstance(operation, HostRun):
        operands, site = operation.start_site.without_idle_mask(operands)
        outs, token = _call(token, operands, results, operation, BEGIN_TARGET, site)
    elif isinstance(operation, Exchanged):
        outs, token = _call(
            token, _to_exchange(operands, operation), results, operation, POST_TARGET, **_peers(operation)
        )
    else:
        outs, token = _call(token, operands, results, operation, KEEP_TARGET, by_lane=True)
    return {_KEY: token}, outs


def _to_exchange(values: Sequence[Any], operation: Exchanged) -> list[Any]:
    """The device's place in its group, the number of its group, and what it sends, with the parts for each in front."""
    if operation.receivers is None:
        values = [jnp.moveaxis(value, len(operation.lanes), 0) for value in values]
    others = tuple(axis for axis in jax.sharding.get_abstract_mesh().manual_axes if axis not in operation.axes)
    rank = jax.lax.axis_index(operation.axes).astype(np.uint32)
    group = jax.lax.axis_index(others).astype(np.uint32) if others else np.uint32(0)
    return [rank, group, *values]


def _peers(operation: Exchanged) -> dict[str, Any]:
    receivers, senders = operation.receivers or (), operation.senders or ()
    return {"call": operation.key, "size": operation.size, "to": receivers, "from": senders}


@register_token_rule(async_done_p)
def _done_token_rule(ctx: TokenContext, tokens: Tokens, *operands: Any, operation: Operation) -> tuple[Tokens, Any]:
    return _end(ctx, tokens, operands, operation, lambda run: run.done_site)


@register_token_rule(async_update_p)
def _update_token_rule(
    ctx: TokenContext, tokens: Tokens, *operands: Any, operation: Operation, partial: bool
) -> tuple[Tokens, list[Any]]:
    ticket = operands[-1]
    if partial and isinstance(operation, HostRun):
        tokens, outs = _end(ctx, tokens, operands, operation, lambda run: run.update_site)
        return tokens, [ticket, *outs]
    if partial:  # what it has come to is the result, and it is started again with that
        tokens, outs = _end(ctx, tokens, operands, operation, lambda run: run.done_site)
        by_lane = not isinstance(operation, Exchanged)
        again, token = _call(tokens[_KEY], outs, [operation.ticket], operation, KEEP_TARGET, by_lane=by_lane)
        return {**tokens, _KEY: token}, [*again, *outs]
    (ticket,) = after([tokens[_KEY]], [ticket])
    return tokens, [ticket]


def _end(
    ctx: TokenContext, tokens: Tokens, operands: Sequence[Any], operation: Operation, site_of: Any
) -> tuple[Tokens, list[Any]]:
    token, results = tokens[_KEY], operation.results_of_lanes
    if not isinstance(operation, HostRun):
        exchanged = isinstance(operation, Exchanged)
        lanes = len(operation.lanes) if exchanged and operation.receivers is None else 0
        if lanes:  # a part from each device comes first
            results = [result.update(shape=_moved(result.shape, lanes, 0)) for result in results]
        outs, token = _call(token, operands, results, operation, TAKE_TARGET, by_lane=not exchanged)
        return {_KEY: token}, [jnp.moveaxis(out, 0, lanes) for out in outs] if lanes else outs
    site = site_of(operation)
    key = token_key(site.effect)
    # In its place among the host's effects, and among the asynchronous operations.
    (own,) = after([token], [tokens[key]])
    returned, outs = bind_record(ctx, {key: own}, operands, site)
    (token,) = after([returned[key]], [token])
    return {**returned, _KEY: token}, outs


def _moved(shape: tuple[Any, ...], source: int, to: int) -> tuple[Any, ...]:
    sizes = list(shape)
    sizes.insert(to, sizes.pop(source))
    return tuple(sizes)


@register_mask_rule(async_start_p, async_update_p, async_done_p)
def _mask_operation(ctx: MaskContext, active: Any, *operands: Any, operation: Operation, **params: Any) -> Sequence[Any]:
    """What is handed on harms no lane that is not there; a function of the host's must not run for it."""
    if not isinstance(operation, HostRun):
        return ctx.primitive.bind(*operands, operation=operation, **params)
    if operation.done_site.mask is None:
        return ctx.primitive.bind(active, *operands, operation=operation.masked(), **params)
    mask, *others = operands
    return ctx.primitive.bind(mask & active, *others, operation=operation, **params)
