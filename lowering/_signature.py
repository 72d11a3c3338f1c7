"""Where tokens sit: among arguments, shardings, layouts and donation flags."""

from __future__ import annotations

from typing import Any

from effects import _jax as compat


def with_tokens(params: dict[str, Any], tokens: int) -> dict[str, Any]:
    """The parameters of a call that has this many tokens ahead of its inputs and outputs."""
    return {name: (_OF_TOKEN[name],) * tokens + value if name in _OF_TOKEN else value for name, value in params.items()}


def with_mask(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a call that has a mask ahead of its inputs."""
    inputs = [name for name in params if name in _OF_TOKEN and not name.startswith("out_")]
    return {name: (_OF_TOKEN[name], *value) if name in inputs else value for name, value in params.items()}


_OF_TOKEN: dict[str, Any] = {  # parameters with one element for each input or output, and a token's
    "in_shardings": compat.UNSPECIFIED,
    "out_shardings": compat.UNSPECIFIED,
    "in_layouts": None,
    "out_layouts": None,
    "donated_invars": False,
    "out_memory_spaces": compat.DEVICE_MEMORY,
    "exclude_mask": False,
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
