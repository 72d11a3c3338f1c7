"""What JAX's tables are told of things that are ours: types of effects, primitives, parameters, folders.

Nothing of JAX's own behaves differently because of these. What does is in `patches.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax._src import dispatch, shard_map
from jax._src import effects as jax_effects
from jax._src.interpreters import partial_eval as pe
from jax._src.lib import xla_client
from jax._src.util import weakref_cache_key_types

from effects._jax.core import Primitive


def register_effect_types(
    types: Sequence[type], *, ordered: type, control_flow: type, custom_derivatives: type, remat: type
) -> None:
    """Tells JAX of classes of effects: all of them may be lowered, parts of them may appear in places."""
    for type_ in types:
        jax_effects.lowerable_effects.add_type(type_)
        jax_effects.partial_eval_kept_effects.add_type(type_)
    jax_effects.ordered_effects.add_type(ordered)
    jax_effects.shardable_ordered_effects.add_type(ordered)  # else JAX refuses before our lowering can
    jax_effects.control_flow_allowed_effects.add_type(control_flow)
    jax_effects.custom_derivatives_allowed_effects.add_type(custom_derivatives)
    jax_effects.remat_allowed_effects.add_type(remat)


def infer_types_each_time(primitive: Primitive) -> None:
    """Lets an equation's types and effects be inferred when it is traced. JAX remembers them by the parameters, which
    costs more where these differ between any two equations."""

    def stage(trace: Any, source_info: Any, *tracers: Any, **params: Any) -> list[Any]:
        avals, effects = primitive.abstract_eval(*(tracer.aval for tracer in tracers), **params)
        return trace.emit_eqn(tracers, avals, primitive, params, effects, source_info)

    pe.custom_staging_rules[primitive] = stage


def hold_weakly_in_caches(type_: type) -> None:
    """Lets JAX's caches refer weakly to parameters of this type, as they do to functions and jaxprs."""
    weakref_cache_key_types.add(type_)


def need_devices(primitives: Sequence[Primitive], always: bool = False) -> None:
    """Lets programs with these be lowered for the devices that they are to run on, where there are several processes
    or `always`. Else JAX lowers a program for any so many devices."""
    if always or jax.process_count() > 1:
        dispatch.prim_requires_devices_during_lowering.update(primitives)


rules_in_eager_regions = shard_map.eager_rules
"""By primitive, what a `jax.shard_map` outside of jit does: a function of (mesh, *values, **params). Each value holds a
row for each device."""


def register_ffi_type(name: str, type_id: Any, type_info: Any, platform: str = "cpu") -> None:
    """Registers the type of what a loaded program keeps between calls of a handler."""
    # JAX registers what was asked for before there is a backend when it makes one, handlers first and types second. But
    # a handler wants its type to be there, so we make JAX register types at once.
    if platform == "cpu":
        xla_client.register_custom_type_handler(platform, xla_client._xla.register_custom_type)
    jax.ffi.register_ffi_type(name, {"type_id": type_id, "type_info": type_info}, platform=platform)
