"""The native module, configured and registered with XLA under the names that lowered programs call."""

from __future__ import annotations

import os
from typing import Any

import jax

from effects import _jax
from effects._config import Config, config
from effects._model import wire as wire
from effects._model.native import native as native


def _register_handlers(platform: str, handlers: Any, site_type: Any) -> None:
    """JAX hands them on to XLA when it makes a backend of this platform, if it ever does."""
    _jax.register_ffi_type(wire.SITE_STATE, *site_type, platform=platform)
    targets: dict[str, dict[str, Any]] = {}
    for target, stage, capsule in handlers:
        targets.setdefault(target, {})[stage] = capsule
    for target, stages in targets.items():
        jax.ffi.register_ffi_target(target, stages, platform=platform)


def has_usable_driver() -> bool:
    """Whether handlers can call NVIDIA's driver here."""
    _, _, why_none = native.cuda_driver()
    return not why_none


def _configure(settings: Config) -> None:
    native.configure(settings.ring_bytes, wire.WHEN_FULL.index(settings.when_full))


native.record_by_kernel(os.environ.get("EFFECTS_GPU_RECORDS") == "kernel")  # which is faster has not been measured
_register_handlers("cpu", native.handlers(), native.loaded_site_type())
_register_handlers("CUDA", native.cuda_handlers(), native.loaded_cuda_site_type())
config.listen(_configure)
