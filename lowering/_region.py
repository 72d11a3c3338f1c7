"""`shard_map`: per-device regions.

Around a region all devices count alike. Inside, every device counts its own effects: its token enters with the phase
advanced and an index of 0, and leaves as it came but for the phase, so that nobody must be asked how far others got.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import PartitionSpec

from effects import _errors as errors
from effects import _jax_compat as compat
from effects._config import config
from lowering._after import after, any_talks, collectives_come_after, do_collectives_come_after
from lowering._rules import UNORDERED, TokenContext, Tokens, effects_of, own_effects, register_token_rule, sites_in

enter_p = compat.Primitive("enter")
enter_p.multiple_results = True
"""(*tokens) -> tokens that each of `devices` counts on for itself. The first `ordered` of them count. If devices may go
`apart`, one that waits for an answer may be what the others wait for in a collective."""

leave_p = compat.Primitive("leave")
leave_p.multiple_results = True
"""(*tokens, *tokens at the entry) -> the tokens with which all devices go on."""


@enter_p.def_abstract_eval
def _enter_abstract_eval(*tokens: Any, ordered: int, devices: int, apart: bool) -> list[Any]:
    return [compat.per_device(token) for token in tokens]


@leave_p.def_abstract_eval
def _leave_abstract_eval(*tokens: Any, ordered: int) -> Any:
    return tokens[len(tokens) // 2 :]


@register_token_rule(compat.shard_map_p)
def _shard_map_token_rule(
    ctx: TokenContext,
    tokens: Tokens,
    *args: Any,
    jaxpr: Any,
    mesh: Any,
    in_specs: Any,
    out_specs: Any,
    check_vma: bool,
    newly_manual_axes: Any,
) -> tuple[Tokens, list[Any]]:
    jaxpr = compat.closed_jaxpr(jaxpr)
    by_device = frozenset(newly_manual_axes) | frozenset(mesh.manual_axes)
    is_whole = _is_whole(mesh, by_device)
    # Where the axes around are all that there is, each device counts already.
    counts = is_whole and not (mesh.manual_axes and _is_whole(mesh, frozenset(mesh.manual_axes)))
    if refused := _refusal(jaxpr, by_device, is_whole, check_vma):
        if not own_effects(ctx.effects):  # as JAX has them
            return tokens, list(compat.bind(ctx.eqn, args))
        effects = ", ".join(sorted(f"`{effect}`" for effect in ctx.effects))
        where = min((site.where for site in sites_in(compat.open_jaxpr(jaxpr))), default=ctx.where)
        raise errors.MissingTokenRule(refused.format(effects=effects, where=where))
    keys = sorted(tokens, key=lambda key: key == UNORDERED)
    ordered = sum(key != UNORDERED for key in keys)

    # A device that waits for its turn then waits for effects which others may never come to.
    apart = _may_part(jaxpr, check_vma) and any(map(_waits, _eqns_in(jaxpr)))
    apart = apart or (do_collectives_come_after() and is_whole and not counts)

    def region(*flat: Any) -> tuple[Any, ...]:
        tokens, args = flat[: len(keys)], flat[len(keys) :]
        if counts:
            tokens = enter_p.bind(*tokens, ordered=ordered, devices=mesh.size, apart=apart and any_talks(jaxpr))
        with collectives_come_after(apart):
            after_all, outs = ctx.thread(jaxpr, dict(zip(keys, tokens, strict=True)), args)
        tokens = [after_all[key] for key in keys]
        if counts:
            tokens = leave_p.bind(*tokens, *flat[: len(keys)], ordered=ordered)
        return (*tokens, *(after(tokens, outs) if apart else outs))  # XLA may gather them

    everywhere = (PartitionSpec(),) * len(keys)
    outs = jax.shard_map(
        region,
        mesh=mesh,
        in_specs=(*everywhere, *in_specs),
        out_specs=(*everywhere, *out_specs),
        axis_names=newly_manual_axes,
        check_vma=check_vma,
    )(*(tokens[key] for key in keys), *args)
    return dict(zip(keys, outs, strict=False)), list(outs[len(keys) :])


def _refusal(jaxpr: Any, by_device: frozenset[Any], is_whole: bool, check_vma: bool) -> str | None:
    """Why the effects of a region cannot be told apart by device, if so."""
    if not is_whole and not _is_inside_whole(jaxpr, by_device, check_vma):
        return errors.MSG_PARTLY_MANUAL
    if not config.native:
        return errors.MSG_REGION_WITHOUT_NATIVE
    if jax.process_count() > 1:
        return errors.MSG_REGION_OF_PROCESSES
    return None


def _is_whole(mesh: Any, by_device: frozenset[Any]) -> bool:
    """Whether each device of the mesh is one of its own along these axes."""
    return all(size == 1 or axis in by_device for axis, size in mesh.shape.items())


@compat.weakref_lru_cache
def _is_inside_whole(jaxpr: Any, by_device: frozenset[Any], check_vma: bool) -> bool:
    """Whether all effects of a region are in regions inside it that are over the rest of the axes too, and that all
    devices come to."""
    for eqn in jaxpr.eqns:
        if not effects_of(eqn.effects):
            continue
        axes = by_device
        if eqn.primitive is compat.shard_map_p:
            axes |= frozenset(eqn.params["newly_manual_axes"])
            if _is_whole(eqn.params["mesh"], axes):
                continue
        inner = [compat.closed_jaxpr(each) for each in compat.jaxprs_in(eqn.params)]
        if not inner or _may_part_at(eqn, check_vma):
            return False
        if not all(_is_inside_whole(each, axes, check_vma) for each in inner):
            return False
    return True


def _may_part(jaxpr: Any, check_vma: bool) -> bool:
    """Whether not all devices may come to some effect."""
    return any(_may_part_at(eqn, check_vma) for eqn in _eqns_in(jaxpr) if effects_of(eqn.effects))


def _waits(eqn: Any) -> bool:
    """Whether a device waits for an answer here."""
    return bool(eqn.outvars and effects_of(eqn.effects)) and not any(compat.jaxprs_in(eqn.params))


def _may_part_at(eqn: Any, check_vma: bool) -> bool:
    """Whether devices may take ways of their own at a branch or a loop. If JAX checks it, types say so."""
    if eqn.primitive is compat.cond_p:
        return not check_vma or compat.differs(eqn.invars[0].aval)
    if eqn.primitive is compat.while_p:
        return not check_vma or compat.differs(eqn.params["cond_jaxpr"].out_avals[0])
    return False


def _eqns_in(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in compat.jaxprs_in(eqn.params):
            yield from _eqns_in(inner)
