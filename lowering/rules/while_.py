"""`while` where its condition has effects.

Tokens join what is carried, as the holder says. A condition with effects runs before the loop and at the end of the
body, so that the loop's own condition is only the predicate that the body left behind. So does one that reads
references, since JAX would give it their first values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from effects import _errors as errors
from effects import _jax
from effects._jax import patches
from effects.lowering.passes.masks import MSG_MISSING_MASK
from effects.lowering.passes.summary import effects_of
from effects.lowering.passes.tokens import TokenContext, Tokens, register_token_rule


@register_token_rule(_jax.while_p)
def _while_token_rule(
    ctx: TokenContext,
    tokens: Tokens,
    *args: Any,
    cond_jaxpr: Any,
    body_jaxpr: Any,
    cond_nconsts: int,
    body_nconsts: int,
    **params: Any,
) -> tuple[Tokens, Sequence[Any]]:
    cond_consts = args[:cond_nconsts]
    body_consts = args[cond_nconsts : cond_nconsts + body_nconsts]
    carry = args[cond_nconsts + body_nconsts :]
    keys = tuple(tokens)
    if cond_jaxpr.out_avals[0].shape:  # by JAX: under `vmap`, loops with effects of ours have been given masks
        if any(effect.ordered for effect in effects_of(cond_jaxpr.effects)):
            names = ", ".join(sorted(map(str, ctx.effects)))
            raise errors.MissingTokenRule(MSG_MISSING_MASK.format(effects=names, primitive="while", where=ctx.where))
        cond_jaxpr, body_jaxpr = _without_lanes(cond_jaxpr, body_jaxpr, cond_nconsts, body_nconsts)
        body_consts, body_nconsts = [*cond_consts, *body_consts], cond_nconsts + body_nconsts

    if not effects_of(cond_jaxpr.effects) and not any(map(_jax.is_reference, cond_consts)):
        return ctx.carry(
            ctx,
            tokens,
            *cond_consts,
            *body_consts,
            *carry,
            cond_jaxpr=cond_jaxpr,
            body_jaxpr=body_jaxpr,
            cond_nconsts=cond_nconsts,
            body_nconsts=body_nconsts,
            **params,
        )

    def keep(first: dict[str, Any], carried: Any) -> list[Any]:
        return [*(first[key] for key in keys), *carried]

    tokens, [predicate] = ctx.thread(cond_jaxpr, tokens, [*cond_consts, *carry])
    # What both have is one constant: a reference that the body writes is the one that the condition reads.
    consts = [*{id(x): x for x in (*cond_consts, *body_consts)}.values()]
    positions = {id(x): position for position, x in enumerate(consts)}
    state = [predicate, *keep(tokens, carry)]

    def body(*flat: Any) -> list[Any]:
        c_consts, b_consts = ([flat[positions[id(x)]] for x in given] for given in (cond_consts, body_consts))
        inner = dict(zip(keys, flat[len(consts) + 1 :], strict=False))
        inner, carried = ctx.thread(body_jaxpr, inner, [*b_consts, *flat[len(consts) + 1 + len(keys) :]])
        inner, [again] = ctx.thread(cond_jaxpr, inner, [*c_consts, *carried])
        return [again, *keep(inner, carried)]

    state_avals = [_jax.typeof(x) for x in state]
    outs = _jax.while_p.bind(
        *consts,
        *state,
        cond_jaxpr=_jax.trace_to_jaxpr(lambda predicate, *_: [predicate], state_avals, like=cond_jaxpr),
        body_jaxpr=_jax.trace_to_jaxpr(body, [*map(_jax.typeof, consts), *state_avals], like=body_jaxpr),
        cond_nconsts=0,
        body_nconsts=len(consts),
        **params,
    )
    return dict(zip(keys, outs[1:], strict=False)), list(outs[1 + len(keys) :])


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

    def loop(*args: Any) -> list[Any]:
        cond_consts, body_consts = args[:split], args[split : split + params["body_nconsts"]]

        def asks(carry: Any) -> Any:
            return _jax.evaluate(cond, [*cond_consts, *carry])[0]

        def step(state: Any) -> Any:
            carry = _jax.evaluate(body, [*body_consts, *state[1]])
            return asks(carry), carry

        carry = list(args[split + len(body_consts) :])
        return jax.lax.while_loop(lambda state: state[0], step, (asks(carry), carry))[1]

    avals = [*cond.in_avals[:split], *body.in_avals]
    return _jax.trace_to_jaxpr(loop, avals, like=body)


patches.implements("while in checkify")(_jax.checkifying_instead(_asked_once))
