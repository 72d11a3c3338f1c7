"""`while` in forms that JAX gives it: for all lanes at once, and in `checkify`.

How tokens are carried says the holder, also where the condition has effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from effects import _errors as errors
from effects import _jax
from effects._jax import patches
from effects.lowering.holders import loop_with_carried_predicate
from effects.lowering.passes.in_region import in_branch, in_region, inside
from effects.lowering.passes.masks import MSG_MISSING_MASK
from effects.lowering.passes.summary import effects_of
from effects.lowering.passes.tokens import TokenContext, Tokens, register_token_rule


@register_token_rule(_jax.while_p)
def _while_token_rule(
    ctx: TokenContext, tokens: Tokens, *args: Any, cond_jaxpr: Any, body_jaxpr: Any, cond_nconsts: int, **params: Any
) -> tuple[Tokens, Sequence[Any]]:
    if cond_jaxpr.out_avals[0].shape:  # by JAX: under `vmap`, loops with effects of ours have been given masks
        if any(effect.ordered for effect in effects_of(cond_jaxpr.effects)):
            names = ", ".join(sorted(map(str, ctx.effects)))
            raise errors.MissingTokenRule(MSG_MISSING_MASK.format(effects=names, primitive="while", where=ctx.where))
        cond_jaxpr, body_jaxpr = _without_lanes(cond_jaxpr, body_jaxpr, cond_nconsts, params["body_nconsts"])
        args = (*args[:cond_nconsts], *args)
        params["body_nconsts"] += cond_nconsts
    region = in_region()
    with inside(region._replace(turns_agree=False) if region.turns_agree else in_branch()):
        return ctx.carry(
            ctx, tokens, *args, cond_jaxpr=cond_jaxpr, body_jaxpr=body_jaxpr, cond_nconsts=cond_nconsts, **params
        )


def _without_lanes(cond_jaxpr: Any, body_jaxpr: Any, cond_nconsts: int, body_nconsts: int) -> tuple[Any, Any]:
    """A loop whose condition differs between lanes as JAX lowers it: while any lane goes on, the body runs for all of
    them, effects included, and what it makes of those that have ended is dropped.

    The body then takes the condition's constants ahead of its own.
    """

    def condition(*flat: Any) -> list[Any]:
        return [_jax.evaluate(cond_jaxpr, flat)[0].any()]

    def body(*flat: Any) -> list[Any]:
        consts, rest, carry = flat[:cond_nconsts], flat[cond_nconsts:], flat[cond_nconsts + body_nconsts :]
        after = _jax.evaluate(body_jaxpr, rest)
        [goes_on] = _jax.evaluate(cond_jaxpr, [*consts, *carry])
        return [
            jnp.where(jax.lax.expand_dims(goes_on, range(goes_on.ndim, new.ndim)), new, old)
            for new, old in zip(after, carry, strict=True)
        ]

    avals = [*cond_jaxpr.in_avals[:cond_nconsts], *body_jaxpr.in_avals]
    return (
        _jax.trace_to_jaxpr(condition, cond_jaxpr.in_avals, like=cond_jaxpr),
        _jax.trace_to_jaxpr(body, avals, like=body_jaxpr),
    )


def _asked_once(params: dict[str, Any]) -> Any:
    """A loop whose condition has effects, as a jaxpr that carries the predicate. `checkify` would ask the condition
    twice in each iteration."""
    cond, body, split = params["cond_jaxpr"], params["body_jaxpr"], params["cond_nconsts"]
    if not effects_of(cond.effects):
        return None
    others = {name: value for name, value in params.items() if not name.startswith(("cond_", "body_"))}
    of_body = range(split, split + params["body_nconsts"])
    avals = [*cond.in_avals[:split], *body.in_avals]
    return loop_with_carried_predicate(avals, cond, range(split), body, of_body, others)


@patches.once_imported(patches.CHECKIFY)
def _implement_checkify() -> None:
    patches.implements("while in checkify")(_jax.checkifying_instead(_asked_once))
