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
from collections.abc import Iterator
from typing import Any

from effects import _jax
from effects.lowering.passes.summary import is_collective, summarize

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
