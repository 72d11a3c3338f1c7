"""The facts that the token pass knows about the per-device region that it is in.

Three things go wrong where devices wait for each other in collectives. The facts here settle them.

First, no value depends on a print that stands ahead of it, so XLA may run a collective before the print, and a device
that waits in a collective publishes nothing. If another device's callback is ordered after that print, they deadlock:

1. Device 0 waits in the collective for device 1, and has not published its print.
2. Device 1 waits for its callback's result, before it comes to the collective.
3. The callback waits for the print of device 0, which is ahead of it in the order.

So in regions where devices may diverge, the operands of a collective depend on the tokens.

Second, a device whose callback has been answered may wait in a collective for one whose callback has not been called
yet. If that callback then fails, or runs a program on the device that waits, the collective never ends. So devices go
on together from a call with results. All of them must come there, and each must have had as many effects before: else
the next effect of a device that waits may be ahead of those of the others, and keep them from coming. Both hold in
regions without a `while` whose iterations have effects. Branches are made to count equally many effects: see
`lowering/control_flow.py`.

Third, `fx.error_if` is a `cond` that only failing devices take. If all devices come to it, they first reduce the
predicate over the region, so that all take it or none: see there too.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from effects import _jax
from effects._model.callback import HostCall
from effects._model.effect import is_numbered, token_key
from effects._model.primitive import effect_p
from effects.lowering.summary import effects_of, is_collective, summarize


class InRegion(NamedTuple):
    """The facts about a place in a per-device region."""

    collectives_after_effects: bool = False  # collectives depend on the effects before them
    all_come: bool = False  # all devices reach this place, and equally often
    counts_agree: bool = False  # where all devices come, they have had equally many effects
    branches_skip: bool = False  # a branch skips the indices that only other branches use
    trip_counts_agree: bool = False  # the next loop has the same trip count on all devices
    has_collectives: bool = False  # other devices may wait for one that fails

    @property
    def go_on_together(self) -> bool:
        """True if devices continue together from a call with results."""
        return self.all_come and self.counts_agree

    @property
    def joins_error_votes(self) -> bool:
        """True if devices first reduce the predicate of an `fx.error_if` over the region."""
        return self.all_come and self.has_collectives


OUTSIDE = InRegion()

_tracing = threading.local()


def in_region() -> InRegion:
    """The facts about the place that this thread traces."""
    return getattr(_tracing, "now", OUTSIDE)


@contextlib.contextmanager
def inside(region: InRegion) -> Iterator[None]:
    """Sets `region` as the facts for all that this thread traces in the block."""
    before = in_region()
    _tracing.now = region
    try:
        yield
    finally:
        _tracing.now = before


def in_branch() -> InRegion:
    """The facts inside a `cond` that is here, or a `while` whose trip counts may differ. Types do not say where all
    devices come: a value that JAX takes to be the same on all devices may differ if a callback has returned it."""
    return in_region()._replace(all_come=False)


def joins_error_vote(eqn: Any) -> bool:
    """True if this is an `fx.error_if` whose predicate devices first reduce over the region."""
    return in_region().joins_error_votes and ends_program(eqn)


def ends_program(eqn: Any) -> bool:
    """True if an equation is the `cond` of an `fx.error_if`."""
    if eqn.primitive is not _jax.cond_p or len(eqn.params["branches"]) != 2:
        return False
    goes_on, ends = map(summarize, eqn.params["branches"])
    if goes_on.first is not None or ends.first is None or ends.first is not ends.last:
        return False
    if ends.last.primitive is not effect_p:
        return False
    return isinstance(call := ends.last.params["site"].content, HostCall) and call.always_ends


def communicates(eqn: Any) -> bool:
    """True if devices communicate in this equation, or inside it."""
    return is_collective(eqn) or any(summarize(inner).has_collectives for inner in _jax.jaxprs_in(eqn.params))


# The number of effects that a jaxpr counts, if it is static.

_CALLS = {
    *(_jax.jit_p, _jax.remat_p, _jax.shard_map_p, _jax.custom_jvp_call_p, _jax.custom_vjp_call_p),
    *_jax.annotated_calls(),
}
"""Primitives that call their one jaxpr once."""

_single = {effect_p}
"""Primitives that count once, if they do."""


def declare_single(*primitives: _jax.Primitive) -> None:
    """Makes primitives known whose equations count one effect, if they count."""
    _single.update(primitives)


def static_effect_counts(jaxpr: Any) -> Mapping[str, int] | None:
    """The number of effects that a device counts in a jaxpr, by key; None if it is not known. Where branches differ it
    is the largest: see `lowering/control_flow.py`. An `fx.error_if` counts as none, since a device that takes it does
    not continue."""
    return _static_effect_counts(_jax.closed_jaxpr(jaxpr))


@_jax.weakref_lru_cache
def _static_effect_counts(jaxpr: Any) -> Mapping[str, int] | None:
    total = Counter[str]()
    for eqn in jaxpr.jaxpr.eqns:
        keys = {key for effect in effects_of(eqn.effects) if is_numbered(key := token_key(effect))}
        if not keys or ends_program(eqn):
            continue
        if eqn.primitive in _single:
            total.update(keys)
            continue
        inner = [static_effect_counts(each) for each in _jax.jaxprs_in(eqn.params)]
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
