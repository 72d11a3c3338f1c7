"""Programs without the effects that return nothing: left out, or recorded as ever and shown nowhere.

The two are what a program is compared with to see what its effects cost, and what they change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from effects import _jax
from effects._model.content import Composite, described_by
from effects._model.primitive import effect_p
from effects._model.record import Record
from effects._model.site import Site
from effects.lowering.rewrite import rewritten, with_jaxprs
from effects.lowering.summary import summarize

# Effects of which nothing becomes: the content of what is recorded only to see what recording costs.


@described_by("silent")
@dataclasses.dataclass(frozen=True)
class Silent(Composite):
    """The content in place of another. Neither the output nor a handler gets its records, since they are records of no
    parts."""

    of: str  # the title of that other

    sites: tuple[Site, ...] = ()

    def parts(self, site: Site, payload: Any) -> Iterable[tuple[Site, Any]]:
        return ()

    def text(self, record: Record) -> str:
        return ""


def without_records(jaxpr: Any) -> Any:
    """A jaxpr without the effects that return nothing. Those that its values need stay."""
    return _without_records(jaxpr) if _may_have_records(jaxpr) else jaxpr


def with_silent_records(jaxpr: Any) -> Any:
    """A jaxpr that records the same values at the same places, of which nothing becomes."""
    return _with_silent_records(jaxpr) if _may_have_records(jaxpr) else jaxpr


def _may_have_records(holder: Any) -> bool:
    return bool(summarize(holder).all_effects) or _jax.has_callbacks_of_jax(holder)


def _is_record(eqn: Any) -> bool:
    return eqn.primitive is effect_p and eqn.params["site"].results is None


@_jax.weakref_lru_cache
def _without_records(jaxpr: Any) -> Any:
    def apply(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        if _is_record(eqn) or (eqn.primitive in _jax.callback_primitives and not eqn.outvars):
            return []
        return _jax.bind(with_jaxprs(eqn, without_records), operands)

    return rewritten(jaxpr, apply)


@_jax.weakref_lru_cache
def _with_silent_records(jaxpr: Any) -> Any:
    def apply(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        if _is_record(eqn):
            site = eqn.params["site"]
            return effect_p.bind(*operands, site=dataclasses.replace(site, content=Silent(site.content.title)))
        return _jax.bind(with_jaxprs(eqn, with_silent_records), operands)

    return rewritten(jaxpr, apply)
