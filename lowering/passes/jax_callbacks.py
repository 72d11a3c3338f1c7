"""JAX's own callbacks in jaxprs: what was traced outside of `fx.jit` is taken over, and given back where tokens do not
go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from effects import _jax
from effects._api.jax_callbacks import bind_effect
from effects._config import config
from effects._model.primitive import effect_p
from effects._model.registry import OF_JAX
from effects.lowering.holders import find_holder
from effects.lowering.rewrite import rewritten, with_jaxprs
from effects.lowering.summary import summarize
from effects.lowering.tokens import registered_rule


def take_over(jaxpr: Any) -> Any:
    """A jaxpr in which JAX's own callbacks are effects of ours, wherever tokens can come to them.

    While a function is traced for `fx.jit` they are bound so from the start. What is left are jaxprs that were traced
    before, and all of them if the setting `jax_effects` is "jax": then JAX's transformations are over.
    """
    jaxpr = _jax.closed_jaxpr(jaxpr)
    if not _jax.has_callbacks_of_jax(jaxpr):
        return jaxpr
    return _taken_over(jaxpr, config.jax_effects == "program_order")


# A cache must not give back the jaxpr that it was asked for: a value that is its own key lives forever, and what the
# user's function closes over with it.
@_jax.weakref_lru_cache
def _taken_over(jaxpr: Any, in_program_order: bool) -> Any:
    def apply(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        if eqn.primitive in _jax.callback_primitives:
            return bind_effect(eqn.primitive, operands, eqn.params, in_program_order)
        if _jax.has_callbacks_of_jax(eqn) and _takes_tokens(eqn.primitive):
            eqn = with_jaxprs(eqn, take_over)
        return _jax.bind(eqn, operands)

    return rewritten(jaxpr, apply)


def _takes_tokens(primitive: Any) -> bool:
    return registered_rule(primitive) is not None or find_holder(primitive) is not None


def is_of_jax(jaxprs: Sequence[Any]) -> bool:
    """Whether these have effects of ours, and all of them were written as JAX's own callbacks."""
    effects = frozenset[Any]().union(*(summarize(jaxpr).all_effects for jaxpr in jaxprs))
    return bool(effects) and all(effect.name in OF_JAX for effect in effects)


def give_back(eqn: Any) -> Any:
    """An equation in whose jaxprs JAX's own callbacks are JAX's again."""
    return with_jaxprs(eqn, _give_back)


def _give_back(jaxpr: Any) -> Any:
    return _given_back(jaxpr) if summarize(jaxpr).all_effects else jaxpr


@_jax.weakref_lru_cache
def _given_back(jaxpr: Any) -> Any:
    def apply(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        if eqn.primitive is effect_p and (origin := eqn.params["site"].origin) is not None:
            return origin.give_back(eqn.params["site"], operands)
        return _jax.bind(give_back(eqn), operands)

    return rewritten(jaxpr, apply)
