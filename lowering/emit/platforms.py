"""Which lowerings each platform has: those of the module that its row names."""

from __future__ import annotations

import importlib
from typing import Any

import jax.numpy as jnp

from effects import _jax
from effects._model.platform import PLATFORMS
from effects._model.primitive import effect_p
from effects._wire import TOKEN_LENGTH
from effects.lowering.emit import callback
from effects.lowering.emit.record import close_p, record_p
from effects.lowering.rules.shard_map import check_mesh_p, lower_check_mesh, rejoin_p

_NOT_CACHEABLE = {record_p, close_p, effect_p}
"""What is lowered anew for each equation: a program keeps its sites."""


def _register(lowerings: dict[Any, Any], platform: str | None) -> None:
    for primitive, rule in lowerings.items():
        _jax.mlir.register_lowering(primitive, rule, platform=platform, cacheable=primitive not in _NOT_CACHEABLE)


def _rejoin(*tokens: Any) -> list[Any]:
    own, around = tokens[: len(tokens) // 2], tokens[len(tokens) // 2 :]
    return [jnp.concatenate([a, b[TOKEN_LENGTH:]]) for a, b in zip(own, around, strict=True)]


for _platform in PLATFORMS.values():
    _register(importlib.import_module(f"effects.lowering.emit.{_platform.records}").LOWERINGS, _platform.name)
_register(callback.LOWERINGS, None)
_jax.mlir.register_lowering(check_mesh_p, lower_check_mesh)
_jax.mlir.register_lowering(rejoin_p, _jax.mlir.lower_fun(_rejoin))
