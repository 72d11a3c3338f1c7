"""Which lowerings each platform has: those of the module that its row names."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from effects import _errors as errors
from effects import _jax
from effects._model.platform import PLATFORMS
from effects._model.primitive import effect_p
from effects._wire import TOKEN_LENGTH
from effects.lowering.emit import callback, native
from effects.lowering.emit.counting import have_handlers
from effects.lowering.emit.record import close_p, record_p
from effects.lowering.rules.shard_map import MSG_REGION_WITHOUT_NATIVE, check_mesh_p, lower_check_mesh, rejoin_p

_NOT_CACHEABLE = {record_p, close_p, effect_p}
"""What is lowered anew for each equation: a program keeps its sites."""


def _lower_record(ctx: Any, *args: Any, **params: Any) -> Any:
    """On every platform: JAX knows no rules of several platforms for what has several results.

    A program that is exported calls handlers, whatever the platform. Where there are none, the process that calls the
    program puts callbacks of its own in their place.
    """
    has_handlers = have_handlers(ctx)
    if not has_handlers and params["edges"].enters and _jax.is_for_export(ctx):
        raise errors.MissingTokenRule(MSG_REGION_WITHOUT_NATIVE)
    module = native if has_handlers or _jax.is_for_export(ctx) else callback
    return module.record_lowering(ctx, *args, **params)


def _register(lowerings: dict[Any, Any], platform: str | None) -> None:
    for primitive, rule in lowerings.items():
        _jax.mlir.register_lowering(primitive, rule, platform=platform, cacheable=primitive not in _NOT_CACHEABLE)


def _rejoin(*tokens: Any) -> list[Any]:
    own, around = tokens[: len(tokens) // 2], tokens[len(tokens) // 2 :]
    return [jnp.concatenate([a, b[TOKEN_LENGTH:]]) for a, b in zip(own, around, strict=True)]


for _platform in PLATFORMS.values():
    _register({"native": native, "callback": callback}[_platform.records].LOWERINGS, _platform.name)
_register({**callback.LOWERINGS, record_p: _lower_record}, None)
_jax.mlir.register_lowering(check_mesh_p, lower_check_mesh)
_jax.mlir.register_lowering(rejoin_p, _jax.mlir.lower_fun(_rejoin))
