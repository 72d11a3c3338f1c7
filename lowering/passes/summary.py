"""What a jaxpr has in it, in one walk that is made once for each jaxpr."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from effects import _jax
from effects._api.custom_call_primitive import custom_call_p
from effects._api.print_grad import print_grad_p
from effects._api.registry import OF_JAX
from effects._model.effect import Effect
from effects._model.primitive import effect_p
from effects._model.site import Site


def own_effects(effects: Any) -> frozenset[Effect]:
    """Ours among a jaxpr's or an equation's effects."""
    return frozenset(effect for effect in effects if isinstance(effect, Effect))


def effects_of(effects: Any) -> frozenset[Effect]:
    """Those of a jaxpr's or an equation's effects that tokens are threaded for: ours, and JAX's own callbacks'."""
    if not effects:
        return frozenset()
    threaded = [effect if isinstance(effect, Effect) else OF_JAX.get(type(effect)) for effect in effects]
    return frozenset([effect for effect in threaded if effect is not None])


class Leaf(NamedTuple):
    """What one equation does that holds no jaxpr."""

    has_callbacks: bool = False
    awaits_results: bool = False
    is_ordered_record: bool = False  # it becomes one ordered record, whose results nothing waits for


_leaves: dict[Any, Callable[[Any], Leaf]] = {}  # by primitive; written when modules are loaded


def summarizes(*primitives: Any) -> Callable[[Callable[[Any], Leaf]], Callable[[Any], Leaf]]:
    """Registers what equations of primitives that are not ours do: a function from the equation to its `Leaf`."""

    def register(describe: Callable[[Any], Leaf]) -> Callable[[Any], Leaf]:
        _leaves.update(dict.fromkeys(primitives, describe))
        return describe

    return register


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """What a jaxpr has in it.

    Attributes:
        effects: The effects that it shows and that tokens are threaded for.
        own_effects: Ours, those inside equations that do not show them included.
        sites: The sites of the effects that it shows.
        has_callbacks: Whether a function of the user's is called.
        awaits_results: Whether the program waits for what such a function returns.
        has_custom_calls: Whether a handler of the user's is called, with an effect or without.
        has_collectives: Whether devices communicate.
        needs_masks: Whether there are effects of ours, or will be when the jaxpr is transposed.
        first: Its first equation with effects that tokens are threaded for, inner jaxprs left aside.
        last: The last one.
    """

    effects: frozenset[Effect]
    own_effects: frozenset[Effect]
    sites: frozenset[Site]
    has_callbacks: bool
    awaits_results: bool
    has_custom_calls: bool
    has_collectives: bool
    needs_masks: bool
    first: Any
    last: Any


def summarize(jaxpr: Any) -> Summary:
    """The summary of a jaxpr, with constants or without."""
    return _summarize(jaxpr.jaxpr if _jax.is_closed(jaxpr) else jaxpr)


@_jax.weakref_lru_cache
def _summarize(jaxpr: Any) -> Summary:
    own = set(own_effects(jaxpr.effects))
    sites: set[Site] = set()
    has_callbacks = awaits_results = has_custom_calls = has_collectives = needs_masks = False
    first = last = None
    for eqn in jaxpr.eqns:
        shown = effects_of(eqn.effects)
        if shown:
            first, last = (eqn if first is None else first), eqn
        leaf = leaf_of(eqn)
        has_callbacks |= leaf.has_callbacks
        awaits_results |= leaf.awaits_results
        has_custom_calls |= eqn.primitive is custom_call_p
        has_collectives |= _jax.is_collective(eqn)
        needs_masks |= eqn.primitive is print_grad_p or bool(own_effects(eqn.effects))
        if eqn.effects:
            found = _sites_of(eqn)
            sites.update(found)
            has_callbacks |= any(site.content.call is not None for site in found)
            awaits_results |= any(site.results is not None for site in found)
            has_custom_calls |= any(site.content.calls_handler for site in found)
        for inner in map(summarize, _jax.jaxprs_in(eqn.params)):
            own |= inner.own_effects
            has_custom_calls |= inner.has_custom_calls
            has_collectives |= inner.has_collectives
            needs_masks |= inner.needs_masks
            if eqn.effects:
                sites |= inner.sites
                has_callbacks |= inner.has_callbacks
                awaits_results |= inner.awaits_results
    return Summary(
        effects_of(jaxpr.effects),
        frozenset(own),
        frozenset(sites),
        has_callbacks,
        awaits_results,
        has_custom_calls,
        has_collectives,
        needs_masks,
        first,
        last,
    )


def _sites_of(eqn: Any) -> tuple[Site, ...]:
    """The sites that one equation has itself: that of an effect, or those of an exported program."""
    site = eqn.params.get("site")
    return (site,) if isinstance(site, Site) else tuple(eqn.params.get("sites", ()))


def leaf_of(eqn: Any) -> Leaf:
    """What one equation does itself."""
    if eqn.primitive is effect_p:
        site = eqn.params["site"]
        return Leaf(is_ordered_record=site.effect.ordered and site.results is None)
    describe = _leaves.get(eqn.primitive)
    return Leaf() if describe is None else describe(eqn)


def has_effects(holder: Any) -> bool:
    """Whether a jaxpr or an equation shows effects of ours."""
    return bool(own_effects(holder.effects))


def begins_with_record(jaxpr: Any) -> bool:
    """Whether the first effect of a jaxpr becomes one ordered record, whose results nothing waits for."""
    return leaf_of(summarize(jaxpr).first).is_ordered_record


def ends_with_record(jaxpr: Any) -> bool:
    """Whether the last effect does."""
    return leaf_of(summarize(jaxpr).last).is_ordered_record
