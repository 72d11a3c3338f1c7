"""What is asked of kernels where Pallas may not have been imported. There are none then."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import jax


def is_in_kernel() -> bool:
    """Whether what is traced now is a kernel, or the index map of one of its blocks."""
    core = sys.modules.get("jax._src.pallas.core")
    if (context := getattr(core, "_grid_context", None)) is not None:  # since 0.12
        return context.value is not None
    environment = getattr(core, "_pallas_tracing_env", None)
    return environment is not None and environment.grid_context is not None


MESH_KERNELS = "jax._src.pallas.mpmd"
"""The module of kernels over a mesh."""


def mesh_kernel_primitive() -> Any:
    return sys.modules[MESH_KERNELS].mpmd_map_p


# How kernels are treated beside what their calls say: one value, which is part of the keys of JAX's caches.
#
# A function that was traced with another value is traced again. All of it is one context, since JAX hashes and compares
# every context at every dispatch, whatever is dispatched. For the same reason the value is None where nothing is set,
# and else a tuple.


class KernelOptions(NamedTuple):
    """How kernels are treated where they are traced now."""

    visit: Any = None
    """The order in which the grids of simulated kernels are visited, and their count; None: as they say."""
    checks_bounds: bool = False
    """Whether simulated kernels check their accesses."""
    logs_simulated: bool = False
    """Whether kernels that JAX simulates have logs as compiled ones have, so that tests see what these would record."""
    grown_to: int = 0
    """In a function whose kernels' logs had too little room: the words that logs had needed by then."""


_DEFAULT = KernelOptions()
_context = jax.make_user_context(None)


def kernel_options() -> KernelOptions:
    """What is in force."""
    return _context.value or _DEFAULT


def with_kernel_options(**parts: Any) -> Any:
    """A context of this thread in which these parts are so, and the others as around it."""
    return _context(_with(_context.value, parts))


def set_kernel_options(**parts: Any) -> None:
    """Sets these parts for all threads, and in the context that this thread is in, until that ends."""
    _context.set_global(_with(_context.get_global(), parts))
    if (inner := _with(_context.value, parts)) != _context.value:
        _context(inner).__enter__()


def _with(value: KernelOptions | None, parts: dict[str, Any]) -> KernelOptions | None:
    changed = (value or _DEFAULT)._replace(**parts)
    return None if changed == _DEFAULT else changed
