"""Kernels of Pallas: their effects show on the equation, and a simulated kernel has them as the loop that it becomes.

JAX simulates a kernel by a loop over its grid, which holds the kernel's effects as any loop does. Before that, each
program of the grid needs its place in the grid, its lane of a `vmap`, and the mask of that lane. Lanes and masks are
inputs of one number each, so that they are batched as any operand: by an axis of the grid, or by a loop around it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from effects import _errors as errors
from effects import _jax
from effects._jax import kernel_logs, pallas, patches
from effects._model.effect import ON_DEVICE, Effect, Order
from effects._model.primitive import effect_p
from effects.dispatch.runtime.supervisor import other_waits
from effects.extensions.kernels.api import grid_order_of, log_options_of, numbers_in_order
from effects.extensions.kernels.bounds import refuse_compiled, refuse_derivative, with_bounds_checks
from effects.extensions.kernels.grid import needs_grid, show_grid, visit_grid, with_lane
from effects.extensions.kernels.log_rules import (
    COMPILED,
    SIDE_BY_SIDE,
    LogOptions,
    leave_to_jax,
    log_kernel,
    logged_sites,
)
from effects.lowering.effect import bind_record
from effects.lowering.holders import Extra, conversion, holds_of_jax
from effects.lowering.masks import MaskContext, call_lanes, lanes_of, mask_effects, register_mask_rule, takes_lane
from effects.lowering.regions import in_region, inside
from effects.lowering.summary import declare_of_grid, summarize
from effects.lowering.tokens import TokenContext, Tokens, register_token_rule

MSG_INDEX_MAP = (
    "The index map of a kernel has the effect {effect} at {where}. An index map says which block a program of the grid "
    "gets, and JAX evaluates it when and as often as it likes. Move the effect into the kernel, where "
    "`pl.program_id` says which program it is."
)
MSG_MESH = (
    "A kernel over a mesh that is compiled for a device, such as one of `plgpu.kernel`, has the effect `{effect}` at "
    "{where}. Of compiled kernels, those of `pl.pallas_call` alone record effects. Write the kernel for that, simulate "
    "it with `interpret=True`, or move the effect out of it."
)
MSG_OPERATION = (
    "The asynchronous operation `{name}` at {where} is in a kernel. An operation belongs to the program, in which a "
    "kernel is a single equation. Start and finish it outside of the kernel."
)
MSG_REVERSE = (
    "The kernel `{kernel}` has effects and is differentiated in reverse. JAX has no such derivative of a kernel, with "
    "effects or without. Give the function that calls it a rule with `jax.custom_vjp`, or differentiate it forward "
    "with `jax.jvp`."
)

declare_of_grid(pallas.program_id_p, pallas.num_programs_p)

_MASK = f"{pallas.HIDDEN}mask"


def _is_ours(effect: Any) -> bool:
    return isinstance(effect, (Effect, Order))


def _has_effects(params: dict[str, Any]) -> bool:
    return bool(summarize(params["jaxpr"]).all_effects)


@patches.implements("effects of kernels")
def _showing_effects(abstract_eval: Callable[..., Any]) -> Callable[..., Any]:
    def rule(*avals: Any, **params: Any) -> Any:
        for index_map in pallas.index_maps(params):
            _check_index_map(index_map)
        _refuse_operations(params["jaxpr"])
        outs, effects = abstract_eval(*avals, **params)
        shown = pallas.shown_effects(params, _is_ours)
        return outs, {*effects, *shown} if shown else effects

    return rule


def _refuse_operations(kernel: Any) -> None:
    """Refuses asynchronous operations: equations that have an `operation`, whose order is the device's."""
    for eqn in _jax.eqns_in(kernel) if kernel.effects else ():
        operation = eqn.params.get("operation")
        if operation is not None and any(isinstance(x, Effect) and x.domain in ON_DEVICE for x in eqn.effects):
            raise errors.unsupported(MSG_OPERATION.format(name=operation.name, where=operation.where))


def _check_index_map(index_map: Any) -> None:
    for eqn in _jax.closed_jaxpr(index_map).jaxpr.eqns:
        for effect in eqn.effects:
            if isinstance(effect, Effect) or _jax.is_callback_effect(effect):
                raise errors.value_error(MSG_INDEX_MAP.format(effect=f"`{effect}`", where=_jax.source_of(eqn)))


@patches.implements("bounds of kernels")
def _checking_bounds(bind: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(bind)
    def checked(*args: Any, **params: Any) -> Any:
        # Kernels that a derivative or a `vmap` makes of this one are bound here again.
        is_last = not any(isinstance(x, _TRANSFORMED) for x in args)
        if is_last and _jax.kernel_options().checks_bounds:
            refuse_compiled(params, pallas.kernel_source(params))
            params = pallas.with_races_detected(with_bounds_checks(params))
        return bind(*args, **params)

    checked.__module__ = __name__
    return checked


@other_waits.append
def _waits_for_semaphores(frames: Iterable[Any]) -> Iterable[str]:
    lines = dict.fromkeys(pallas.lines_at_semaphores(frames))
    return [f"- a simulated kernel, which waits for a semaphore at {line}" for line in lines]


_TRANSFORMED = (_jax.ad.JVPTracer, _jax.ad.LinearizeTracer, _jax.batching.BatchTracer)


@patches.implements("vmap of kernels")
def _batch(batch: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel with effects runs in every lane, whether its operands differ between lanes or not. If they do not, its
    results do not either, unless callbacks give them."""

    def rule(axis_data: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
        if not _has_effects(params) or _jax.is_axis_of_tangents(axis_data):
            return batch(axis_data, args, dims, **params)
        outs, out_dims = each_lane(axis_data, args, dims, params)
        if any(dim is not None for dim in dims) or summarize(params["jaxpr"]).awaits_results or not axis_data.size:
            return outs, out_dims
        lanes = zip(outs, out_dims, strict=True)
        first = [x if dim is None else jax.lax.index_in_dim(x, 0, dim, keepdims=False) for x, dim in lanes]
        return first, [None] * len(first)

    def each_lane(axis_data: Any, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> Any:
        if axis_data.explicit_mesh_axis is not None or not pallas.needs_loop_over_lanes(params, args, dims):
            return batch(axis_data, [*args, lanes_of(axis_data)], [*dims, 0], **with_lane(params))

        def call(*args: Any) -> Sequence[Any]:
            return pallas.pallas_call_p.bind(*args, **params)

        avals = [_jax.without_lanes(x, dim) for x, dim in zip(args, dims, strict=True)]
        body = _jax.trace_to_jaxpr(call, avals, like=_jax.closed_jaxpr(params["jaxpr"]))
        return call_lanes(axis_data, args, dims, body=body)

    return rule


@takes_lane(pallas.pallas_call_p)
def _in_lane(lane: Any, *args: Any, **params: Any) -> Sequence[Any]:
    return pallas.pallas_call_p.bind(*args, lane, **with_lane(params))


@patches.implements("derivatives of kernels")
def _differentiate(jvp: Callable[..., Any]) -> Callable[..., Any]:
    """JAX's rule assumes that every input of a kernel has a tangent. Our own inputs have none, and get zeros."""

    def rule(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        has_hidden_inputs = _has_effects(params)
        if has_hidden_inputs and any(isinstance(x, pallas.JaxprTracer) for x in tangents):  # unknown: a linearization
            raise errors.NotDifferentiable(MSG_REVERSE.format(kernel=pallas.kernel_source(params)))
        refuse_derivative(params, pallas.kernel_source(params))
        if has_hidden_inputs:
            tangents = [
                _jax.ad.instantiate_zeros(tangent) if jnp.issubdtype(jnp.result_type(x), jnp.inexact) else tangent
                for x, tangent in zip(primals, tangents, strict=True)
            ]
        return jvp(primals, tangents, **params)

    return rule


def _order_of(params: dict[str, Any]) -> str | int | None:
    """The order in which a simulated kernel visits its grid; None for that of the grid."""
    visit = _jax.kernel_options().visit
    order = grid_order_of(params["metadata"]) if visit is None else visit.order
    return None if order == "program" or pallas.grid_of_kernel(params) is None else order


@patches.implements("grids of simulated kernels")
def _simulate(simulate: Callable[..., Any]) -> Callable[..., Any]:
    def simulated(*args: Any, **params: Any) -> Any:
        if (visit := _jax.kernel_options().visit) is not None and pallas.grid_of_kernel(params) is not None:
            visit.kernels += 1
        if needs_grid(params) or kernel_logs.has_log(params):
            params = show_grid(params)
        if (order := _order_of(params)) is not None:
            params, visited = visit_grid(
                params, numbers_in_order(order, math.prod(pallas.grid_of_kernel(params) or ()), jnp)
            )
            args = (visited, *args)
        return simulate(*args, **params)

    return simulated


@register_mask_rule(pallas.pallas_call_p)
def _mask_kernel(ctx: MaskContext, active: Any, *args: Any, **params: Any) -> Sequence[Any]:
    """Gives a kernel one more input, a mask: its effects happen where that is not zero."""

    kernel = _jax.closed_jaxpr(params["jaxpr"])
    params = pallas.with_input(
        params, _MASK, lambda mask, *references: mask_effects(kernel, mask[0, 0] != 0, references)
    )
    return pallas.pallas_call_p.bind(*args, jnp.reshape(active, (1, 1)).astype(jnp.float32), **params)


@register_token_rule(pallas.pallas_call_p)
def _thread_kernel(ctx: TokenContext, tokens: Tokens, *args: Any, **params: Any) -> tuple[Tokens, Sequence[Any]]:
    if any(map(_jax.is_reference, args)):
        return _thread_closed_over(ctx, tokens, args, params["jaxpr"], params)
    if _needs_log(params):
        return _thread_log(ctx, tokens, args, params)
    if params["interpret"] is not True:  # an interpreter of JAX for a device
        params = show_grid(params)
    return _thread_simulated(ctx, tokens, args, params)


def thread_mesh_kernel(ctx: TokenContext, tokens: Tokens, *args: Any, **params: Any) -> tuple[Tokens, Sequence[Any]]:
    """Threads a kernel over a mesh as the `pallas_call` by which JAX simulates it. In a compiled one, JAX's own
    callbacks are left to JAX, and other effects are refused."""
    if any(map(_jax.is_reference, args)):
        return _thread_closed_over(ctx, tokens, args, params["jaxprs"][0], params)
    if (kernel := pallas.kernel_of_mesh(params, tuple(map(_jax.typeof, args)))) is not None:
        return _thread_kernel(ctx, tokens, *args, **kernel)
    sites = [site for jaxpr in params["jaxprs"] for site in summarize(jaxpr).sites]
    if (site := min((site for site in sites if site.origin is None), key=lambda site: site.id, default=None)) is None:
        return tokens, leave_to_jax(ctx.eqn, args, sites[0])
    raise errors.MissingTokenRule(MSG_MESH.format(effect=site.effect, where=site.where))


def _thread_simulated(
    ctx: TokenContext, tokens: Tokens, args: Sequence[Any], params: dict[str, Any]
) -> tuple[Tokens, Sequence[Any]]:
    """A simulated kernel is a loop over its grid, which is the same on all devices of a region."""
    kernel = pallas.simulated_kernel(params, tuple(map(_jax.typeof, args)))
    has_one_loop = sum(eqn.primitive is _jax.while_p for eqn in kernel.eqns) == 1
    with inside(in_region()._replace(trip_counts_agree=has_one_loop)):
        return ctx.thread(kernel, tokens, args)


def _needs_log(params: dict[str, Any]) -> bool:
    """Returns True if a kernel's effects must still go into a log: it cannot call the host in an order, or is treated
    so. If its grid is visited in another order, a log shows its effects in the order of the grid, but for those that it
    waits for."""
    if kernel_logs.has_log(params):
        return False
    if params["interpret"] is not True:
        return not pallas.visits_in_order(params)
    return _jax.kernel_options().logs_simulated or (
        _order_of(params) is not None and bool(logged_sites(params["jaxpr"]))
    )


def _log_options(params: dict[str, Any]) -> LogOptions:
    # A log that only restores the order of a simulated grid holds all that the simulation would publish.
    simulated = params["interpret"] is True and not _jax.kernel_options().logs_simulated
    side_by_side = pallas.is_simulated(params) and params["interpret"] is not True
    return LogOptions(
        *log_options_of(params["metadata"]),
        takes_largest=simulated or side_by_side,
        leaves_awaited=simulated,
        how=SIDE_BY_SIDE if side_by_side else COMPILED,
    )


def _thread_log(
    ctx: TokenContext, tokens: Tokens, args: Sequence[Any], params: dict[str, Any]
) -> tuple[Tokens, Sequence[Any]]:
    """Threads a kernel that cannot call the host: its effects are in a log, which is published after the kernel."""

    def simulate(rest: dict[str, Any]) -> Sequence[Any]:
        nonlocal tokens
        tokens, outs = _thread_simulated(ctx, tokens, args, rest)
        return outs

    try:
        outs, records = log_kernel(args, params, _log_options(params), simulate)
    except (NotImplementedError, ValueError):  # as of a log that has too little room
        if pallas.is_simulated(params) or not conversion().all_converted([params["jaxpr"]]):
            raise
        return tokens, leave_to_jax(ctx.eqn, args, min(summarize(params["jaxpr"]).sites, key=lambda site: site.id))
    for site, operands in records:
        after, _ = bind_record(ctx, tokens, operands, site)
        tokens = {**tokens, **after}
    return tokens, outs


@patches.implements("lowering of compiled kernels")
def _lower_compiled(lowering: Callable[..., Any]) -> Callable[..., Any]:
    def lower(ctx: Any, *operands: Any, **params: Any) -> Any:
        if not _needs_log(params) or not _has_effects(params):
            if params["interpret"] is not True and _has_effects(params):  # an interpreter of JAX for a device
                params = show_grid(params)
            return lowering(ctx, *operands, **params)

        def call(*args: Any) -> list[Any]:
            outs, records = log_kernel(args, params, _log_options(params))
            for site, given in records:
                effect_p.bind(*given, site=site)
            return outs

        return _jax.mlir.lower_fun(call)(ctx, *operands)

    return lower


def _thread_closed_over(
    ctx: TokenContext, tokens: Tokens, args: Sequence[Any], kernel: Any, params: dict[str, Any]
) -> tuple[Tokens, Sequence[Any]]:
    """Threads a kernel that closes over references: it takes and returns their values, as when JAX lowers it."""
    avals = tuple(map(_jax.typeof, args))
    bound = _jax.trace_to_jaxpr(
        lambda *args: ctx.primitive.bind(*args, **params), avals, like=pallas.scope_body(kernel)
    )
    values = [x[...] if _jax.is_reference(x) else x for x in args]
    pure, values = _jax.discharge_state(bound, values, [True] * len(values))
    tokens, outs = ctx.thread(pure, tokens, values)
    for x, final in zip(filter(_jax.is_reference, args), outs[ctx.outs :], strict=True):
        x[...] = final
    return tokens, outs[: ctx.outs]


@holds_of_jax(pallas.run_scoped_p)
def _run_scoped(extra: Extra, *args: Any, jaxpr: Any, **params: Any) -> Sequence[Any]:
    """References that a kernel has for a while stay references until JAX lowers it."""
    body = extra.rewrite(pallas.scope_body(jaxpr))
    operands, scope = pallas.scope_of(body, [*extra.values, *args])
    return extra.bind(*operands, jaxpr=scope, **params)
