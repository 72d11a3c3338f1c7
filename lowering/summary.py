"""What a jaxpr has in it, in one walk that is made once for each jaxpr."""

from collections.abc import Callable
from typing import Any, NamedTuple

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
    """What a jaxpr has in it.

    Attributes:
        effects: The effects that it shows.
        all_effects: Those inside equations that do not show them included.
        sites: The sites of the effects that it shows.
        has_callbacks: Whether a function of the user's is called.
        awaits_results: Whether the program waits for what such a function returns.
        handlers: The sites of calls of handlers of the user's, with an effect or without.
        has_collectives: Whether devices communicate.
        needs_masks: Whether there are effects of ours, or will be when the jaxpr is transposed.
        needs_grid: Whether there are effects of ours, or what depends on which program of a kernel's grid it is in.
        first: Its first equation with effects, inner jaxprs left aside.
        last: The last one.
        with_effects: The positions of the equations with effects, JAX's own and those that they do not show included.
        published_with_next: The equations (their `id`s) that become records, as the next one does with the same token.
            They need no calls of their own, which cost more than what they publish: XLA compares each with each.
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


_noted: set[_jax.Primitive] = {print_grad_p}
"""Primitives that say something even where they have neither effects nor jaxprs."""
_of_grid: set[_jax.Primitive] = set()
"""Those of them that ask which program of its grid a kernel is. Pallas has them."""
_find_sites: dict[_jax.Primitive, Callable[[Any], tuple[Site, ...]]] = {}
"""By primitive, what finds the sites that an equation has itself, where they are not among its parameters."""
_are_collective: dict[_jax.Primitive, Callable[[Any], bool]] = {}
"""By primitive, what says whether devices talk to each other in an equation, for those that are none of JAX's."""


def declare_noted(*primitives: _jax.Primitive) -> None:
    """Makes primitives known that may have a site without having an effect."""
    _noted.update(primitives)


def declare_of_grid(*primitives: _jax.Primitive) -> None:
    """Makes primitives known that ask which program of its grid a kernel is."""
    _of_grid.update(primitives)
    _noted.update(primitives)


def declare_sites(
    *primitives: _jax.Primitive,
    find_sites: Callable[[Any], tuple[Site, ...]],
    is_collective: Callable[[Any], bool],
) -> None:
    """Makes primitives known that have other sites than the one among their parameters, or devices that talk."""
    _find_sites.update(dict.fromkeys(primitives, find_sites))
    _are_collective.update(dict.fromkeys(primitives, is_collective))


def _sites_of(eqn: Any) -> tuple[Site, ...]:
    """The sites that one equation has itself: that of an effect, or those of an exported program."""
    if (find := _find_sites.get(eqn.primitive)) is not None:
        return find(eqn)
    site = eqn.params.get("site")
    return (site,) if isinstance(site, Site) else tuple(eqn.params.get("sites", ()))


def is_collective(eqn: Any) -> bool:
    """Whether devices talk to each other in this equation."""
    ours = _are_collective.get(eqn.primitive)
    return _jax.is_collective(eqn) if ours is None else ours(eqn)


def is_record(eqn: Any) -> bool:
    """Whether an equation becomes one record, whose results nothing waits for."""
    return eqn.primitive is effect_p and eqn.params["site"].results is None


def _have_one_token(eqn: Any, other: Any) -> bool:
    """Whether both become records of effects that have one token."""
    if not (is_record(eqn) and is_record(other)):
        return False
    return token_key(eqn.params["site"].effect) == token_key(other.params["site"].effect)


def is_ordered_record(eqn: Any) -> bool:
    """Whether it does, and the record has a place in an order."""
    return is_record(eqn) and eqn.params["site"].effect.ordered


def has_effects(holder: Any) -> bool:
    """Whether a jaxpr or an equation shows effects of ours."""
    return bool(effects_of(holder.effects))


def needs_mask(eqn: Any) -> bool:
    """Whether an equation has effects of ours, or will have them when it is transposed."""
    if eqn.primitive is print_grad_p or has_effects(eqn):
        return True
    return any(summarize(inner).needs_masks for inner in _jax.jaxprs_in(eqn.params))


def begins_with_record(jaxpr: Any) -> bool:
    """Whether the first effect of a jaxpr becomes one ordered record, whose results nothing waits for."""
    return is_ordered_record(summarize(jaxpr).first)


def ends_with_record(jaxpr: Any) -> bool:
    """Whether the last effect does."""
    return is_ordered_record(summarize(jaxpr).last)
