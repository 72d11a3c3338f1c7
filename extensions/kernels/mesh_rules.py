"""Kernels over a mesh, such as those of `plgpu.kernel`: their effects go into a log, simulated or not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from effects import _errors as errors
from effects import _jax
from effects._jax import kernel_logs, mesh_kernels, patches
from effects._model.primitive import effect_p
from effects._model.site import Site
from effects._model.where import Where
from effects.extensions.kernels.bounds import refuse_compiled
from effects.extensions.kernels.log_rules import LogOptions, plan_log
from effects.extensions.kernels.log_writer import LogWriter
from effects.lowering.effect import bind_record
from effects.lowering.summary import summarize
from effects.lowering.tokens import TokenContext, Tokens, register_token_rule

MSG_MESH = (
    "A kernel over a mesh has effects at {where}, and is not one kernel for GPUs. The programs of a mesh write their "
    "effects into memory that all of them have, which only Mosaic GPU gives them. Use `pl.pallas_call`, or move the "
    "effect out of the kernel."
)
MSG_MESH_AWAITED = (
    "The {what} `{name}` at {where} gives results to a kernel over a mesh. What such a kernel's effects record is read "
    "when the kernel is over, in a simulation too. Write the kernel for `pl.pallas_call` and simulate it with "
    "`interpret=True`, or take the value out of the kernel and call it there."
)
MSG_MESH_SIMULATED = (
    "The kernel `{kernel}` over a mesh has effects at {where}, and `interpret=True`. JAX does not know there which "
    "program of the mesh it simulates. Pass `interpret=plgpu.InterpretGPUParams()`, which JAX has since 0.11.1, or "
    "write the kernel for `pl.pallas_call`."
)


def log_mesh_kernel(args: Sequence[Any], params: dict[str, Any]) -> tuple[list[Any], list[tuple[Site, list[Any]]]]:
    """As `log_kernel`, for a kernel over a mesh. What its records show as the grid are the axes of the mesh."""
    if (found := mesh_kernels.mesh_kernel(params)) is None or not params["out_avals"]:
        raise errors.MissingTokenRule(MSG_MESH.format(where=_where(params)))
    kernel, sizes = found
    name = params["name"] or "kernel"
    if params["interpret"] is True:
        raise NotImplementedError(MSG_MESH_SIMULATED.format(kernel=name, where=_where(params)))
    grid = tuple(sizes.values())
    # A kernel over a mesh has no argument for the capacity: no effect of it may be larger than its log.
    plan = plan_log(kernel, name, grid, tuple(range(len(grid))), LogOptions(takes_largest=True), MSG_MESH_AWAITED)
    target = kernel_logs.SIMULATION if params["interpret"] else kernel_logs.MOSAIC_GPU
    writer = LogWriter(plan.sites, plan.content.capacity, target)

    def run(log: Any, row: Sequence[Any], *references: Any) -> list[Any]:
        return writer.write(kernel, log, row, references)

    programs = math.prod(grid)
    *outs, log = mesh_kernels.mpmd_map_p.bind(
        *args, **mesh_kernels.with_mesh_log(params, len(args), programs, plan.width, run)
    )
    return outs, plan.records([log.reshape(programs, plan.width)])


def _where(params: dict[str, Any]) -> Where:
    """The line of an effect of the kernel."""
    sites = [site for jaxpr in params["jaxprs"] for site in summarize(jaxpr).sites]
    return min(sites, key=lambda site: site.id).where


@register_token_rule(mesh_kernels.mpmd_map_p)
def _thread_mesh_kernel(ctx: TokenContext, tokens: Tokens, *args: Any, **params: Any) -> tuple[Tokens, Sequence[Any]]:
    outs, records = log_mesh_kernel(args, params)
    for site, operands in records:
        after, _ = bind_record(ctx, tokens, operands, site)
        tokens = {**tokens, **after}
    return tokens, outs


@patches.implements("vmap of kernels over meshes")
def _batch(batch: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel with effects runs in every lane, whether its operands differ between lanes or not."""

    def rule(axis_data: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
        if any(dim is not None for dim in dims) or not _has_effects(params) or _jax.is_axis_of_tangents(axis_data):
            return batch(axis_data, args, dims, **params)
        outs = jax.lax.map(lambda _: mesh_kernels.mpmd_map_p.bind(*args, **params), jnp.arange(axis_data.size))
        return outs, [0] * len(outs)

    return rule


def _has_effects(params: dict[str, Any]) -> bool:
    return any(summarize(jaxpr).all_effects for jaxpr in params["jaxprs"])


@patches.implements("lowering of kernels over meshes")
def _lower_mesh_kernel(lowering: Callable[..., Any]) -> Callable[..., Any]:
    def lower(ctx: Any, *operands: Any, **params: Any) -> Any:
        if _jax.kernel_options().checks_bounds:
            refuse_compiled(params, params["name"] or "kernel")
        if not _has_effects(params):
            return lowering(ctx, *operands, **params)

        def call(*args: Any) -> list[Any]:
            outs, records = log_mesh_kernel(args, params)
            for site, given in records:
                effect_p.bind(*given, site=site)
            return outs

        return _jax.mlir.lower_fun(call)(ctx, *operands)

    return lower
