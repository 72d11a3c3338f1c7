"""`shard_map`: per-device regions.

Around a region the token is replicated: all devices count the same effects. Inside, every device counts its own: its
token enters with the phase advanced and an index of 0, and leaves as it came but for the phase, so that no device must
ask another how far it got.

In a region over some axes of its mesh, devices that differ along the others only are *replicas* of each other, and form
a *replica group*. They have one effect between them, as all devices have outside of regions. XLA decides what of it
runs where, so all of them come to it, each with a token that says which replica it is, and replica 0 publishes on
behalf of its group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from effects import _errors as errors
from effects import _jax
from effects._config import config
from effects._model.callback import HostCall
from effects._model.dependency import add_dependency
from effects._model.device import publishes_natively
from effects._model.effect import OF_JAX, ON_DEVICE, is_numbered
from effects._model.wire import REPLICA_TOKEN_LENGTH
from effects.lowering.holders import conversion
from effects.lowering.masks import MaskContext, register_mask_rule
from effects.lowering.regions import InRegion, ends_program, in_region, inside, static_effect_counts
from effects.lowering.summary import effects_of, is_ordered_record, summarize
from effects.lowering.tokens import BoundaryMarkers, TokenContext, Tokens, close_p, register_token_rule

MSG_REGION_WITHOUT_NATIVE = (
    "Effects with an order in a `jax.shard_map` were lowered without the native module. Each device has effects of its "
    "own there, and JAX's Python callbacks, which stand in for it, do not say which device they are for. Write "
    "`ordered=False`, use a platform with native handlers (CPU, or CUDA with its driver), or move the effects out."
)


MSG_PARTLY_MANUAL = (
    "Effect {effects} at {where} is in a `jax.shard_map` over some axes of its mesh and not all, and JAX's setting "
    "`jax_use_shardy_partitioner` is off. The older partitioner does not say which devices are replicas of each other "
    "there. Turn the setting on, name all axes in `axis_names`, or move the effect out."
)
MSG_REGION_IN_REGION = (
    "Effect {effects} at {where} is in a `jax.shard_map` inside another one, over other axes. Devices that differ "
    "along these axes only have one effect between them in the outer one. Write one `jax.shard_map` over all axes, or "
    "move the effect out of the inner one."
)
MSG_PARTLY_OF_PROCESSES = (
    "Effect {effects} at {where} is in a `jax.shard_map` over some axes of its mesh, and there are several processes. "
    "One of the devices that are replicas of each other publishes for them, and a process hears only its own. Name all "
    "axes in `axis_names`, or move the effect out."
)


enter_p: _jax.Primitive = _jax.Primitive("enter")
enter_p.multiple_results = True
"""(*tokens) -> the device's own tokens, for each of `devices`. The first `ordered` of them count. If devices
`may_diverge`, the others may wait in a collective for one that waits for an answer. With `has_groups`, the last
operands are the numbers of the device's replica group and of the replica in it. Without `has_records` there are
asynchronous operations only."""

leave_p: _jax.Primitive = _jax.Primitive("leave")
leave_p.multiple_results = True
"""(*tokens, *tokens at the entry) -> the tokens around the region, equal on all devices."""


@enter_p.def_abstract_eval
def _enter_abstract_eval(*operands: Any, has_groups: bool, **_: Any) -> list[Any]:
    tokens = operands[:-2] if has_groups else operands
    inside = [_jax.per_device(token) for token in tokens]
    return [token.update(shape=(REPLICA_TOKEN_LENGTH,)) for token in inside] if has_groups else inside


@leave_p.def_abstract_eval
def _leave_abstract_eval(*tokens: Any, ordered: int) -> Any:
    return tokens[len(tokens) // 2 :]


@register_token_rule(_jax.shard_map_p)
def _shard_map_token_rule(
    ctx: TokenContext, tokens: Tokens, *args: Any, jaxpr: Any, **params: Any
) -> tuple[Tokens, list[Any]]:
    mesh, newly_manual_axes = params["mesh"], params["newly_manual_axes"]
    replica_axes = _jax.region_axes(mesh, newly_manual_axes)[1]
    if refused := _refusal(jaxpr, mesh, bool(replica_axes)):
        have_no_order = all(x.name in OF_JAX or not x.ordered for x in effects_of(jaxpr.effects))
        if conversion().all_converted([jaxpr]) or (refused[0] is MSG_REGION_WITHOUT_NATIVE and have_no_order):
            closed = {key: close_p.bind(token) if ctx.edges.closes else token for key, token in tokens.items()}
            return closed, list(_jax.bind(conversion().restore(ctx.eqn), args))
        message, has_effects = refused
        names, where = _described(ctx, has_effects)
        raise errors.MissingTokenRule(message.format(effects=names, where=where))
    keys = sorted(tokens, key=lambda key: not is_numbered(key))
    region = region_of(ctx, {key: tokens[key] for key in keys}, jaxpr, mesh, newly_manual_axes, params["check_vma"])
    outs = _call_region(region, [tokens[key] for key in keys], len(keys), args, **params)
    return dict(zip(keys, outs, strict=False)), list(outs[len(keys) :])


def region_of(
    ctx: TokenContext, tokens: Tokens, jaxpr: Any, mesh: Any, newly_manual_axes: Any, check_vma: bool
) -> Callable[..., tuple[Any, ...]]:
    """The body of each device: a function of (*tokens, *args) that returns (*tokens, *results).

    Args:
        ctx: The context of the equation that the region is made from.
        tokens: Tokens around the region, those that count first.
        jaxpr: The region's body.
        mesh: The devices.
        newly_manual_axes: The axes that the region is over.
        check_vma: True if types tell which values differ between devices.
    """
    own_axes, replica_axes = _jax.region_axes(mesh, newly_manual_axes)
    counts = not mesh.manual_axes  # devices begin to count for themselves here; inside another region they do already
    keys = list(tokens)
    ordered = sum(map(is_numbered, keys))

    around, summary = in_region(), summarize(jaxpr)
    known = InRegion(
        all_come=around.all_come or counts,
        has_collectives=summary.has_collectives or bool(replica_axes) or around.has_collectives,  # XLA gathers there
    )
    if not counts:
        known = known._replace(counts_agree=around.counts_agree, branches_skip=around.branches_skip)
    else:
        # Branches skip indices only if a call needs that: its callback waits for its place among the effects of all
        # devices.
        diverge = mesh.size > 1 and _may_diverge(jaxpr, check_vma=False, joins_error_votes=True)
        branches_skip = diverge and _awaits(jaxpr) and static_effect_counts(jaxpr) is not None
        known = known._replace(counts_agree=branches_skip or not diverge, branches_skip=branches_skip)
    # A device that waits for a callback waits for all effects before it, and other devices may never reach those.
    may_diverge = _may_diverge(jaxpr, check_vma, known.joins_error_votes) and any(map(_waits, _jax.eqns_in(jaxpr)))
    may_diverge = may_diverge or (not counts and around.collectives_after_effects)
    has_exchanges = any(getattr(eqn.params.get("operation"), "kind", "") == "collective" for eqn in _jax.eqns_in(jaxpr))
    may_deadlock = may_diverge and (summary.has_collectives or has_exchanges)
    known = known._replace(collectives_after_effects=may_diverge)
    edges = ctx.edges
    if counts and not replica_axes and ordered == len(keys) == 1:
        begins, ends = is_ordered_record(summary.first), is_ordered_record(summary.last)
        edges = BoundaryMarkers(begins, ends, ctx.edges.closes, mesh.size, may_deadlock)

    def enter(tokens: Sequence[Any]) -> Sequence[Any]:
        attributes = {"ordered": ordered, "devices": math.prod(own_axes.values()), "may_diverge": may_deadlock}
        attributes |= {"has_groups": bool(replica_axes), "has_records": _has_records(jaxpr)}
        if not replica_axes:
            return enter_p.bind(*tokens, **attributes)

        def enter_group(*tokens: Any) -> Sequence[Any]:
            numbers = [jax.lax.axis_index(tuple(axes)).astype("uint32") for axes in (own_axes, replica_axes)]
            return tuple(enter_p.bind(*tokens, *numbers, **attributes))

        # The tokens differ between replicas though their specs say that they are equal: XLA must not touch them.
        specs = (PartitionSpec(),) * len(keys)
        enter_group = jax.shard_map(
            enter_group, in_specs=specs, out_specs=specs, axis_names=set(replica_axes), check_vma=False
        )
        return [_jax.as_per_device(token) for token in enter_group(*tokens)]

    def region(*flat: Any) -> tuple[Any, ...]:
        around, args = flat[: len(keys)], flat[len(keys) :]
        tokens = enter(around) if counts and not edges.enters else around
        with inside(known):
            after_all, outs = ctx.thread(jaxpr, dict(zip(keys, tokens, strict=True)), args, edges, around[0])
        tokens = [after_all[key] for key in keys]
        if counts and not edges.leaves:
            tokens = leave_p.bind(*tokens, *around, ordered=ordered)
        return (*tokens, *(add_dependency(tokens, outs) if may_diverge else outs))  # XLA may all-gather them

    return region


@register_mask_rule(_jax.shard_map_p)
def _mask_shard_map(ctx: MaskContext, active: Any, *args: Any, jaxpr: Any, **params: Any) -> Sequence[Any]:
    """Masks a region: all devices are active, or none."""
    return _call_region(lambda active, *args: tuple(ctx.mask(jaxpr, active, args)), [active], 0, args, **params)


def _call_region(
    region: Callable[..., Any],
    ahead: Sequence[Any],
    outs: int,
    args: Sequence[Any],
    *,
    in_specs: Any,
    out_specs: Any,
    newly_manual_axes: Any,
    **params: Any,
) -> Any:
    """Calls a region, with inputs and `outs` outputs ahead of its own that are the same on all devices."""
    in_specs, out_specs = (*[PartitionSpec()] * len(ahead), *in_specs), (*[PartitionSpec()] * outs, *out_specs)
    call = jax.shard_map(region, in_specs=in_specs, out_specs=out_specs, axis_names=newly_manual_axes, **params)
    return call(*ahead, *args)


def _described(ctx: TokenContext, jaxpr: Any) -> tuple[str, str]:
    """The names of a region's effects and the place of the first one, for an error."""
    names = ", ".join(sorted(f"`{effect}`" for effect in effects_of(jaxpr.effects)))
    where = min((str(site.where) for site in summarize(jaxpr).sites), default=ctx.where)
    return names, str(where)


def _refusal(jaxpr: Any, mesh: Any, has_replicas: bool) -> tuple[str, Any] | None:
    """The message for a region whose effects no device can be named for, and the jaxpr with these effects; or None."""
    if has_replicas and (inner := _region_in(jaxpr)) is not None:
        return MSG_REGION_IN_REGION, inner
    if has_replicas and not jax.config.jax_use_shardy_partitioner:
        return MSG_PARTLY_MANUAL, jaxpr
    if has_replicas and jax.process_count() > 1:
        return MSG_PARTLY_OF_PROCESSES, jaxpr
    devices = mesh.devices.flat if isinstance(mesh, jax.sharding.Mesh) else jax.devices()
    if _has_records(jaxpr) and not (config.native and publishes_natively(devices[0])):
        return MSG_REGION_WITHOUT_NATIVE, jaxpr
    return None


def _has_records(jaxpr: Any) -> bool:
    """True if a region has effects that are published to the host."""
    return any(effect.domain not in ON_DEVICE for effect in effects_of(jaxpr.effects))


def _region_in(jaxpr: Any) -> Any:
    """The body of the first region with effects inside a region; None if there is none."""
    found = (eqn for eqn in _jax.eqns_in(jaxpr) if eqn.primitive is _jax.shard_map_p and effects_of(eqn.effects))
    return next((eqn.params["jaxpr"] for eqn in found), None)


def _awaits(jaxpr: Any) -> bool:
    """True if devices wait for callbacks other than those of `fx.error_if`."""
    calls = [site.content for site in summarize(jaxpr).sites if isinstance(site.content, HostCall)]
    return any(call.results is not None and not call.raises_itself for call in calls)


@_jax.weakref_lru_cache
def _may_diverge(jaxpr: Any, check_vma: bool, joins_error_votes: bool) -> bool:
    """True if some devices may not come to some effect. `joins_error_votes`: as in `InRegion`. Then an `fx.error_if`
    that all devices reach is ignored."""
    for eqn in jaxpr.eqns:
        if not effects_of(eqn.effects) or (joins_error_votes and ends_program(eqn)):
            continue
        votes = joins_error_votes and eqn.primitive not in (_jax.cond_p, _jax.while_p)
        if _may_diverge_at(eqn, check_vma):
            return True
        if any(_may_diverge(inner, check_vma, votes) for inner in _jax.jaxprs_in(eqn.params)):
            return True
    return False


def _waits(eqn: Any) -> bool:
    """True if a device waits for an answer in this equation."""
    return bool(eqn.outvars and effects_of(eqn.effects)) and not any(_jax.jaxprs_in(eqn.params))


def _may_diverge_at(eqn: Any, check_vma: bool) -> bool:
    """True if devices may diverge at a branch or a loop. With `check_vma`, the predicate's type says so."""
    if eqn.primitive is _jax.cond_p:
        return not check_vma or _jax.differs(eqn.invars[0].aval)
    if eqn.primitive is _jax.while_p:
        return not check_vma or _jax.differs(eqn.params["cond_jaxpr"].out_avals[0])
    return False
