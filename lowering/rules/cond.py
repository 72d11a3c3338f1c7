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
import jax.numpy as jnp

from effects import _jax
from effects._model.primitive import effect_p
from effects.lowering.emit.record import skip_p
from effects.lowering.passes.counts import counts_in
from effects.lowering.passes.in_region import asks, ends_program, in_branch, in_region, inside
from effects.lowering.passes.masks import MaskContext, mask_effects, mask_held, register_mask_rule
from effects.lowering.passes.tokens import TokenContext, Tokens, register_token_rule


@register_token_rule(_jax.cond_p)
def _cond_token_rule(
    ctx: TokenContext, tokens: Tokens, index: Any, *operands: Any, branches: Sequence[Any], **params: Any
) -> tuple[Tokens, Sequence[Any]]:
    if asks(ctx.eqn):
        index, operands, branches = _taken_by_all(index, operands, branches)
    with inside(in_branch()):
        if in_region().branches_skip and not ends_program(ctx.eqn):
            return _skipping(ctx, tokens, index, operands, branches, params)
        return ctx.carry(ctx, tokens, index, *operands, branches=branches, **params)


def _taken_by_all(index: Any, operands: Sequence[Any], branches: Sequence[Any]) -> tuple[Any, Sequence[Any], Any]:
    """An `fx.error_if` that all devices take if one does. A mask says on which of them something is wrong."""
    is_wrong = _jax.as_per_device(index != 0)
    index = jax.lax.pmax(is_wrong.astype(index.dtype), jax.sharding.get_abstract_mesh().manual_axes)
    return index, (is_wrong, *operands), tuple(map(_for_all, branches))


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


def _skipping(
    ctx: TokenContext, tokens: Tokens, index: Any, operands: Sequence[Any], branches: Sequence[Any], params: Any
) -> tuple[Tokens, Sequence[Any]]:
    """Branches that count equally many effects under each key."""
    counts = [counts_in(branch) for branch in branches]
    assert None not in counts, "it is known of the whole region"
    most = [max(count.get(key, 0) for count in counts) for key in tokens]
    missing = [tuple(n - count.get(key, 0) for key, n in zip(tokens, most, strict=True)) for count in counts]
    threaded = [ctx.threaded(branch, tokens) for branch in branches]
    skipping = [_skipping_at_end(*each) if any(each[1]) else each[0] for each in zip(threaded, missing, strict=True)]
    flat = _jax.cond_p.bind(index, *tokens.values(), *operands, branches=tuple(skipping), **params)
    return dict(zip(tokens, flat, strict=False)), flat[len(tokens) :]


def _skipping_at_end(threaded: Any, missing: tuple[int, ...]) -> Any:
    """A branch with tokens ahead of its results, which skips so many numbers of each at its end."""

    def skip(*args: Any) -> list[Any]:
        outs = _jax.evaluate(threaded, args)
        tokens = [skip_p.bind(token, count=n) if n else token for token, n in zip(outs, missing, strict=False)]
        return [*tokens, *outs[len(missing) :]]

    return _jax.trace_to_jaxpr(skip, threaded.in_avals, like=threaded)


@register_mask_rule(_jax.cond_p)
def _mask_cond(
    ctx: MaskContext, active: Any, index: Any, *operands: Any, branches: Sequence[Any], **params: Any
) -> Sequence[Any]:
    """A lane that is not there ends no program, nor does a device come to where programs end for its sake."""
    if ends_program(ctx.eqn):
        index = jnp.where(active, index, 0)
        return _jax.cond_p.bind(index, *operands, branches=branches, **params)
    return mask_held(ctx.eqn, active, [index, *operands])
