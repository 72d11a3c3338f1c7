"""The native module, configured and registered with XLA under the names that lowered programs call."""

from __future__ import annotations

import functools
import os
from typing import Any

import jax

from effects import _jax
from effects._config import Config, config
from effects._model import wire as wire
from effects._model.device import PLATFORMS
from effects._model.native import native as native
from effects.extensions.custom_calls import targets as _targets


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


@functools.cache
def _register_custom_call_handler(platform: str) -> None:
    """Registers the handler that calls the user's."""
    xla_name = PLATFORMS[platform].handlers
    assert xla_name is not None
    in_plugin = platform != "cpu"
    _jax.register_ffi_type(wire.CUSTOM_CALL_STATE, *native.loaded_call_type(in_plugin), platform=xla_name)
    stages = {stage: capsule for _, stage, capsule in native.custom_call_handlers(platform)}
    jax.ffi.register_ffi_target(wire.CUSTOM_CALL_TARGET, stages, platform=xla_name)


def _set_target(name: str, platform: str, address: int) -> None:
    _register_custom_call_handler(platform)
    native.set_target(name, platform, address)


def _configure(settings: Config) -> None:
    native.configure(settings.ring_bytes, wire.WHEN_FULL.index(settings.when_full))


native.record_by_kernel(os.environ.get("EFFECTS_GPU_RECORDS") == "kernel")  # which is faster has not been measured
_register_handlers("cpu", native.handlers(), native.loaded_site_type())
_register_handlers("CUDA", native.cuda_handlers(), native.loaded_cuda_site_type())
_register_custom_call_handler("cpu")  # a program from elsewhere may come before any handler of the user's does
_targets.listen(_set_target)
config.listen(_configure)
