"""The token pass: one loop over the equations of a jaxpr.

It evaluates the jaxpr under whatever trace is current. An equation without effects is bound as it is; one with effects
goes through its rule, which takes tokens and returns them. The result is an ordinary function of tokens and arguments
without effects that JAX knows of.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax

from effects import _errors as errors
from effects import _jax as compat
from effects._primitive import effect_p
from effects._registry import registered_effects
from lowering._after import after, collectives_come_after, do_collectives_come_after, talks
from lowering._jax_callbacks import is_ordered_record
from lowering._record import NO_EDGES, Edges
from lowering._rules import (
    UNORDERED,
    TokenContext,
    TokenRule,
    Tokens,
    effects_inside,
    effects_of,
    find_rule,
    own_effects,
    token_keys,
)


def ends_with_record(jaxpr: Any) -> bool:
    """Whether the last thing that a program publishes is a record under its only token, of its outermost jaxpr or of a
    region that stands there, in which no devices are copies of each other."""
    if len(token_keys(effects_of(jaxpr.effects))) != 1:
        return False
    last = equations_at_edges(jaxpr)[1]
    if last.primitive is compat.shard_map_p:
        if compat.region_axes(last.params["mesh"], last.params["newly_manual_axes"])[1]:
            return False
        last = equations_at_edges(compat.closed_jaxpr(last.params["jaxpr"]))[1]
    return is_plain_record(last)


def is_plain_record(eqn: Any) -> bool:
    """Whether an equation becomes one ordered record whose results nobody waits for."""
    if eqn.primitive is not effect_p:
        return is_ordered_record(eqn)
    site = eqn.params["site"]
    return site.effect.ordered and site.results is None


def equations_at_edges(jaxpr: Any) -> tuple[Any, Any]:
    """The first and the last equation with effects."""
    eqns = [eqn for eqn in jaxpr.jaxpr.eqns if effects_of(eqn.effects)]
    return eqns[0], eqns[-1]


def thread_tokens(
    jaxpr: Any, tokens: Tokens, args: Sequence[Any], edges: Edges = NO_EDGES, around: Any = None
) -> tuple[Tokens, list[Any]]:
    """Evaluates a jaxpr with constants, with tokens through its effects.

    Args:
        jaxpr: The jaxpr.
        tokens: A token under every key of the jaxpr's effects; others are passed through.
        args: The jaxpr's arguments.
        edges: What the first and the last equation with effects, which are records, publish besides themselves.
        around: The token around the region, if the last is to leave it.

    Returns:
        The tokens after the jaxpr, and its results.
    """
    tokens = dict(tokens)
    joined: list[Any] = []
    first, last = equations_at_edges(jaxpr) if edges != NO_EDGES else (None, None)
    calls = itertools.count()

    def apply(eqn: Any, operands: list[Any]) -> Sequence[Any]:
        effects, rule, call = effects_of(eqn.effects), find_rule(eqn.primitive), next(calls)
        if not effects or (rule is None and not own_effects(eqn.effects)):
            # Nothing to order, or callbacks of JAX's own in a primitive without a rule, which JAX can lower.
            refuse_hidden_effects(eqn)
            if do_collectives_come_after() and talks(eqn):
                operands = after(tokens.values(), operands)
            return compat.bind(eqn, operands)
        taken = {key: tokens[key] for key in token_keys(effects)}
        own = edges if first is last is eqn else _edges_of(edges, eqn is first, eqn is last)
        own_around = around if own.leaves and not own.enters else None
        ctx = TokenContext(eqn, effects, len(eqn.outvars), call, own, own_around, _thread, _threaded)
        returned, outs = _apply_rule(rule, ctx, taken, operands)
        for key, token in returned.items():
            # Unordered effects all take the token that came in: nothing orders them. But two calls of one function must
            # not be alike in all, or XLA makes one of them.
            if key == UNORDERED and not any(compat.jaxprs_in(eqn.params)):
                joined.append(token)
            else:
                tokens[key] = token
        return outs

    outs = compat.interpret(jaxpr, args, apply)
    if joined:
        tokens[UNORDERED] = _join([tokens[UNORDERED], *joined])
    return tokens, outs


def _edges_of(edges: Edges, is_first: bool, is_last: bool) -> Edges:
    """What one equation publishes besides itself of what its jaxpr does."""
    if not is_first and not is_last:
        return NO_EDGES
    return edges._replace(
        enters=edges.enters and is_first, leaves=edges.leaves and is_last, closes=edges.closes and is_last
    )


@compat.weakref_lru_cache
def threaded_jaxpr(jaxpr: Any, keys: tuple[str, ...], token_avals: tuple[Any, ...], collectives_after: bool) -> Any:
    """The jaxpr with tokens ahead of its inputs and outputs. Cached, so that one function stays one function."""

    def threaded(*flat: Any) -> list[Any]:
        tokens = dict(zip(keys, flat[: len(keys)], strict=True))
        with collectives_come_after(collectives_after):
            tokens, outs = thread_tokens(jaxpr, tokens, flat[len(keys) :])
        return [*(tokens[key] for key in keys), *outs]

    return compat.trace_to_jaxpr(threaded, [*token_avals, *jaxpr.in_avals], like=jaxpr)


def _thread(
    jaxpr: Any, tokens: Tokens, args: Sequence[Any], edges: Edges = NO_EDGES, around: Any = None
) -> tuple[Tokens, list[Any]]:
    return thread_tokens(compat.closed_jaxpr(jaxpr), tokens, args, edges, around)


def _threaded(jaxpr: Any, tokens: Tokens) -> Any:
    keys = tuple(tokens)
    avals = tuple(compat.typeof(tokens[key]) for key in keys)
    return threaded_jaxpr(compat.closed_jaxpr(jaxpr), keys, avals, do_collectives_come_after())


def _apply_rule(
    rule: TokenRule | None, ctx: TokenContext, tokens: Tokens, operands: Sequence[Any]
) -> tuple[Tokens, Sequence[Any]]:
    known = registered_effects()
    for effect in ctx.effects:
        if effect.name not in known:
            raise ValueError(errors.MSG_UNKNOWN_IN_PROGRAM.format(effect=effect.name, where=ctx.where))
    if rule is None:
        raise _missing_rule(ctx.eqn, ctx.effects)
    result = rule(ctx, tokens, *operands, **ctx.eqn.params)
    if (
        not isinstance(result, tuple)
        or len(result) != 2
        or not isinstance(result[0], dict)
        or result[0].keys() != tokens.keys()
        or len(result[1]) != ctx.outs
    ):
        raise TypeError(
            errors.MSG_RULE_RETURNED.format(primitive=ctx.primitive, got=result, keys=", ".join(tokens), outs=ctx.outs)
        )
    return result


def _missing_rule(eqn: Any, effects: Any) -> errors.MissingTokenRule:
    names = ", ".join(sorted(f"`{effect}`" for effect in effects))
    return errors.MissingTokenRule(
        errors.MSG_MISSING_RULE.format(effects=names, primitive=eqn.primitive, where=compat.source_of(eqn))
    )


def refuse_hidden_effects(eqn: Any) -> None:
    """Raises if a jaxpr inside an equation has effects that the equation does not show."""
    for inner in compat.jaxprs_in(eqn.params):
        if hidden := effects_inside(inner):
            raise _missing_rule(eqn, hidden)


def _join(tokens: Sequence[Any]) -> Any:
    """One token that depends on all of these. They hold the same numbers."""
    first, *rest = tokens
    for token in rest:
        first = jax.lax.max(first, token)
    return first
