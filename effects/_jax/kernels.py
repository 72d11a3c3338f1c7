"""Questions about kernels that do not import Pallas. If Pallas has not been imported, there are no kernels."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import jax


def is_in_kernel() -> bool:
    """True while a kernel, or the index map of one of its blocks, is being traced."""
    core = sys.modules.get("jax._src.pallas.core")
    if (context := getattr(core, "_grid_context", None)) is not None:  # since 0.12
        return context.value is not None
    environment = getattr(core, "_pallas_tracing_env", None)
    return environment is not None and environment.grid_context is not None


MESH_KERNELS = "jax._src.pallas.mpmd"
"""The module of kernels over a mesh."""


def mesh_kernel_primitive() -> Any:
    return sys.modules[MESH_KERNELS].mpmd_map_p


# Options of kernels that are no parameters of their calls: one value, which is part of the keys of JAX's caches.
#
# A function that was traced with another value is traced again. All options are in one context, since JAX hashes and
# compares every context at every dispatch. For the same reason the value is None, not a tuple, if no option is set.


class KernelOptions(NamedTuple):
    """The options of kernels that are traced now."""

    visit: Any = None
    """The order in which the grids of simulated kernels are visited, and their count; None: the grid's own order."""
    checks_bounds: bool = False
    """True if simulated kernels check the bounds of their accesses."""
    logs_simulated: bool = False
    """True if kernels that JAX simulates have logs as compiled ones have, so that tests see the same records."""
    grown_to: int = 0
    """In a function whose kernels' logs were too small: the number of words that logs have needed so far."""


_DEFAULT = KernelOptions()
_context = jax.make_user_context(None)


def kernel_options() -> KernelOptions:
    """The options in force."""
    return _context.value or _DEFAULT


def with_kernel_options(**parts: Any) -> Any:
    """A context of this thread that sets these options and inherits the others."""
    return _context(_with(_context.value, parts))


def set_kernel_options(**parts: Any) -> None:
    """Sets these options for all threads, and in this thread's current context until that ends."""
    _context.set_global(_with(_context.get_global(), parts))
    if (inner := _with(_context.value, parts)) != _context.value:
        _context(inner).__enter__()


def _with(value: KernelOptions | None, parts: dict[str, Any]) -> KernelOptions | None:
    changed = (value or _DEFAULT)._replace(**parts)
    return None if changed == _DEFAULT else changed
