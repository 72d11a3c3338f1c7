"""Programs on NVIDIA's GPUs: handlers that put copies into streams, so that no stream waits for the host.

Where there is no usable driver, or without this folder, effects come from a GPU by JAX's Python callbacks.
"""

from effects import _jax
from effects._model import wire
from effects._model.device import publish_natively
from effects.lowering.native_module import native, register_handlers


def _has_driver() -> bool:
    """Returns True if handlers can call NVIDIA's driver here."""
    _, _, why_none = native.cuda_driver()
    return not why_none


publish_natively("cuda", _has_driver)
_jax.register_ffi_type(wire.SITE_STATE, *native.loaded_cuda_site_type(), platform="CUDA")
register_handlers("CUDA", native.cuda_handlers())
