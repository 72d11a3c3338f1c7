"""The handler of XLA's that calls the user's, registered for each platform that a user has a handler for."""

from __future__ import annotations

import functools

import jax

from effects import _jax
from effects._model import wire
from effects._model.device import PLATFORMS
from effects.extensions.custom_calls import targets
from effects.lowering.native_module import native


@functools.cache
def _register_custom_call_handler(platform: str) -> None:
    """Registers the handler that calls the user's."""
    xla_name = PLATFORMS[platform].handlers
    assert xla_name is not None
    in_plugin = platform != "cpu"
    _jax.register_ffi_type(wire.CUSTOM_CALL_STATE, *native.loaded_call_type(in_plugin), platform=xla_name)
    stages = {stage: capsule for _, stage, capsule in native.custom_call_handlers(in_plugin)}
    jax.ffi.register_ffi_target(wire.CUSTOM_CALL_TARGET, stages, platform=xla_name)


def _set_target(name: str, platform: str, address: int) -> None:
    _register_custom_call_handler(platform)
    native.set_target(name, platform, address)


_register_custom_call_handler("cpu")  # a program from elsewhere may come before any handler of the user's does
targets.listen(_set_target)
