"""Kernels with an additional output, the log of their effects, and the targets that kernels are compiled for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax._src import config as jax_config
from jax._src import core
from jax._src.pallas import core as pallas_core

from effects._jax.core import closed_jaxpr
from effects._jax.lowering import platforms_of
from effects._jax.pallas import HIDDEN, block_of, is_simulated, named_inputs, trace_kernel

LOG = f"{HIDDEN}log"
"""The name of the output."""

SIMULATION, TRITON, MOSAIC_GPU, MOSAIC_TPU = "a simulation", "Triton", "Mosaic GPU", "Mosaic for TPUs"


def kernel_target(ctx: Any, params: dict[str, Any]) -> str:
    """The target that a kernel is lowered for in this context."""
    if is_simulated(params):
        return SIMULATION
    if "tpu" in platforms_of(ctx):
        return MOSAIC_TPU
    options = params["compiler_params"]
    if options is None:
        by_default = getattr(jax_config, "jax_pallas_use_mosaic_gpu", None)  # up to 0.11.1
        return MOSAIC_GPU if by_default is not None and by_default.value else TRITON
    return MOSAIC_GPU if "mosaic_gpu" in type(options).__module__ else TRITON


def kernel_name(params: dict[str, Any]) -> str:
    """The user's name of the kernel."""
    return params.get("name") or closed_jaxpr(params["jaxpr"]).jaxpr.debug_info.func_name


def grid_index_of_kernel(params: dict[str, Any], prefix: str) -> list[int | None]:
    """The axes of the grid that make up a program's index in records.

    Axes of lanes come first, one for each input whose name has this prefix, in reverse. None stands for an axis that is
    not in the grid, since JAX loops around the kernel: the input's value is then the lane.
    """
    mapping = params["grid_mapping"]
    lanes = [_axis_of_block(mapping, at - mapping.num_index_operands) for at in named_inputs(params, prefix)]
    return [*lanes[::-1], *(axis for axis in range(len(mapping.grid)) if axis not in mapping.vmapped_dims)]


def _axis_of_block(mapping: Any, position: int) -> int | None:
    """The axis of the grid whose index is part of the block index of an input; None if there is none."""
    index_map = closed_jaxpr(mapping.block_mappings[position].index_map_jaxpr).jaxpr
    axes = enumerate(index_map.invars[: len(mapping.grid)])
    return next((axis for axis, index in axes if any(index is block for block in index_map.outvars)), None)


def has_log(params: dict[str, Any]) -> bool:
    """True if `with_log` has added the output to a kernel."""
    blocks = params["grid_mapping"].block_mappings
    return bool(blocks) and blocks[-1].origin == LOG


def with_log(params: dict[str, Any], width: int, target: str, fun: Callable[..., Sequence[Any]]) -> dict[str, Any]:
    """The parameters of a kernel with an additional last output: an `int32[programs, 1, width]` with a row for each
    program of the grid.

    `fun(log, *references)` gets the reference of the program's row, an `int32[1, width]`.
    """
    mapping = params["grid_mapping"]
    programs = math.prod(mapping.grid)

    def row_of(*index: Any) -> tuple[Any, ...]:
        row = jnp.int32(0)  # the last axis of the grid is the innermost
        for i, size in zip(index, mapping.grid, strict=False):
            row = row * size + i
        return row, 0, 0

    space, blocks = None, mapping.block_mappings
    if target == MOSAIC_TPU:  # scalars are read from SMEM only
        from jax._src.pallas.mosaic import core as mosaic

        space = mosaic.MemorySpace.SMEM
        blocks = [_in_space(each, space) if each.origin.startswith(HIDDEN) else each for each in blocks]
    spec = pallas_core.BlockSpec((pallas_core.squeezed, 1, width), row_of, memory_space=space)
    array = core.ShapedArray((programs, 1, width), jnp.int32)
    block = block_of(mapping, LOG, spec, array)
    first = mapping.num_index_operands
    at = first + len(blocks)
    avals = closed_jaxpr(params["jaxpr"]).in_avals

    def kernel(*references: Any) -> Sequence[Any]:
        return fun(references[at], *references[:at], *references[at + 1 :])

    traced = trace_kernel(
        params,
        mapping.replace(block_mappings=(*blocks, block), num_outputs=mapping.num_outputs + 1),
        [*avals[:first], *(each.transformed_block_aval for each in (*blocks, block)), *avals[at:]],
        kernel,
    )
    return {**traced, "out_avals": (*params["out_avals"], array)}


def _in_space(block: Any, space: Any) -> Any:
    """A block in this memory."""
    return block.replace(transformed_block_aval=block.transformed_block_aval.update(memory_space=space))
