"""Which lowerings a program has: those of the module that the rows of its platforms name."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from effects import _errors as errors
from effects import _jax
from effects._model.primitive import effect_p
from effects._model.site import Site
from effects._model.wire import TOKEN_LENGTH
from effects.lowering.emit import callback, native
from effects.lowering.emit.common import lower_as_jax, refuse_several_devices
from effects.lowering.emit.counting import calls_handlers, have_handlers
from effects.lowering.emit.record import close_p, record_p
from effects.lowering.rules.shard_map import MSG_REGION_WITHOUT_NATIVE, check_mesh_p, lower_check_mesh, rejoin_p

# JAX knows no rules of several platforms for what has several results, so that there is one for all.


def _lower_record(ctx: Any, *args: Any, **params: Any) -> Any:
    """A program that is exported calls handlers, whatever the platform. Where there are none, the process that calls
    the program puts callbacks of its own in their place."""
    is_for_export = _jax.is_for_export(ctx)
    if is_for_export and params["edges"].enters and not have_handlers(ctx):
        raise errors.MissingTokenRule(MSG_REGION_WITHOUT_NATIVE)
    return (native if is_for_export else _module(ctx)).record_lowering(ctx, *args, **params)


def _lower_effect(ctx: Any, *operands: Any, site: Site) -> Any:
    """In a program that JAX dispatches, JAX's own tokens keep the order, and the sink is the same."""
    if (outs := lower_as_jax(ctx, operands, site)) is not None:
        return outs
    refuse_several_devices(ctx, site)
    return _module(ctx).effect_lowering(ctx, *operands, site=site)


def _module(ctx: Any) -> Any:
    return native if calls_handlers(ctx) else callback


def _lower(primitive: _jax.Primitive) -> Any:
    return lambda ctx, *args, **params: _module(ctx).LOWERINGS[primitive](ctx, *args, **params)


def _rejoin(*tokens: Any) -> list[Any]:
    own, around = tokens[: len(tokens) // 2], tokens[len(tokens) // 2 :]
    return [jnp.concatenate([a, b[TOKEN_LENGTH:]]) for a, b in zip(own, around, strict=True)]


_jax.mlir.register_lowering(record_p, _lower_record, cacheable=False)  # as a program keeps its sites
_jax.mlir.register_lowering(effect_p, _lower_effect, cacheable=False)
for _primitive in native.LOWERINGS:
    _jax.mlir.register_lowering(_primitive, _lower(_primitive), cacheable=_primitive is not close_p)
_jax.mlir.register_lowering(check_mesh_p, lower_check_mesh)
_jax.mlir.register_lowering(rejoin_p, _jax.mlir.lower_fun(_rejoin))
