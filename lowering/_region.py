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
from lowering._rules import UNORDERED, TokenContext, Tokens, effects_of, own_effects, register_token_rule

enter_p = compat.Primitive("enter")
enter_p.multiple_results = True
"""(*tokens) -> tokens that each of `devices` counts on for itself. The first `ordered` of them count. Where devices may
part, one that waits for an answer does not wait for the others."""

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
    if refused := _refusal(mesh, newly_manual_axes):
        if not own_effects(ctx.effects):  # as JAX has them
            return tokens, list(compat.bind(ctx.eqn, args))
        effects = ", ".join(sorted(f"`{effect}`" for effect in ctx.effects))
        raise errors.MissingTokenRule(refused.format(effects=effects, where=ctx.where))
    keys = sorted(tokens, key=lambda key: key == UNORDERED)
    ordered = sum(key != UNORDERED for key in keys)

    apart = _may_part(compat.closed_jaxpr(jaxpr), check_vma)

    def region(*flat: Any) -> tuple[Any, ...]:
        outside = flat[: len(keys)]
        entered = enter_p.bind(*outside, ordered=ordered, devices=mesh.size, apart=apart)
        inside = dict(zip(keys, entered, strict=True))
        inside, outs = ctx.thread(jaxpr, inside, flat[len(keys) :])
        return (*leave_p.bind(*(inside[key] for key in keys), *outside, ordered=ordered), *outs)

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


def _refusal(mesh: Any, newly_manual_axes: Any) -> str | None:
    """Why the effects of a region cannot be told apart by device, if so."""
    by_device = set(newly_manual_axes) | set(mesh.manual_axes)
    if any(size > 1 for axis, size in mesh.shape.items() if axis not in by_device):
        return errors.MSG_PARTLY_MANUAL
    if not config.native:
        return errors.MSG_REGION_WITHOUT_NATIVE
    if jax.process_count() > 1:
        return errors.MSG_REGION_OF_PROCESSES
    return None


@compat.weakref_lru_cache
def _may_part(jaxpr: Any, check_vma: bool) -> bool:
    """Whether a device that waits for an answer may be what another waits for: some effect is where devices may differ
    in whether they come there, and elsewhere they talk to each other."""

    def may_differ(aval: Any) -> bool:
        return not check_vma or compat.differs(aval)

    def may_part_at(eqn: Any) -> bool:
        if eqn.primitive is compat.cond_p:
            return may_differ(eqn.invars[0].aval)
        return eqn.primitive is compat.while_p and may_differ(eqn.params["cond_jaxpr"].out_avals[0])

    eqns = list(_eqns_in(jaxpr))
    return any(map(compat.is_collective, eqns)) and any(effects_of(eqn.effects) and may_part_at(eqn) for eqn in eqns)


def _eqns_in(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in compat.jaxprs_in(eqn.params):
            yield from _eqns_in(inner)
