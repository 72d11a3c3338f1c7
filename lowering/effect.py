"""The effects themselves: each becomes a record, and a record becomes a call of a handler of the native module.

Handlers publish records from the device. Where there are none JAX's Python callbacks do, from the host: `host_path.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from effects import _errors as errors
from effects import _jax
from effects._config import config
from effects._jax import patches
from effects._model.callback import HostCall
from effects._model.dependency import dependency_p
from effects._model.device import PLATFORMS
from effects._model.effect import Order, token_key
from effects._model.primitive import effect_p
from effects._model.print_grad import print_grad_p
from effects._model.site import Site, size_operands
from effects._model.wire import (
    AFTER_SHARDS_TARGET,
    AFTER_TARGET,
    CALL_TARGET,
    CLOSE_TARGET,
    COUNT_STEP,
    ENTER_STEP,
    ENTER_TARGET,
    INDEX,
    LEAVE_STEP,
    LEAVE_TARGET,
    PLAIN_CALL_TARGET,
    PLAIN_TARGET,
    RECORD_TARGET,
    REPLICA_TOKEN_LENGTH,
    SKIP_TARGET,
    STREAM,
    TOKEN_LENGTH,
    Attribute,
    RecordTrait,
    TokenStep,
    advance,
    call_traits,
    step_numbers,
)
from effects.lowering import host_path
from effects.lowering.masks import MaskContext, register_mask_rule
from effects.lowering.regions import OUTSIDE, in_region
from effects.lowering.shard_map import MSG_REGION_WITHOUT_NATIVE, enter_p, leave_p
from effects.lowering.shards import call_shards
from effects.lowering.sites import refused_per_shard, register_site
from effects.lowering.tokens import (
    NO_MARKERS,
    BoundaryMarkers,
    TokenContext,
    Tokens,
    close_p,
    record_p,
    records_p,
    register_token_rule,
    skip_p,
)


@register_token_rule(effect_p)
def _effect_token_rule(ctx: TokenContext, tokens: Tokens, *operands: Any, site: Site) -> tuple[Tokens, list[Any]]:
    if not ctx.ahead:
        return bind_record(ctx, tokens, operands, site)
    key = token_key(site.effect)
    token, each = tokens[key], [(one, [*size_operands(one), *values]) for one, values in [*ctx.ahead, (site, operands)]]
    if ctx.edges.leaves:  # the last record returns the token around the region
        each[-1][1].insert(0, token if ctx.edges.enters else ctx.outer_token)
    args = itertools.chain.from_iterable(values for _, values in each)
    records = tuple((one, len(values)) for one, values in each)
    [token] = _jax.stage(
        records_p, token, *args, records=records, call=0 if site.effect.ordered else ctx.call, edges=ctx.edges
    )
    return {key: token}, []


def bind_record(ctx: TokenContext, tokens: Tokens, operands: Sequence[Any], site: Site) -> tuple[Tokens, list[Any]]:
    """Publishes a record in place of an equation."""
    key = token_key(site.effect)
    outer_tokens = () if ctx.outer_token is None else (ctx.outer_token,)
    waits = isinstance(site.content, HostCall) and site.results is not None and not site.content.runs_with_empty_mask
    *results, token = _jax.stage(
        record_p,
        tokens[key],
        *outer_tokens,
        *size_operands(site),
        *operands,
        site=site,
        call=0 if site.effect.ordered else ctx.call,  # ordered calls differ by their tokens
        edges=ctx.edges,
        region=in_region() if waits else OUTSIDE,
    )
    return {key: token}, results


@register_mask_rule(effect_p, print_grad_p)
def _mask_site(ctx: MaskContext, active: Any, *operands: Any, site: Site) -> Sequence[Any]:
    if site.mask is None:
        return ctx.primitive.bind(active, *operands, site=site.with_mask())
    mask, *others = operands
    return ctx.primitive.bind(mask & active, *others, site=site)


# The choice of native handlers, and the place where effects are counted.
#
# A CPU handler reads tokens in place and writes the next tokens. A GPU handler reads copies, later, and writes nothing.
# In a program for a GPU, alone or among other platforms, the call aliases its token to its result, and the program does
# the additions of the handler. Each of several consecutive records says how many records are before it, so that XLA can
# drop all but the last record's additions.


def calls_handlers(ctx: Any) -> bool:
    """True if the program calls handlers: all its platforms have them, and the setting `native` is on."""
    return config.native and have_handlers(ctx)


def have_handlers(ctx: Any) -> bool:
    """True if all platforms that the program is lowered for have handlers.

    A GPU's handlers need a driver. It is not looked for in a process without such a GPU: another will run the program.
    """
    for platform in _jax.platforms_here(ctx):
        row = PLATFORMS.get(platform)
        if row is None or row.records != "native":
            return False
        if row.is_usable is None or _jax.is_for_export(ctx) or _jax.missing_platform(ctx) is not None:
            continue
        if not row.is_usable():
            return False
    return True


def advances_token(ctx: Any) -> bool:
    """True if the program advances its tokens itself, since no handler does."""
    rows = (PLATFORMS.get(platform) for platform in _jax.platforms_of(ctx))
    return any(row is not None and row.records == "native" and not row.tokens_on_host for row in rows)


def steps_of_record(ordered: bool, edges: BoundaryMarkers, ahead: int = 0) -> list[TokenStep]:
    """The steps of a record's token; if the record leaves a region, they are the outer token's."""
    if edges.leaves or edges.enters:
        inside = [LEAVE_STEP] if edges.leaves else [ENTER_STEP, *[COUNT_STEP] * ordered]
        return [*[advance(ahead)] * (ahead > 0 and edges.enters), *inside]
    return [advance(ahead + ordered)] if ahead or ordered else []


def take_ahead(token: Any, length: int) -> tuple[Any, int]:
    """A token without the effects that the program has added to it, and their number."""
    ahead, each = 0, np.array(step_numbers(COUNT_STEP, length)[1], np.uint32)
    while True:
        before, added = _jax.added_to(token)
        if added is None or not np.array_equal(added, each * added[INDEX]):
            return token, ahead
        token, ahead = before, ahead + int(added[INDEX])


def take_steps(ctx: Any, token: Any, steps: Sequence[TokenStep], aval: Any, replicated: bool) -> Any:
    """The token after these steps. `replicated`: as for the call that gave it back."""
    for step in steps:
        token = _jax.mask_and_add(token, *step_numbers(step, aval.shape[0]))
        if replicated:
            _jax.mark_replicated(ctx.replace(avals_out=[aval]), _jax.owner_of(token))
    return token


# The calls of handlers.

MSG_REGION_OF_PROCESSES = (
    "Effects in a `jax.shard_map` over an abstract mesh were lowered where there are several processes. A process "
    "waits for the effects of its own devices, and an abstract mesh does not say which these are. Give `jax.shard_map` "
    "a mesh with devices, or call the program inside `jax.set_mesh(mesh)`."
)


def site_attributes(
    site: Site,
    devices: int = 0,
    replicated: bool = False,
    call: int = 0,
    edges: BoundaryMarkers = NO_MARKERS,
    shards: bool = False,
    counted: bool = False,
) -> dict[str, Any]:
    """The attributes of a handler's call, which describe its site."""
    has = {
        RecordTrait.ORDERED: site.effect.ordered,
        RecordTrait.CALLBACK: site.content.delivered_individually,
        RecordTrait.REPLICATED: replicated,
        RecordTrait.HAS_SHARDS: shards,
        RecordTrait.HAS_MASK: site.mask is not None and site.results is None and not (shards or site.symbols),
        RecordTrait.CLOSES: edges.closes,
        RecordTrait.ENTERS: edges.enters,
        RecordTrait.LEAVES: edges.leaves,
        RecordTrait.MAY_DIVERGE: edges.may_diverge,
        RecordTrait.COUNTED: counted,
    }
    traits = call_traits(has, devices, call)
    site = site.portable
    return {Attribute.SITE: site.id, Attribute.TRAITS: traits, Attribute.DESCRIPTION: site.description}


def emit_call(
    ctx: Any,
    target: str,
    args: Sequence[Any],
    attributes: Any,
    *,
    replicated: bool,
    has_side_effect: bool = True,
    **options: Any,
) -> Sequence[Any]:
    """Calls a handler of XLA's FFI. `replicated`: XLA decides which devices run it, and all of them are to."""
    # XLA refuses to replicate an instruction with a side effect (JAX 0.10 to 0.12: `PreprocessSharding` in
    # xla/service/spmd/spmd_partitioner.cc). So the flag stays off where XLA partitions: the token, which the program
    # returns, keeps the call alive and ordered.
    has_side_effect = has_side_effect and not replicated
    outs = _jax.call_handler(ctx, target, args, attributes, has_side_effect=has_side_effect, **options)
    if replicated:
        _jax.mark_replicated(ctx, _jax.owner_of(outs))
    return outs


def record_lowering(
    ctx: Any, token: Any, *operands: Any, site: Site, call: int, edges: BoundaryMarkers, region: Any
) -> Any:
    devices, replicas = _jax.automatic_devices(ctx), _jax.replicas_per_group(ctx)
    if site.per_shard and devices:
        return shards_lowering(ctx, token, operands, site, devices, call, edges)
    if site.per_shard and replicas and site.origin is not None:
        site = dataclasses.replace(site, per_shard=False)  # JAX gathers there, too
    if site.per_shard and replicas:
        raise refused_per_shard(site, "in a `jax.shard_map` over some axes of its mesh", "name all in `axis_names`")
    site = dataclasses.replace(site, processes=_jax.processes_of(ctx)) if devices else site
    register_site(ctx, site)
    target = RECORD_TARGET if site.results is None else CALL_TARGET
    own, counted = own_devices(ctx, devices or replicas or edges.devices), advances_token(ctx)
    attributes = site_attributes(site, own, devices != 0, call, edges, counted=counted)
    if region.go_on_together and (together := own_devices(ctx, _jax.devices_of_region(ctx))) > 1:
        attributes |= {Attribute.TOGETHER: together}
        attributes |= {Attribute.FAIL_AS_ONE: 1} if region.has_collectives else {}
    if devices and _may_be_cut(ctx, site):
        steps = steps_of_record(site.effect.ordered, edges) if counted else None
        return call_shards(ctx, token, operands, devices, attributes, steps)
    replicated = bool(devices or replicas)
    if not counted:
        return emit_call(ctx, target, (token, *operands), attributes, replicated=replicated)
    token, ahead = take_ahead(token, ctx.avals_in[0].shape[0])
    attributes |= {Attribute.AHEAD: ahead} if ahead else {}
    # The host waits for a program's output token but does not read it, so the call need not write it.
    outer = edges.leaves and not edges.enters  # then the result is the outer token, the operand after the device's own
    aliases = {} if edges.closes else {int(outer): len(ctx.avals_out) - 1}
    steps = [] if edges.closes else steps_of_record(site.effect.ordered, edges, ahead)
    *results, given_back = emit_call(
        ctx, target, (token, *operands), attributes, replicated=replicated, aliases=aliases
    )
    return [*results, take_steps(ctx, given_back, steps, ctx.avals_out[-1], replicated)]


def have_one_call(ctx: Any) -> bool:
    """True if one call can publish several records: the handler counts, and each device makes its own call. An exported
    program has a call for each record, which a process without handlers can replace."""
    return (
        calls_handlers(ctx)
        and not (_jax.is_for_export(ctx) or advances_token(ctx))
        and not (_jax.automatic_devices(ctx) or _jax.replicas_per_group(ctx))
    )


def records_lowering(
    ctx: Any,
    token: Any,
    operands: Sequence[Any],
    records: Sequence[tuple[Site, int]],
    call: int,
    edges: Sequence[BoundaryMarkers],
) -> Any:
    each = []
    for (site, count), own_edges in zip(records, edges, strict=True):
        register_site(ctx, site)
        attributes = site_attributes(site, own_devices(ctx, own_edges.devices), False, call, own_edges)
        each.append({**attributes, Attribute.OPERANDS: count})
    first, *others = each
    attributes = {**first, Attribute.OTHERS: {str(at): one for at, one in enumerate(others)}}
    return emit_call(ctx, RECORD_TARGET, (token, *operands), attributes, replicated=False)


def _may_be_cut(ctx: Any, site: Site) -> bool:
    """True if an operand may be sharded over devices that make one record of the shards, instead of gathering them.

    Not over several processes, since none has all the shards. Not without an order, since only the order says which
    devices' records are one effect's.
    """
    if site.results is not None or not site.effect.ordered or len(site.processes) != 1 or site.symbols:
        return False
    return any(aval.shape and 0 not in aval.shape for aval in ctx.avals_in[1:])


def shards_lowering(
    ctx: Any, token: Any, operands: Sequence[Any], site: Site, devices: int, call: int, edges: BoundaryMarkers
) -> Any:
    if site.symbols:
        raise refused_per_shard(site, "in a program for symbolic shapes", "export it for shapes that are known")
    register_site(ctx, site.in_shards)
    edges = edges._replace(enters=site.effect.ordered, leaves=site.effect.ordered)
    own = own_devices(ctx, devices)
    counted = advances_token(ctx)
    attributes = site_attributes(site.in_shards, own, False, call, edges, True, counted)
    steps = steps_of_record(site.effect.ordered, edges) if counted else None
    return call_shards(ctx, token, operands, devices, attributes, steps, site)


def own_devices(ctx: Any, devices: int) -> int:
    """The number of this process's devices among those that come here; 0 if that does not matter."""
    if (count := _jax.own_devices(ctx, devices) if devices else 0) is not None:
        return count
    if _jax.automatic_devices(ctx):
        return devices  # the program is exported
    raise errors.MissingTokenRule(MSG_REGION_OF_PROCESSES)


def close_lowering(ctx: Any, *tokens: Any) -> Any:
    devices = _jax.automatic_devices(ctx)
    attributes, aliases = {Attribute.DEVICES: own_devices(ctx, devices)}, {0: 0} if advances_token(ctx) else None
    return emit_call(ctx, CLOSE_TARGET, tokens, attributes, replicated=devices != 0, aliases=aliases)


def enter_lowering(
    ctx: Any,
    *operands: Any,
    ordered: int,
    devices: int,
    may_diverge: bool,
    has_groups: bool,
    **_: Any,
) -> Any:
    counted = advances_token(ctx)
    attributes = {
        Attribute.ORDERED: ordered,
        Attribute.DEVICES: own_devices(ctx, devices),
        Attribute.MAY_DIVERGE: may_diverge,
        Attribute.HAS_GROUPS: has_groups,
        Attribute.COUNTED: counted,
    }
    if not counted:
        return _jax.call_handler(ctx, ENTER_TARGET, operands, attributes, has_side_effect=True)
    tokens, own = list(operands[: len(ctx.avals_out)]), operands[len(ctx.avals_out) :]
    if ordered:
        call_ctx = ctx.replace(avals_out=ctx.avals_in[: len(tokens)])
        aliases = {at: at for at in range(len(tokens))}
        tokens = list(
            _jax.call_handler(call_ctx, ENTER_TARGET, operands, attributes, has_side_effect=True, aliases=aliases)
        )
    tokens = _each_taken(ctx, tokens, ENTER_STEP, ordered, ctx.avals_in, False)
    return _with_groups(ctx, tokens, own) if has_groups else tokens


def _each_taken(
    ctx: Any, tokens: Sequence[Any], step: Any, ordered: int, avals: Sequence[Any], replicated: bool
) -> Any:
    """The tokens after a step that the first `ordered` of them take."""
    return [
        take_steps(ctx, token, [step] * (at < ordered), aval, replicated)
        for at, (token, aval) in enumerate(zip(tokens, avals, strict=False))
    ]


def _with_groups(ctx: Any, tokens: Sequence[Any], group_numbers: Sequence[Any]) -> Any:
    """The tokens, each with the numbers of its replica group and replica appended."""

    def extend(*operands: Any) -> list[Any]:
        group, replica = operands[len(tokens) :]
        numbers = jnp.stack([group, replica])
        return [jnp.concatenate([token, numbers]) for token in operands[: len(tokens)]]

    return _jax.mlir.lower_fun(extend)(ctx, *tokens, *group_numbers)


def leave_lowering(ctx: Any, *tokens: Any, ordered: int) -> Any:
    replicated, counted = _jax.replicas_per_group(ctx) != 0, advances_token(ctx)
    attributes = {Attribute.ORDERED: ordered, Attribute.COUNTED: counted}
    if not counted:
        return emit_call(ctx, LEAVE_TARGET, tokens, attributes, replicated=replicated)
    half = len(tokens) // 2
    # Also if no token counts: only this call makes later equations depend on the effects of the region.
    aliases = {half + at: at for at in range(half)}
    around = emit_call(ctx, LEAVE_TARGET, tokens, attributes, replicated=replicated, aliases=aliases)
    return _each_taken(ctx, around, LEAVE_STEP, ordered, ctx.avals_out, replicated)


def skip_lowering(ctx: Any, token: Any, *, count: int) -> Any:
    replicated, counted = _jax.replicas_per_group(ctx) != 0, advances_token(ctx)
    attributes, aliases = {Attribute.COUNT: count, Attribute.COUNTED: counted}, {0: 0} if counted else {}
    [token] = emit_call(ctx, SKIP_TARGET, (token,), attributes, replicated=replicated, aliases=aliases)
    return [take_steps(ctx, token, [advance(count)] if counted else [], ctx.avals_out[0], replicated)]


def after_lowering(ctx: Any, *operands: Any, tokens: int) -> Any:
    ctx = ctx.replace(
        avals_in=[_jax.physical_aval(aval) for aval in ctx.avals_in],
        avals_out=[_jax.physical_aval(aval) for aval in ctx.avals_out],
    )
    if _jax.replicas_per_group(ctx):
        # XLA would gather the sharded operands of a call.
        return _jax.mlir.lower_fun(lambda *operands: _chosen_by(operands[:tokens], operands[tokens:]))(ctx, *operands)
    is_token = [(aval.shape, aval.dtype) for aval in ctx.avals_out] == [((TOKEN_LENGTH,), np.uint32)]
    if is_token and _jax.automatic_devices(ctx) and not _jax.is_for_export(ctx):  # its partitioner is this process's
        return _jax.call_partitioned(ctx, AFTER_SHARDS_TARGET, (operands[-1], *operands[:-1]), "")
    aliases = {tokens + at: at for at in range(len(ctx.avals_out))}
    return _jax.call_handler(ctx, AFTER_TARGET, operands, {}, has_side_effect=False, aliases=aliases)


def _chosen_by(tokens: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """The values, which depend on the tokens by a select that XLA cannot fold: no stream has the number in it.

    `tokens` may be other arrays. Then there is a token among the values.
    """
    never = jnp.bool_(True)
    for x in (*tokens, *values):
        if x.dtype == np.uint32 and x.shape in ((TOKEN_LENGTH,), (REPLICA_TOKEN_LENGTH,)):
            never &= x[STREAM] == np.uint32(0xFFFFFFFF)
    for x in tokens:
        if x.size:
            never &= _perhaps(x)
    return [jax.lax.select_n(never, x, jax.lax.full_like(x, 0)) for x in values]


def _perhaps(x: Any) -> Any:
    """A predicate that depends on an array and that XLA cannot fold."""
    zero = jnp.zeros((), x.dtype)
    if any(_jax.typeof(x).sharding.spec):  # no device has the first element for all
        return jnp.any(x != zero)
    return jnp.ravel(x)[0] != zero


def effect_lowering(ctx: Any, *operands: Any, site: Site) -> Any:
    register_site(ctx, site)
    target = PLAIN_TARGET if site.results is None else PLAIN_CALL_TARGET
    # 2 stands for several devices: each counts for itself there, so their number does not matter.
    attributes = site_attributes(site, devices=2 if _jax.is_for_several_devices(ctx) else 0)
    if not site.effect.ordered:
        # An empty result in the token's place. `record_p` says why the token is last.
        call_ctx = ctx.replace(avals_out=[*ctx.avals_out, _NOTHING])
        *results, _ = _jax.call_handler(call_ctx, target, operands, attributes, has_side_effect=True)
        return results
    order = Order(site.effect.domain)
    call_ctx = ctx.replace(
        avals_in=[_jax.abstract_token, *ctx.avals_in], avals_out=[*ctx.avals_out, _jax.abstract_token]
    )
    args = [ctx.tokens_in.get(order), *operands]
    *results, token = _jax.call_handler(call_ctx, target, args, attributes, has_side_effect=True)
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(_jax.mlir.TokenSet({order: token})))
    return results


_NOTHING = _jax.ShapedArray((0,), np.uint8)


LOWERINGS: dict[_jax.Primitive, Callable[..., Any]] = {
    record_p: record_lowering,
    effect_p: effect_lowering,
    close_p: close_lowering,
    enter_p: enter_lowering,
    leave_p: leave_lowering,
    skip_p: skip_lowering,
    dependency_p: after_lowering,
}
"""By primitive, where handlers can be called."""


# A program that can call handlers is lowered by the rules above, any other by those of `host_path`.
#
# One rule serves all platforms, since a program calls handlers only if all of its platforms have them.

MSG_EXPORTED_BY_JAX = (
    "Effect `{effect}` at {where} is in a program that `jax.export` exports. Such a program has no token of `fx.jit`, "
    "which orders effects. Write `fx.export(f)(*args)` in place of `jax.export.export(jax.jit(f))(*args)`."
)


def _lower_record(ctx: Any, *args: Any, **params: Any) -> Any:
    """Lowers a record. An exported program calls handlers, whatever the platform. A process without handlers that calls
    the program puts callbacks of its own in their place."""
    is_for_export = _jax.is_for_export(ctx)
    if is_for_export and params["edges"].enters and not have_handlers(ctx):
        raise errors.MissingTokenRule(MSG_REGION_WITHOUT_NATIVE)
    return (LOWERINGS if is_for_export else _lowerings(ctx))[record_p](ctx, *args, **params)


def _lower_records(
    ctx: Any, token: Any, *operands: Any, records: Sequence[tuple[Site, int]], call: int, edges: BoundaryMarkers
) -> Any:
    """Lowers consecutive records to one call, or to a call for each if one cannot publish them all."""
    edges_of = [edges.part(at == 0, at == len(records) - 1) for at in range(len(records))]
    if have_one_call(ctx):
        return records_lowering(ctx, token, operands, records, call, edges_of)

    def publish(token: Any, *operands: Any) -> list[Any]:
        left = iter(operands)
        for (site, count), edges_of_one in zip(records, edges_of, strict=True):
            args = itertools.islice(left, count)
            [token] = record_p.bind(token, *args, site=site, call=call, edges=edges_of_one, region=OUTSIDE)
        return [token]

    return _jax.mlir.lower_fun(publish)(ctx, token, *operands)


def _lower_effect(ctx: Any, *operands: Any, site: Site) -> Any:
    """Lowers an effect in a program that JAX dispatches. JAX's own tokens keep the order, and the sink is the same."""
    if _jax.is_for_export(ctx):
        raise _jax.Refused(MSG_EXPORTED_BY_JAX.format(effect=site.effect, where=site.where))
    if has_no_order(ctx, site):
        is_region = not (site.origin or site.per_shard or _jax.automatic_devices(ctx) or _jax.replicas_per_group(ctx))
        if not (is_region and calls_handlers(ctx)):
            return host_path.lower_without_order(ctx, operands, site)
        host_path.say_once(site)
        unordered = dataclasses.replace(site, effect=site.effect.unordered())
        return _jax.mlir.lower_fun(lambda *operands: effect_p.bind(*operands, site=unordered))(ctx, *operands)
    return _lowerings(ctx)[effect_p](ctx, *operands, site=site)


def has_no_order(ctx: Any, site: Site) -> bool:
    """True if neither JAX nor XLA's partitioner orders an effect, in a program that JAX dispatches."""
    decides_xla = bool(_jax.automatic_devices(ctx) or _jax.replicas_per_group(ctx))
    return decides_xla or (site.effect.ordered and _jax.is_for_several_devices(ctx))


def _lowerings(ctx: Any) -> dict[_jax.Primitive, Callable[..., Any]]:
    return LOWERINGS if calls_handlers(ctx) else host_path.LOWERINGS


def _lower(primitive: _jax.Primitive) -> Any:
    return lambda ctx, *args, **params: _lowerings(ctx)[primitive](ctx, *args, **params)


_jax.mlir.register_lowering(record_p, _lower_record, cacheable=False)  # each program keeps its own sites
_jax.mlir.register_lowering(records_p, _lower_records, cacheable=False)
_jax.mlir.register_lowering(effect_p, _lower_effect, cacheable=False)
for _primitive in LOWERINGS.keys() - {record_p, effect_p}:
    _jax.mlir.register_lowering(_primitive, _lower(_primitive), cacheable=_primitive is not close_p)


@patches.implements("calls without arguments")
def _inline_calls(lower: Any) -> Any:
    @functools.wraps(lower)
    def inline(ctx: Any, *args: Any, jaxpr: Any, **params: Any) -> Any:
        if not args and any(isinstance(effect, Order) for effect in jaxpr.effects):
            params |= _jax.inlined_late
        return lower(ctx, *args, jaxpr=jaxpr, **params)

    inline.__module__ = __name__
    return inline
