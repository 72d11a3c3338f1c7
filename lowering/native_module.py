"""The native module, configured and registered with XLA under the names that lowered programs call."""

from __future__ import annotations

from typing import Any

import jax

from effects import _jax
from effects._config import Config, config
from effects._model import wire as wire
from effects._model.native import native as native


def register_handlers(platform: str, handlers: Any) -> None:
    """Registers handlers with JAX, which passes them to XLA when it makes a backend of this platform, if it does."""
    targets: dict[str, dict[str, Any]] = {}
    for target, stage, capsule in handlers:
        targets.setdefault(target, {})[stage] = capsule
    for target, stages in targets.items():
        jax.ffi.register_ffi_target(target, stages, platform=platform)


def _configure(settings: Config) -> None:
    native.configure(settings.ring_bytes, wire.WHEN_FULL.index(settings.when_full))


_jax.register_ffi_type(wire.SITE_STATE, *native.loaded_site_type(), platform="cpu")
register_handlers("cpu", native.handlers())
config.listen(_configure)
