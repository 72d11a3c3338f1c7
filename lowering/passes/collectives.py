"""Values that are there only after the effects that come before them.

Nothing ties a value to a print that stands ahead of it, so XLA may run a collective first, and a device that waits in a
collective publishes nothing. If another device's callback is ordered behind that print, the two deadlock:

1. Device 0 waits in the collective for device 1, and has not published its print.
2. Device 1 waits for its callback's result, before it comes to the collective.
3. The callback waits for the print of device 0, which is ahead of it in the order.

So in regions where devices may diverge, what goes into a collective is tied to the tokens.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from effects import _jax
from effects.lowering.passes.summary import is_collective, summarize

after_p = _jax.Primitive("after")
after_p.multiple_results = True
"""(*tokens, *values) -> the values. The first `tokens` of the operands are tokens."""


@after_p.def_abstract_eval
def _after_abstract_eval(*operands: Any, tokens: int) -> Sequence[Any]:
    return operands[tokens:]


def after(tokens: Iterable[Any], values: Sequence[Any]) -> list[Any]:
    """The values, when what these tokens stand for has been published."""
    tokens, values = list(tokens), list(values)
    arrays = [at for at, value in enumerate(values) if not _jax.is_reference_type(_jax.typeof(value))]
    if arrays:
        outs = after_p.bind(*tokens, *(values[at] for at in arrays), tokens=len(tokens))
        for at, out in zip(arrays, outs, strict=True):
            values[at] = out
    return values


_tracing = threading.local()


@contextlib.contextmanager
def order_collectives_after_effects(enabled: bool) -> Iterator[None]:
    """Whether the token pass, inside of this block, ties collectives to the effects that stand ahead of them."""
    before = are_collectives_ordered_after_effects()
    _tracing.enabled = enabled
    try:
        yield
    finally:
        _tracing.enabled = before


def are_collectives_ordered_after_effects() -> bool:
    """Whether `order_collectives_after_effects` is in force."""
    return getattr(_tracing, "enabled", False)


def communicates(eqn: Any) -> bool:
    """Whether devices communicate in this equation, or inside it."""
    return is_collective(eqn) or any(summarize(inner).has_collectives for inner in _jax.jaxprs_in(eqn.params))
