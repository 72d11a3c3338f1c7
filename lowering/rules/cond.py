"""Branches in a region, where devices may take different ones.

`fx.error_if`: all devices end the program, or none. A device that ended it alone would never come to the next
collective. The others would wait there, and XLA end the process after a while, with no word of what was wrong.

Others: devices count as many effects in each branch, so that all have had as many behind it. A device skips the numbers
that only other branches have, and says so at once. So a callback in one branch waits for no device that is not there,
and devices go on together from one that stands behind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from effects import _jax
from effects._model.primitive import effect_p
from effects.lowering.emit.record import skip_p
from effects.lowering.passes.counts import counts_in
from effects.lowering.passes.in_region import asks, ends_program, in_branch, in_region, inside
from effects.lowering.passes.masks import mask_effects
from effects.lowering.passes.tokens import TokenContext, Tokens, register_token_rule


@register_token_rule(_jax.cond_p)
def _cond_token_rule(
    ctx: TokenContext, tokens: Tokens, index: Any, *operands: Any, branches: Sequence[Any], **params: Any
) -> tuple[Tokens, Sequence[Any]]:
    if asks(ctx.eqn):  # a mask says on which of them something is wrong
        is_wrong = _jax.as_per_device(index != 0)
        index = jax.lax.pmax(is_wrong.astype(index.dtype), jax.sharding.get_abstract_mesh().manual_axes)
        operands, branches = (is_wrong, *operands), tuple(map(_for_all, branches))
    with inside(in_branch()):
        if not in_region().counts_agree or ends_program(ctx.eqn):
            return ctx.carry(ctx, tokens, index, *operands, branches=branches, **params)
        keys = tuple(tokens)
        counts = [counts_in(branch) or {} for branch in branches]
        most = [max(count.get(key, 0) for count in counts) for key in keys]
        padded = [
            _padded(
                ctx.threaded(branch, tokens), tuple(n - count.get(key, 0) for key, n in zip(keys, most, strict=True))
            )
            for branch, count in zip(branches, counts, strict=True)
        ]
    flat = _jax.cond_p.bind(index, *tokens.values(), *operands, branches=tuple(padded), **params)
    return dict(zip(keys, flat, strict=False)), flat[len(keys) :]


@_jax.weakref_lru_cache
def _padded(threaded: Any, missing: tuple[int, ...]) -> Any:
    """A branch with tokens ahead of its results, which skips so many numbers of each at its end."""

    def pad(*args: Any) -> list[Any]:
        outs = _jax.evaluate(threaded, args)
        tokens = [skip_p.bind(token, count=n) if n else token for token, n in zip(outs, missing, strict=False)]
        return [*tokens, *outs[len(missing) :]]

    return _jax.trace_to_jaxpr(pad, threaded.in_avals, like=threaded) if any(missing) else threaded


@_jax.weakref_lru_cache
def _for_all(branch: Any) -> Any:
    """A branch that all devices take, with whether this one would have ahead of its inputs. Only these call the
    function, and the others learn from their call that the program has ended elsewhere."""

    def apply(eqn: Any, operands: list[Any]) -> Sequence[Any]:
        if eqn.primitive is not effect_p:
            return _jax.bind(eqn, operands)
        site = eqn.params["site"]
        content = dataclasses.replace(site.content, all_end=True)
        return effect_p.bind(*operands, site=dataclasses.replace(site, content=content))

    ends_all = _jax.trace_to_jaxpr(lambda *args: _jax.interpret(branch, args, apply), branch.in_avals, like=branch)
    avals = [_jax.per_device(_jax.boolean()), *branch.in_avals]
    return _jax.trace_to_jaxpr(lambda active, *args: mask_effects(ends_all, active, args), avals, like=branch)
