"""`fx.error_if` where devices wait for each other: all devices of a region end the program, or none.

A device that ended it alone would never come to the next collective. The others would wait there, and XLA end the
process after a while, with no word of what was wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from effects import _jax
from effects._model.primitive import effect_p
from effects.lowering.passes.in_region import asks, in_branch, inside
from effects.lowering.passes.masks import mask_effects
from effects.lowering.passes.tokens import TokenContext, Tokens, register_token_rule


@register_token_rule(_jax.cond_p)
def _cond_token_rule(
    ctx: TokenContext, tokens: Tokens, index: Any, *operands: Any, branches: Sequence[Any], **params: Any
) -> tuple[Tokens, Sequence[Any]]:
    """All devices take the branch if one does. A mask says on which of them something is wrong: only these call the
    function, and the others learn from their call that the program has ended elsewhere."""
    if asks(ctx.eqn):
        is_wrong = _jax.as_per_device(index != 0)
        index = jax.lax.pmax(is_wrong.astype(index.dtype), jax.sharding.get_abstract_mesh().manual_axes)
        operands, branches = (is_wrong, *operands), tuple(map(_for_all, branches))
    with inside(in_branch()):
        return ctx.carry(ctx, tokens, index, *operands, branches=branches, **params)


@_jax.weakref_lru_cache
def _for_all(branch: Any) -> Any:
    """A branch that all devices take, with whether this one would have ahead of its inputs."""

    def apply(eqn: Any, operands: list[Any]) -> Sequence[Any]:
        if eqn.primitive is not effect_p:
            return _jax.bind(eqn, operands)
        site = eqn.params["site"]
        content = dataclasses.replace(site.content, all_end=True)
        return effect_p.bind(*operands, site=dataclasses.replace(site, content=content))

    ends_all = _jax.trace_to_jaxpr(lambda *args: _jax.interpret(branch, args, apply), branch.in_avals, like=branch)
    avals = [_jax.per_device(_jax.boolean()), *branch.in_avals]
    return _jax.trace_to_jaxpr(lambda active, *args: mask_effects(ends_all, active, args), avals, like=branch)
