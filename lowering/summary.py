"""Summaries of jaxprs, each made in one walk that is cached by jaxpr."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from effects import _jax
from effects._model.callback import HostCall
from effects._model.content import HandlerContent
from effects._model.effect import Effect, token_key
from effects._model.primitive import effect_p
from effects._model.print_grad import print_grad_p
from effects._model.site import Site


def effects_of(effects: Any) -> frozenset[Effect]:
    """Ours among a jaxpr's or an equation's effects."""
    return frozenset([effect for effect in effects if isinstance(effect, Effect)])


class Summary(NamedTuple):
    """The effects of a jaxpr, and the facts that passes ask about it.

    Attributes:
        effects: The effects that it shows.
        all_effects: These, and the effects inside equations that do not show them.
        sites: The sites of the effects that it shows.
        has_callbacks: True if a function of the user's is called.
        awaits_results: True if the program waits for the results of such a function.
        handlers: The sites of calls of handlers of the user's, with an effect or without.
        has_collectives: True if devices communicate.
        needs_masks: True if there are effects of ours, or will be when the jaxpr is transposed.
        needs_grid: True if there are effects of ours, or equations that depend on their program of a kernel's grid.
        first: Its first equation with effects, inner jaxprs left aside.
        last: Its last equation with effects.
        with_effects: The positions of the equations with effects, JAX's own and those that they do not show included.
        published_with_next: The `id`s of equations that become records, as the next equation does with the same token.
            They get no calls of their own: a call costs more than it publishes, since XLA compares each with each.
    """

    effects: frozenset[Effect]
    all_effects: frozenset[Effect]
    sites: frozenset[Site]
    has_callbacks: bool
    awaits_results: bool
    handlers: frozenset[Site]
    has_collectives: bool
    needs_masks: bool
    needs_grid: bool
    first: Any
    last: Any
    with_effects: frozenset[int]
    published_with_next: frozenset[int]


def summarize(jaxpr: Any) -> Summary:
    """The summary of a jaxpr, with constants or without."""
    return _summarize(getattr(jaxpr, "jaxpr", jaxpr))


@_jax.weakref_lru_cache
def _summarize(jaxpr: Any) -> Summary:
    every = set(effects_of(jaxpr.effects))
    sites: set[Site] = set()
    handlers: set[Site] = set()
    has_callbacks = awaits_results = has_collectives = needs_masks = needs_grid = False
    first = last = None
    with_effects: set[int] = set()
    published_with_next: set[int] = set()
    for position, eqn in enumerate(jaxpr.eqns):
        inner_jaxprs = [*_jax.jaxprs_in(eqn.params)] if eqn.params else ()
        if not (eqn.effects or inner_jaxprs or eqn.primitive in _noted):
            continue
        shown = effects_of(eqn.effects)
        if eqn.effects:
            with_effects.add(position)
            if position > 0 and _have_one_token(before := jaxpr.eqns[position - 1], eqn):
                published_with_next.add(id(before))
        if shown:
            first, last = (eqn if first is None else first), eqn
        if isinstance(site := eqn.params.get("site"), Site) and isinstance(site.content, HandlerContent):
            handlers.add(site)
        has_collectives |= is_collective(eqn)
        needs_masks |= bool(shown) or eqn.primitive is print_grad_p
        needs_grid |= bool(shown) or eqn.primitive in _of_grid
        if eqn.effects:
            found = _sites_of(eqn)
            sites.update(found)
            has_callbacks |= any(isinstance(site.content, HostCall) for site in found)
            awaits_results |= any(site.results is not None for site in found)
            handlers.update([site for site in found if isinstance(site.content, HandlerContent)])
        for inner in map(summarize, inner_jaxprs):
            every |= inner.all_effects
            if inner.all_effects:
                with_effects.add(position)
            handlers |= inner.handlers
            has_collectives |= inner.has_collectives
            needs_masks |= inner.needs_masks
            needs_grid |= inner.needs_grid
            if eqn.effects:
                sites |= inner.sites
                has_callbacks |= inner.has_callbacks
                awaits_results |= inner.awaits_results
    return Summary(
        effects_of(jaxpr.effects),
        frozenset(every),
        frozenset(sites),
        has_callbacks,
        awaits_results,
        frozenset(handlers),
        has_collectives,
        needs_masks,
        needs_grid,
        first,
        last,
        frozenset(with_effects),
        frozenset(published_with_next),
    )


_noted: set[_jax.Primitive] = {print_grad_p, jax.lax.ppermute_p}
"""Primitives that count in a summary even where they have neither effects nor jaxprs."""
_of_grid: set[_jax.Primitive] = set()
"""The primitives among them that depend on their program of a kernel's grid. Pallas has them."""
_find_sites: dict[_jax.Primitive, Callable[[Any], tuple[Site, ...]]] = {}
"""By primitive, a function that finds the sites of an equation itself, where they are not among its parameters."""
_are_collective: dict[_jax.Primitive, Callable[[Any], bool]] = {}
"""By primitive, a function that is true of an equation in which devices communicate; not for JAX's primitives."""


def declare_noted(*primitives: _jax.Primitive) -> None:
    """Makes primitives known that may have a site without having an effect."""
    _noted.update(primitives)


def declare_of_grid(*primitives: _jax.Primitive) -> None:
    """Makes primitives known that depend on their program of a kernel's grid."""
    _of_grid.update(primitives)
    _noted.update(primitives)


def declare_sites(
    *primitives: _jax.Primitive,
    find_sites: Callable[[Any], tuple[Site, ...]],
    is_collective: Callable[[Any], bool],
) -> None:
    """Makes primitives known that have sites not among their parameters, or in which devices communicate."""
    _noted.update(primitives)
    _find_sites.update(dict.fromkeys(primitives, find_sites))
    _are_collective.update(dict.fromkeys(primitives, is_collective))


def _sites_of(eqn: Any) -> tuple[Site, ...]:
    """The sites that one equation has itself: that of an effect, or those of an exported program."""
    if (find := _find_sites.get(eqn.primitive)) is not None:
        return find(eqn)
    site = eqn.params.get("site")
    return (site,) if isinstance(site, Site) else tuple(eqn.params.get("sites", ()))


def is_collective(eqn: Any) -> bool:
    """True if devices communicate in this equation."""
    ours = _are_collective.get(eqn.primitive)
    return _jax.is_collective(eqn) if ours is None else ours(eqn)


def is_record(eqn: Any) -> bool:
    """True if an equation becomes one record, without results."""
    return eqn.primitive is effect_p and eqn.params["site"].results is None


def _have_one_token(eqn: Any, other: Any) -> bool:
    """True if both equations become records that take the same token."""
    if not (is_record(eqn) and is_record(other)):
        return False
    return token_key(eqn.params["site"].effect) == token_key(other.params["site"].effect)


def is_ordered_record(eqn: Any) -> bool:
    """True if an equation becomes one record, without results, that is ordered."""
    return is_record(eqn) and eqn.params["site"].effect.ordered


def has_effects(holder: Any) -> bool:
    """True if a jaxpr or an equation shows effects of ours."""
    return bool(effects_of(holder.effects))


def needs_mask(eqn: Any) -> bool:
    """True if an equation has effects of ours, or will have them when it is transposed."""
    if eqn.primitive is print_grad_p or has_effects(eqn):
        return True
    return any(summarize(inner).needs_masks for inner in _jax.jaxprs_in(eqn.params))
