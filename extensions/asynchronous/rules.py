"""Asynchronous operations: starts, updates and dones become calls of the native module's handlers.

The start of a host function publishes an unordered record, from which the function begins. Its done is a callback with
results, which waits for the function. All other values in flight are kept by the native module.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from effects import _errors as errors
from effects import _jax
from effects._model.dependency import add_dependency
from effects._model.effect import leave_order_to_device, token_key
from effects._model.operand import stored_dtype
from effects._model.primitive import effect_p
from effects._model.site import Site
from effects._model.wire import BEGIN_TARGET, KEEP_TARGET, PLAIN_THREAD, POST_TARGET, TAKE_TARGET, Attribute, stream_of
from effects.extensions.asynchronous.operation import Exchanged, HostAwait, HostStartOp, Operation
from effects.extensions.asynchronous.primitives import ASYNC
from effects.extensions.asynchronous.start_and_done import async_done_p, async_start_p, async_update_p
from effects.extensions.asynchronous.tickets import check_tickets
from effects.extensions.asynchronous.ties import ScheduleTies, with_local_operations
from effects.lowering.effect import advances_token, bind_record, calls_handlers, emit_call, site_attributes
from effects.lowering.masks import MaskContext, register_mask_rule
from effects.lowering.regions import declare_single
from effects.lowering.sites import register_site
from effects.lowering.summary import declare_sites
from effects.lowering.tokens import Passes, TokenContext, Tokens, register_passes, register_token_rule

MSG_ASYNC_PLATFORM = (
    "The asynchronous operation `{name}` at {where} is in a program for {platform}. Native handlers keep the values in "
    "flight, and they exist for CPUs and NVIDIA's GPUs, with the setting `native`. Without them start and done must be "
    "in the same function, branch or body of a loop, and there are no asynchronous callbacks. Call "
    "`fx.async_done` there, or compute the results where they are needed, without a future."
)
MSG_ASYNC_PLAIN = (
    "The asynchronous operation `{name}` at {where} is in a program for several devices that `fx.jit` has not made. "
    "JAX keeps the order of effects on one device only. Write `fx.jit` around the function, in place of `jax.jit`."
)

operation_p: _jax.Primitive = _jax.Primitive("operation")
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
    platforms, has_handlers, counted = set(_jax.platforms_of(ctx)), calls_handlers(ctx), advances_token(ctx)
    everywhere = bool(_jax.automatic_devices(ctx) or _jax.replicas_per_group(ctx))
    exchanges = isinstance(operation, Exchanged) and target == POST_TARGET
    on_host = has_handlers and not counted
    if exchanges and (not on_host or everywhere or not _jax.is_within_processes(ctx, operation.axes)):
        return _jax.mlir.lower_fun(functools.partial(_exchange_and_keep, operation=operation))(ctx, *operands)
    # On one of several platforms the start may have been lowered in another way.
    if not has_handlers or (counted and operation.is_local and len(platforms) == 1):
        if (outs := _lower_within_program(ctx, operands, target)) is not None:
            return outs
        shown = {"name": operation.name, "where": operation.where, "platform": " and ".join(sorted(platforms))}
        raise errors.unsupported(MSG_ASYNC_PLATFORM.format(**shown))
    named = {name: np.array(x, np.int64) if isinstance(x, tuple) else x for name, x in attributes}
    if site is not None:
        register_site(ctx, site)
        named |= site_attributes(site, replicated=bool(_jax.automatic_devices(ctx)))
    aliases = {0: len(ctx.avals_out) - 1} if counted else None
    return emit_call(ctx, target, operands, named, replicated=everywhere, aliases=aliases)


def _lower_within_program(ctx: Any, operands: Sequence[Any], target: str) -> Sequence[Any] | None:
    """Keeps the values in the program at a start, and finds them at a done; None if the program does not have them. The
    ticket and the values are results of one instruction: a done that gets the ticket unchanged gets the values, too."""
    token, *values = operands
    if target == KEEP_TARGET:
        (ticket,) = _jax.mlir.lower_fun(lambda *_: [jnp.zeros(ctx.avals_out[0].shape, np.float32)])(ctx, *operands)
        return [_jax.with_values_beside(ticket, values), token]
    if target == TAKE_TARGET and (kept := _jax.values_beside(*values)) is not None:
        return [*kept, token]
    return None


_jax.mlir.register_lowering(operation_p, _lower_operation, cacheable=False)


def _lower_plain(ctx: Any, *operands: Any, primitive: Any, **params: Any) -> Any:
    """Lowers a start, update or done in a program that JAX dispatches. The ticket is the dependency between them. All
    such programs count as one program that does not end."""
    if _jax.automatic_devices(ctx):
        operation = params["operation"]
        raise errors.unsupported(MSG_ASYNC_PLAIN.format(name=operation.name, where=operation.where))

    def run(*operands: Any) -> Sequence[Any]:
        token = np.array([stream_of(PLAIN_THREAD), 0, 0, 0], np.uint32)
        return _bind_plain(primitive, _jax.as_per_device(jnp.asarray(token)), operands, **params)

    return _jax.mlir.lower_fun(run)(ctx, *operands)


def _bind_plain(primitive: Any, token: Any, operands: Sequence[Any], *, operation: Operation) -> Any:
    if isinstance(operation, HostAwait):
        return effect_p.bind(*operands, site=operation.site)
    if primitive is async_start_p:
        return _start(token, operands, operation)[1]
    return operands if primitive is async_update_p else _take(token, operands, operation)[1]


for _primitive in (async_start_p, async_update_p, async_done_p):
    _rule = functools.partial(_lower_plain, primitive=_primitive)
    _jax.mlir.register_lowering(_primitive, _rule, cacheable=False)


def _call(
    token: Any,
    operands: Sequence[Any],
    results: Sequence[Any],
    operation: Operation,
    target: str,
    site: Site | None = None,
    attributes: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Any, list[Any]]:
    named = tuple(attributes.items())
    *outs, token = operation_p.bind(
        token, *operands, results=tuple(results), operation=operation, target=target, attributes=named, site=site
    )
    return token, outs


_KEY = token_key(ASYNC)


@register_token_rule(async_start_p)
def _start_token_rule(
    ctx: TokenContext, tokens: Tokens, *operands: Any, operation: Operation
) -> tuple[Tokens, list[Any]]:
    token, outs = _start(tokens[_KEY], operands, operation)
    return {_KEY: token}, outs


def _start(token: Any, operands: Sequence[Any], operation: Operation) -> tuple[Any, list[Any]]:
    if isinstance(operation, HostStartOp):
        return _call(token, operands, [operation.ticket], operation, BEGIN_TARGET, operation.site)
    if isinstance(operation, Exchanged):
        peers = {
            Attribute.CALL: operation.key,
            Attribute.SIZE: operation.size,
            Attribute.TO: operation.receivers or (),
            Attribute.FROM: operation.senders or (),
            Attribute.OPTIONAL: operation.of_derivative,
            **_named(operation),
        }
        sent = _to_exchange(operands, operation)
        return _call(token, sent, [operation.ticket], operation, POST_TARGET, attributes=peers)
    return _keep(token, operands, operation)


def _keep(token: Any, values: Sequence[Any], operation: Operation) -> tuple[Any, list[Any]]:
    values = [jnp.asarray(value, stored_dtype(_jax.typeof(value).dtype)) for value in values]
    by_lane = not isinstance(operation, Exchanged)
    attributes = {Attribute.BY_LANE: by_lane, Attribute.OPTIONAL: operation.of_derivative, **_named(operation)}
    return _call(token, values, [operation.ticket], operation, KEEP_TARGET, attributes=attributes)


def _named(operation: Operation) -> dict[str, str]:
    """The name of the operation in a recorded run, with its line if that is known."""
    return {Attribute.NAME: f"{operation.name} at {operation.where}" if operation.where else operation.name}


def _take(token: Any, operands: Sequence[Any], operation: Operation) -> tuple[Any, list[Any]]:
    shown, exchanged = operation.results_of_lanes, isinstance(operation, Exchanged)
    results = [result.update(dtype=stored_dtype(result.dtype)) for result in shown]
    lanes = len(operation.lanes) if exchanged and operation.receivers is None else 0
    if lanes:  # the first axis is the devices'
        shapes = [result.shape for result in results]
        shapes = [(shape[lanes], *shape[:lanes], *shape[lanes + 1 :]) for shape in shapes]
        results = [result.update(shape=shape) for result, shape in zip(results, shapes, strict=True)]
    where = str(operation.where or "a line that is not known")  # a derivative's operation has none
    attributes = {Attribute.BY_LANE: not exchanged, Attribute.WHERE: where}
    token, outs = _call(token, operands, results, operation, TAKE_TARGET, attributes=attributes)
    outs = [out.astype(result.dtype) for out, result in zip(outs, shown, strict=True)]
    return token, [jnp.moveaxis(out, 0, lanes) for out in outs] if lanes else outs


def _to_exchange(values: Sequence[Any], operation: Exchanged) -> list[Any]:
    """The operands of a post: the device's rank in its group, the group's number, and the values, parts in front."""
    values = [jnp.asarray(value, stored_dtype(_jax.typeof(value).dtype)) for value in values]
    if operation.receivers is None:
        values = [jnp.moveaxis(value, len(operation.lanes), 0) for value in values]
    others = tuple(axis for axis in jax.sharding.get_abstract_mesh().manual_axes if axis not in operation.axes)
    rank = jax.lax.axis_index(operation.axes).astype(np.uint32)
    group = jax.lax.axis_index(others).astype(np.uint32) if others else np.uint32(0)
    return [rank, group, *values]


def _exchange_and_keep(token: Any, rank: Any, group: Any, *sent: Any, operation: Exchanged) -> list[Any]:
    """Runs JAX's collective and keeps its result, where the host cannot exchange the values: without its handlers,
    between processes, or where several devices would post as one, in a region over some of the axes.

    The collective depends on the token, and so on all operations started before it: all devices reach them in one
    order.
    """
    sent = add_dependency([token], sent)
    if operation.receivers is None:
        values = [jax.lax.all_to_all(value, operation.axes, 0, 0) for value in sent]
    else:
        pairs = [(sender, receiver) for sender, receiver in enumerate(operation.receivers) if receiver >= 0]
        values = [jax.lax.ppermute(value, operation.axes, pairs) for value in sent]
    token, outs = _keep(token, values, operation)
    return [*outs, token]


@register_token_rule(async_update_p)
def _update_token_rule(
    ctx: TokenContext, tokens: Tokens, ticket: Any, *, operation: Operation
) -> tuple[Tokens, list[Any]]:
    (ticket,) = add_dependency([tokens[_KEY]], [ticket])
    return tokens, [ticket]


@register_token_rule(async_done_p)
def _done_token_rule(
    ctx: TokenContext, tokens: Tokens, *operands: Any, operation: Operation
) -> tuple[Tokens, list[Any]]:
    if not isinstance(operation, HostAwait):
        token, outs = _take(tokens[_KEY], operands, operation)
        return {_KEY: token}, outs
    # The done has a place in two orders: that of the host's effects, and that of the asynchronous operations.
    key = token_key(operation.site.effect)
    (own,) = add_dependency([tokens[_KEY]], [tokens[key]])
    returned, outs = bind_record(ctx, {key: own}, operands, operation.site)
    (token,) = add_dependency([returned[key]], [tokens[_KEY]])
    return {**returned, _KEY: token}, outs


@register_mask_rule(async_start_p, async_update_p, async_done_p)
def _mask_operation(ctx: MaskContext, active: Any, *operands: Any, operation: Operation) -> Sequence[Any]:
    """Under a mask, values may be kept for inactive lanes, but host functions run for active lanes only."""
    if operation.site is None:
        return ctx.primitive.bind(*operands, operation=operation)
    if operation.site.mask is None:
        operation = dataclasses.replace(operation, site=operation.site.with_mask())
        return ctx.primitive.bind(active, *operands, operation=operation)
    mask, *others = operands
    return ctx.primitive.bind(mask & active, *others, operation=operation)


def _is_collective(eqn: Any) -> bool:
    """True of a start that may become JAX's collective: with several processes, or with devices that are replicas."""
    operation, starts = eqn.params["operation"], eqn.primitive is async_start_p
    return starts and isinstance(operation, Exchanged) and (operation.has_replicas or jax.process_count() > 1)


def _schedule(jaxpr: Any) -> Any:
    jaxpr = with_local_operations(jaxpr)
    return jaxpr, ScheduleTies(jaxpr)


leave_order_to_device(ASYNC)
declare_single(async_done_p)  # the done of an asynchronous callback is counted
declare_sites(
    *(async_start_p, async_done_p),
    find_sites=lambda eqn: (site,) if (site := eqn.params["operation"].site) else (),
    is_collective=_is_collective,
)
register_passes(ASYNC, Passes(check_tickets, _schedule))
