"""Kernels: `jax._src.pallas`, their grids, and how JAX simulates them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax._src import config as jax_config
from jax._src import core
from jax._src.interpreters import partial_eval as pe
from jax._src.pallas import core as pallas_core
from jax._src.pallas import hlo_interpreter, pallas_call
from jax._src.pallas.primitives import num_programs_p as num_programs_p
from jax._src.pallas.primitives import program_id_p as program_id_p
from jax._src.pallas.primitives import run_scoped_p as run_scoped_p

from effects._jax.callbacks import is_callback_effect, left_to_jax
from effects._jax.jaxprs import closed_jaxpr, is_closed, trace_to_jaxpr

pallas_call_p = pallas_call.pallas_call_p


def is_in_kernel() -> bool:
    """Whether what is traced now is a kernel, or the index map of one of its blocks."""
    if (context := getattr(pallas_core, "_grid_context", None)) is not None:  # since 0.12
        return context.value is not None
    return pallas_core._pallas_tracing_env.grid_context is not None


def is_simulated(params: dict[str, Any]) -> bool:
    """Whether an interpreter of JAX's runs the kernel."""
    return bool(params["interpret"])


def index_maps(params: dict[str, Any]) -> Iterator[Any]:
    """The jaxprs that say which block each program of the grid gets."""
    return (mapping.index_map_jaxpr for mapping in params["grid_mapping"].block_mappings)


def grid_rank(params: dict[str, Any]) -> int:
    """The number of axes of the grid, those aside that `vmap` added."""
    mapping = params["grid_mapping"]
    return len(mapping.grid) - len(mapping.vmapped_dims)


def grid_position(rank: int) -> tuple[list[Any], list[Any]]:
    """Within a kernel: the index of the program along each axis of the grid, and the sizes of the grid."""
    sizes = [jnp.asarray(num_programs_p.bind(axis=axis), jnp.int32) for axis in range(rank)]
    return [program_id_p.bind(axis=axis) for axis in range(rank)], sizes


def with_kernel(params: dict[str, Any], fun: Callable[..., Sequence[Any]]) -> dict[str, Any]:
    """The parameters of a kernel that does what `fun(*references)` does."""
    return trace_kernel(params, params["grid_mapping"], closed_jaxpr(params["jaxpr"]).in_avals, fun)


def with_input(params: dict[str, Any], name: str, fun: Callable[..., Sequence[Any]]) -> dict[str, Any]:
    """The parameters of a kernel that takes one number more, a `float32[1]` behind its other inputs. `fun(number,
    *references)` gets it as a reference ahead of the others.

    It is no integer, since JAX's derivative of a kernel takes every input to have a tangent.
    """
    mapping = params["grid_mapping"]
    block = pallas_core.BlockSpec((1,), lambda *_: (0,)).to_block_mapping(
        name,
        core.ShapedArray((1,), jnp.float32),
        index_map_avals=mapping.index_map_avals,
        index_map_tree=mapping.index_map_tree,
        grid=mapping.grid,
        vmapped_dims=mapping.vmapped_dims,
    )
    inputs = mapping.num_inputs
    blocks = (*mapping.block_mappings[:inputs], block, *mapping.block_mappings[inputs:])
    at = mapping.num_index_operands + inputs
    avals = closed_jaxpr(params["jaxpr"]).in_avals
    return trace_kernel(
        params,
        mapping.replace(block_mappings=blocks, num_inputs=inputs + 1),
        [*avals[:at], getattr(block, "transformed_block_aval", None) or block.ref_aval, *avals[at:]],
        lambda *references: fun(references[at], *references[:at], *references[at + 1 :]),
    )


def named_inputs(params: dict[str, Any], prefix: str) -> list[int]:
    """Which references of the kernel `with_input` added under names that begin so, in the order in which it did. A
    derivative of the kernel has the tangents of its inputs under the same names, behind them."""
    mapping = params["grid_mapping"]
    found: dict[str, int] = {}
    for position, block in enumerate(mapping.block_mappings[: mapping.num_inputs]):
        if block.origin.startswith(prefix):
            found.setdefault(block.origin, mapping.num_index_operands + position)
    return list(found.values())


def trace_kernel(params: dict[str, Any], mapping: Any, avals: Sequence[Any], fun: Callable[..., Any]) -> dict[str, Any]:
    kernel = params["jaxpr"]
    with mapping.trace_env(), jax_config._check_vma(False), jax_config.mutable_array_checks(False):
        traced = trace_to_jaxpr(fun, avals, like=closed_jaxpr(kernel))
    assert not traced.consts
    return {**params, "grid_mapping": mapping, "jaxpr": traced if is_closed(kernel) else traced.jaxpr}


def shown_effects(params: dict[str, Any], is_ours: Callable[[Any], bool]) -> set[Any]:
    """What of a kernel's effects its equation must show. A compiled kernel has JAX's callbacks on the device."""
    callbacks = is_simulated(params)
    return {
        effect for effect in params["jaxpr"].effects if is_ours(effect) or (callbacks and is_callback_effect(effect))
    }


def simulated_kernel(params: dict[str, Any], avals: Sequence[Any]) -> Any:
    """The loop over the grid in which JAX simulates a kernel, as a jaxpr that takes the equation's operands.

    The callbacks by which JAX's interpreters of kernels for TPUs and GPUs keep their own state stay JAX's.
    """
    interpret = params["interpret"]
    simulate, more = hlo_interpreter.pallas_call_hlo_interpret, {}
    if interpret is not True:
        simulate, more = _interpreter_of(interpret), {"interpret_params": interpret}
    given = {name: value for name, value in params.items() if name != "interpret"}
    with left_to_jax():
        return trace_to_jaxpr(
            lambda *args: list(simulate(*args, **more, **given)), avals, like=closed_jaxpr(params["jaxpr"])
        )


def _interpreter_of(interpret: Any) -> Callable[..., Any]:
    if "mosaic_gpu" in type(interpret).__module__:
        from jax._src.pallas.mosaic_gpu.interpret import interpret_pallas_call
    else:
        from jax._src.pallas.mosaic.interpret import interpret_pallas_call
    return interpret_pallas_call.interpret_pallas_call


def scope_body(scope: Any) -> Any:
    """The body of a `run_scoped` as a jaxpr with constants: the equation's operands come ahead of its references."""
    return closed_jaxpr(pe.convert_constvars_jaxpr(getattr(scope, "jaxpr", scope)))


def scope_of(body: Any, operands: Sequence[Any]) -> tuple[list[Any], Any]:
    """The operands and the parameter of a `run_scoped` with this body."""
    operands = [*body.consts, *operands]
    raw = pe.convert_constvars_jaxpr(body.jaxpr)
    if hasattr(pe, "convert_invars_to_constvars"):  # up to 0.11
        return operands, pe.convert_invars_to_constvars(raw, len(operands))
    return operands, raw.with_consts(operands)
