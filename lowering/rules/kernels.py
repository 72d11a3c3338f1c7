"""Kernels, whose rules are loaded once Pallas is: programs without kernels do not wait for its import."""

from effects import _jax
from effects._api.config import config
from effects._jax import patches

config.listen(lambda settings: _jax.set_kernel_options(checks_bounds=settings.bounds_checks))


@patches.once_imported("jax._src.pallas.pallas_call")
def _implement_kernels() -> None:
    from effects.lowering.rules import pallas_call as pallas_call


@patches.once_imported("jax._src.pallas.mpmd")
def _implement_mesh_kernels() -> None:
    from effects.lowering.rules import mesh_kernels as mesh_kernels
