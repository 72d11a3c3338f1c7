"""Calls: tokens first in, first out.

A jitted function stays a function of its own, so that however often it is called it is compiled once. A rematerialized
region stays one too, for its barriers. What only mattered to transformations, which are over when the pass runs, is
evaluated in place.
"""

from __future__ import annotations

from typing import Any

from effects import _jax as compat
from lowering._rules import TokenContext, Tokens, register_token_rule
from lowering._signature import with_tokens
from lowering._state import run_discharged


@register_token_rule(compat.jit_p, *compat.annotated_calls())
def _jit_token_rule(ctx: TokenContext, tokens: Tokens, *args: Any, **params: Any) -> tuple[Tokens, list[Any]]:
    body = "jaxpr" if "jaxpr" in params else "call_jaxpr"
    params[body] = ctx.threaded(params[body], tokens)
    outs = ctx.primitive.bind(*tokens.values(), *args, **with_tokens(params, len(tokens)))
    return dict(zip(tokens, outs, strict=False)), list(outs[len(tokens) :])


@register_token_rule(compat.remat_p)
def _remat_token_rule(
    ctx: TokenContext, tokens: Tokens, *args: Any, jaxpr: Any, **params: Any
) -> tuple[Tokens, list[Any]]:
    threaded = ctx.threaded(jaxpr, tokens)
    outs = compat.remat_p.bind(*threaded.consts, *tokens.values(), *args, jaxpr=compat.open_jaxpr(threaded), **params)
    return dict(zip(tokens, outs, strict=False)), list(outs[len(tokens) :])


@register_token_rule(*compat.inlined_calls())
def _call_token_rule(ctx: TokenContext, tokens: Tokens, *args: Any, **params: Any) -> tuple[Tokens, list[Any]]:
    return ctx.thread(compat.inlined_calls()[ctx.primitive](params), tokens, args)


@register_token_rule(compat.linear_solve_p)
def _custom_linear_solve_token_rule(
    ctx: TokenContext, tokens: Tokens, *args: Any, const_lengths: Any, jaxprs: Any
) -> tuple[Tokens, list[Any]]:
    """What runs is `solve`; the other functions are for differentiation and transposition."""
    begin = const_lengths.matvec + const_lengths.vecmat
    solve_consts = args[begin : begin + const_lengths.solve]
    return ctx.thread(jaxprs.solve, tokens, [*solve_consts, *args[sum(const_lengths) :]])


@register_token_rule(compat.run_state_p)
def _run_state_token_rule(
    ctx: TokenContext, tokens: Tokens, *args: Any, jaxpr: Any, is_initialized: Any, **params: Any
) -> tuple[Tokens, list[Any]]:
    """References become values, as they do when JAX lowers it."""

    def thread(pure: Any, values: Any) -> list[Any]:
        nonlocal tokens
        tokens, outs = ctx.thread(pure, tokens, values)
        return outs

    outs = run_discharged(thread, args, jaxpr, is_initialized)
    return tokens, list(outs)
