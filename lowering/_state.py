"""References become values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from effects import _jax as compat


def run_discharged(
    evaluate: Callable[[Any, Sequence[Any]], Sequence[Any]], args: Sequence[Any], jaxpr: Any, is_initialized: Any
) -> Sequence[Any]:
    """What a `run_state` returns, by `evaluate(jaxpr, values)` of the pure jaxpr that JAX lowers it to. Effects between
    reads and writes stay between them."""

    def read(x: Any) -> Any:
        return x[...] if compat.is_reference(x) else x

    pure, values = compat.discharge_state(jaxpr, [read(x) for x in args], is_initialized)
    outs = evaluate(pure, values)
    # A reference of the enclosing function comes in as itself; what became of its value is written back.
    finals = [out for out, initialized in zip(outs, is_initialized, strict=True) if initialized]
    for x, final in zip(args, finals, strict=True):
        if compat.is_reference(x):
            x[...] = final
    return outs
