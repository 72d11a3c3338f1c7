"""`custom_partitioning`, whose functions have no effects.

XLA calls the partition rule of such a function when the program has been lowered, and only then JAX lowers the function
that the rule returns. Tokens would be operands and results of that function that the rule does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from effects import _errors as errors
from effects._jax import patches
from effects.lowering.holders import conversion
from effects.lowering.summary import effects_of

MSG_IN_CUSTOM_PARTITIONING = (
    "Effect {effects} is in the `custom_partitioning` function `{function}`. XLA calls the partition rule "
    "after lowering, when no effect gets a place in the order any more. Move the effect out of the function, or use "
    "`jax.shard_map` in its place, where each device has effects of its own."
)


@patches.implements("effects of custom_partitioning")
def _refusing_effects(abstract_eval: Callable[..., Any]) -> Callable[..., Any]:
    """Refuses effects of ours. JAX's own callbacks are left to JAX there, also inside `fx.jit`."""

    def rule(*avals: Any, call: Any, **params: Any) -> Any:
        effects = effects_of(call.effects)
        if effects and not conversion().all_converted([call]):
            names = ", ".join(sorted(f"`{effect}`" for effect in effects))
            function = call.jaxpr.debug_info.func_src_info  # its name and source line
            raise errors.MissingTokenRule(MSG_IN_CUSTOM_PARTITIONING.format(effects=names, function=function))
        return abstract_eval(*avals, call=call, **params)

    return rule
