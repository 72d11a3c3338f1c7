"""What is asked of kernels where Pallas may not have been imported. There are none then."""

from __future__ import annotations

import sys
from typing import Any

from effects._jax.jaxprs import closed_jaxpr


def is_in_kernel() -> bool:
    """Whether what is traced now is a kernel, or the index map of one of its blocks."""
    core = sys.modules.get("jax._src.pallas.core")
    if (context := getattr(core, "_grid_context", None)) is not None:  # since 0.12
        return context.value is not None
    environment = getattr(core, "_pallas_tracing_env", None)
    return environment is not None and environment.grid_context is not None


def calls_mesh_kernel(jaxpr: Any) -> bool:
    """Whether a jaxpr itself calls a kernel over a mesh, as the function does by which `plgpu.kernel` has a rule of its
    own for `vmap`."""
    primitive = getattr(sys.modules.get("jax._src.pallas.mpmd"), "mpmd_map_p", None)
    return any(eqn.primitive is primitive for eqn in closed_jaxpr(jaxpr).jaxpr.eqns)
