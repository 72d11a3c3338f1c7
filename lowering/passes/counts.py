"""How many effects a jaxpr counts, where that is known before it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from effects import _jax
from effects._model.asynchronous import async_done_p
from effects._model.primitive import effect_p
from effects.lowering.passes.in_region import ends_program
from effects.lowering.passes.summary import effects_of
from effects.lowering.passes.tokens import counts, token_key

_CALLS = {
    *(_jax.jit_p, _jax.remat_p, _jax.shard_map_p, _jax.custom_jvp_call_p, _jax.custom_vjp_call_p),
    *_jax.annotated_calls(),
}
"""Primitives that call their one jaxpr once."""


def counts_in(jaxpr: Any) -> Mapping[str, int] | None:
    """How many effects a device counts in a jaxpr under each key; None if that is not known. Where branches differ it
    is the most of them: see `lowering/rules/cond.py`. An `fx.error_if` counts for nothing, since what goes on has
    passed it."""
    return _counts_in(_jax.closed_jaxpr(jaxpr))


@_jax.weakref_lru_cache
def _counts_in(jaxpr: Any) -> Mapping[str, int] | None:
    total = Counter[str]()
    for eqn in jaxpr.jaxpr.eqns:
        keys = {key for effect in effects_of(eqn.effects) if counts(key := token_key(effect))}
        if not keys or ends_program(eqn):
            continue
        if eqn.primitive in (effect_p, async_done_p):  # one record; only the done of an asynchronous callback counts
            total.update(keys)
            continue
        inner = [counts_in(each) for each in _jax.jaxprs_in(eqn.params)]
        if any(count is None for count in inner):
            return None
        if eqn.primitive is _jax.cond_p and "branches_platforms" not in eqn.params:
            found = {key: max(count.get(key, 0) for count in inner) for key in keys}
        elif eqn.primitive is _jax.scan_p:
            found = {key: eqn.params["length"] * n for key, n in inner[0].items()}
        elif eqn.primitive in _CALLS:
            [found] = inner
        else:
            return None
        total.update(found)
    return total
