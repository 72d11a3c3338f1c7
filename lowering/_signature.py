"""Where tokens sit: among arguments, shardings, layouts and donation flags."""

from __future__ import annotations

from typing import Any

from effects import _jax_compat as compat


def with_tokens(params: dict[str, Any], tokens: int) -> dict[str, Any]:
    """The parameters of a jit equation that has this many tokens ahead of its inputs and outputs."""
    return {
        **params,
        "in_shardings": (compat.UNSPECIFIED,) * tokens + params["in_shardings"],
        "out_shardings": (compat.UNSPECIFIED,) * tokens + params["out_shardings"],
        "in_layouts": (None,) * tokens + params["in_layouts"],
        "out_layouts": (None,) * tokens + params["out_layouts"],
        "donated_invars": (False,) * tokens + params["donated_invars"],
    }


def consts_first(jaxpr: Any, tokens: int, consts: int) -> Any:
    """A loop's body takes its constants ahead of what it carries, and tokens are carried."""
    if not consts:
        return jaxpr
    avals = list(jaxpr.in_avals)
    order = [*avals[tokens : tokens + consts], *avals[:tokens], *avals[tokens + consts :]]

    def reordered(*flat: Any) -> Any:
        return compat.evaluate(jaxpr, [*flat[consts : consts + tokens], *flat[:consts], *flat[consts + tokens :]])

    return compat.trace_to_jaxpr(reordered, order, like=jaxpr)
