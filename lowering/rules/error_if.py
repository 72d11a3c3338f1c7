"""`fx.error_if` where devices wait for each other: all devices of a region end the program, or none.

A device that ended it alone would never come to the next collective. The others would wait there, and XLA end the
process after a while, with no word of what was wrong. Of several processes those end it that have a device with
something wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from effects import _jax
from effects.lowering.passes.in_region import ends_program, in_region
from effects.lowering.passes.masks import mask_effects
from effects.lowering.passes.tokens import TokenContext, Tokens, register_token_rule


@register_token_rule(_jax.cond_p)
def _cond_token_rule(
    ctx: TokenContext, tokens: Tokens, index: Any, *operands: Any, branches: Sequence[Any], **params: Any
) -> tuple[Tokens, Sequence[Any]]:
    """All devices take the branch if one does, and go on from the call together. A mask says on which of them something
    is wrong: only these call the function."""
    if in_region().asks_all and ends_program(ctx.eqn):
        is_wrong = _jax.as_per_device(index != 0)
        index = jax.lax.pmax(is_wrong.astype(index.dtype), jax.sharding.get_abstract_mesh().manual_axes)
        operands, branches = (is_wrong, *operands), tuple(map(_masked, branches))
    return ctx.carry(ctx, tokens, index, *operands, branches=branches, **params)


@_jax.weakref_lru_cache
def _masked(branch: Any) -> Any:
    avals = [_jax.per_device(_jax.boolean()), *branch.in_avals]
    return _jax.trace_to_jaxpr(lambda active, *args: mask_effects(branch, active, args), avals, like=branch)
