"""Rules that are loaded once what they are for has been imported: most programs have neither kernels nor asynchronous
operations, and do not wait for their import."""

from effects import _jax
from effects._config import config
from effects._jax import patches

config.listen(lambda settings: _jax.set_kernel_options(checks_bounds=settings.bounds_checks))


def _load_operations() -> None:
    from effects.lowering.rules import operations as operations


_jax.when_imported("effects._model.operation_primitives", _load_operations)


@patches.once_imported(patches.KERNELS)
def _implement_kernels() -> None:
    from effects.lowering.rules import pallas_call as pallas_call


@patches.once_imported(patches.MESH_KERNELS)
def _implement_mesh_kernels() -> None:
    from effects.lowering.rules import mesh_kernels as mesh_kernels
