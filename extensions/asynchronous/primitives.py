"""The effect and the primitives of asynchronous operations.

Operations, and the rules of these primitives, are imported with `start_and_done.py`, by whatever starts an operation.
"""

from __future__ import annotations

from typing import Any

from effects import _jax
from effects._model.effect import Effect

ASYNC = Effect("async", kind="device")
"""The effect of starts, updates and dones. They are in order on the device, in a domain that counts nothing."""


def is_asynchronous(eqn: Any) -> bool:
    """Returns True if an equation, or one inside it, starts, updates or ends an operation."""
    return any(isinstance(effect, Effect) and effect == ASYNC for effect in eqn.effects)


DONE_FUNCTION = "effects.async_done"
"""The name of the function that waits for one of the host's, which `host_runs.py` registers."""

async_start_p: _jax.Primitive = _jax.Primitive("async_start")
async_start_p.multiple_results = True
async_update_p: _jax.Primitive = _jax.Primitive("async_update")
async_update_p.multiple_results = True
async_done_p: _jax.Primitive = _jax.Primitive("async_done")
async_done_p.multiple_results = True
