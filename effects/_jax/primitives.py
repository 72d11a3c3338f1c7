"""JAX's primitives that hold jaxprs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
from jax._src import (
    ad_checkpoint,
    api_util,
    compute_on,
    core,
    custom_batching,
    custom_derivatives,
    hijax,
    pjit,
    shard_map,
    xla_metadata,
)
from jax._src import linear_util as lu
from jax._src.interpreters import partial_eval as pe
from jax._src.lax.control_flow import conditionals, loops, solves
from jax._src.state import discharge

from effects._jax.core import Primitive
from effects._jax.jaxprs import closed_jaxpr

cond_p = conditionals.cond_p
while_p = loops.while_p
scan_p = loops.scan_p
linear_solve_p = solves.linear_solve_p
remat_p = ad_checkpoint.remat_p
unused_remat_is_dropped: bool = jax.__version_info__ < (0, 12)
"""Whether JAX drops a `remat_p` that has effects and neither operands nor results in use."""
shard_map_p = shard_map.shard_map_p
custom_jvp_call_p = custom_derivatives.custom_jvp_call_p
custom_vjp_call_p = custom_derivatives.custom_vjp_call_p
custom_vmap_p = custom_batching.custom_vmap_p
run_state_p = discharge.run_state_p


def inlined_calls() -> dict[Primitive, Callable[[dict[str, Any]], Any]]:
    """Primitives that by the time of lowering mean no more than their body: primitive -> the body in its parameters."""
    calls = {
        core.closed_call_p: lambda params: params.get("call_jaxpr", params.get("jaxpr")),
        core.call_p: lambda params: params.get("call_jaxpr", params.get("jaxpr")),
        custom_jvp_call_p: lambda params: params["call_jaxpr"],
        custom_vjp_call_p: lambda params: params["call_jaxpr"],
        custom_derivatives.remat_opt_p: lambda params: params["fwd_jaxpr"],
        custom_vmap_p: lambda params: params["call"],
        hijax.call_hi_primitive_p: lambda params: _expanded(params["_prim"]),  # since 0.11.2 `custom_root` is one
    }
    return calls


def _expanded(primitive: Any) -> Any:
    """What a primitive of the higher level means in others."""

    def expand(*args: Any) -> Any:
        return primitive.out_tree.flatten_up_to(primitive.expand(*primitive.in_tree.unflatten(args)))

    debug_info = api_util.debug_info("expand", expand, primitive.in_avals_flat, {})
    jaxpr, _, consts = pe.trace_to_jaxpr_dynamic(lu.wrap_init(expand, debug_info=debug_info), primitive.in_avals_flat)
    return closed_jaxpr(jaxpr, consts)


def annotated_calls() -> list[Primitive]:
    """Primitives that call their jaxpr as jit does, with a note to the compiler. Not every version has all."""
    modules = [compute_on, xla_metadata, pjit]
    with contextlib.suppress(ImportError):
        from jax._src import program_order  # since 0.12; in `pjit` before

        modules.append(program_order)
    return [
        primitive
        for module in modules
        for name in ("compute_on_p", "xla_metadata_call_p", "program_order_p")
        if (primitive := getattr(module, name, None)) is not None
    ]
