"""Kernels: `jax._src.pallas`, their grids, and how JAX simulates them.

The import of Pallas loads the rules of kernels, which import this module. So code that imports this module must import
Pallas first.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType, FunctionType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import config as jax_config
from jax._src import core, frozen_dict
from jax._src.interpreters import partial_eval as pe
from jax._src.interpreters.partial_eval import JaxprTracer as JaxprTracer
from jax._src.pallas import core as pallas_core
from jax._src.pallas import hlo_interpreter, mpmd, pallas_call, primitives
from jax._src.pallas.primitives import num_programs_p as num_programs_p
from jax._src.pallas.primitives import program_id_p as program_id_p
from jax._src.pallas.primitives import run_scoped_p as run_scoped_p
from jax._src.state import indexing
from jax._src.state import primitives as state
from jax._src.state.indexing import ds as ds
from jax._src.state.types import AbstractRef

from effects._jax.core import closed_jaxpr, evaluate, is_closed, source_of, trace_to_jaxpr
from effects._jax.dispatch import binding_callbacks, is_callback_effect
from effects._jax.patches import implements

pallas_call_p = pallas_call.pallas_call_p

HIDDEN = "effects: "
"""The prefix of the names of a kernel's hidden inputs and outputs, which this library adds."""


def is_simulated(params: dict[str, Any]) -> bool:
    """True if an interpreter of JAX's runs the kernel."""
    return bool(params["interpret"])


def visits_in_order(params: dict[str, Any]) -> bool:
    """True if an interpreter of JAX's runs the programs of the grid one after the other, in the grid's order. The
    interpreter for TPUs may have several cores, each a thread, and it shuffles parallel axes. Over a mesh, programs are
    cores."""
    semantics = getattr(params["compiler_params"], "dimension_semantics", None) or ()
    is_parallel = any(str(getattr(each, "value", each)) == "parallel" for each in semantics)
    is_parallel = is_parallel or (params.get("mesh") is not None and math.prod(grid_of_kernel(params) or ()) > 1)
    interpret = params["interpret"]
    return interpret is True or (
        bool(interpret) and getattr(interpret, "num_cores_or_threads", 1) == 1 and not is_parallel
    )


def with_races_detected(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a kernel with JAX's race detection switched on, which only its interpreter of kernels for TPUs
    has; other kernels keep their parameters."""
    if not hasattr(interpret := params["interpret"], "dma_execution_mode"):
        return params
    return {**params, "interpret": dataclasses.replace(interpret, detect_races=True, dma_execution_mode="eager")}


def lines_at_semaphores(frames: Iterable[FrameType | None]) -> Iterator[str]:
    """Yields the user's line of each wait for a semaphore that JAX's interpreter for TPUs is blocked in, among these
    stacks."""
    for frame in frames:
        while frame is not None:
            if frame.f_code.co_name in ("dma_wait", "semaphore_wait") and "source_info" in frame.f_locals:
                yield source_of(SimpleNamespace(source_info=frame.f_locals["source_info"]))
            frame = frame.f_back


def index_maps(params: dict[str, Any]) -> Iterator[Any]:
    """The index maps of a kernel's blocks, as jaxprs."""
    return (mapping.index_map_jaxpr for mapping in params["grid_mapping"].block_mappings)


def grid_rank(params: dict[str, Any]) -> int:
    """The number of axes of the grid, without those that `vmap` added."""
    mapping = params["grid_mapping"]
    return len(mapping.grid) - len(mapping.vmapped_dims)


def grid_position(rank: int) -> tuple[list[Any], list[Any]]:
    """Within a kernel: the index of the program along each axis of the grid, and the sizes of the grid."""
    sizes = [jnp.asarray(num_programs_p.bind(axis=axis), jnp.int32) for axis in range(rank)]
    return [program_id_p.bind(axis=axis) for axis in range(rank)], sizes


def num_prefetched(params: dict[str, Any]) -> int:
    """The number of a kernel's prefetched scalars, which its index maps take too."""
    return params["grid_mapping"].num_index_operands


def needs_loop_over_lanes(params: dict[str, Any], args: Sequence[Any], dims: Sequence[int | None]) -> bool:
    """True if lanes cannot be an axis of the kernel's grid, since grid sizes or prefetched scalars differ by lane."""
    mapping = params["grid_mapping"]
    count = mapping.num_dynamic_grid_bounds + mapping.num_index_operands
    return any(dim is not None and x.shape[dim] > 1 for x, dim in zip(args[:count], dims[:count], strict=True))


def with_note(params: dict[str, Any], key: str) -> dict[str, Any]:
    """The parameters of a kernel with a note in its metadata, which JAX keeps through transformations of the kernel."""
    return {**params, "metadata": frozen_dict.FrozenDict({**(params["metadata"] or {}), key: "1"})}


def has_note(params: dict[str, Any], key: str) -> bool:
    return key in (params["metadata"] or {})


def block_starts(
    params: dict[str, Any],
    index: Sequence[Any],
    prefetched: Sequence[Any],
    evaluate: Callable[[Any, Sequence[Any]], Sequence[Any]],
) -> Iterator[tuple[str, tuple[str, int, str], list[tuple[Any, int]]]]:
    """Within a kernel, yields for each block: the name of its array; (file, line, function) of its index map; and for
    each axis the start of the block with its exclusive upper bound. Lanes do not matter, so axes of `vmap` have the
    index 0. `evaluate` evaluates the jaxpr of an index map."""
    mapping, unmapped = params["grid_mapping"], iter(index)
    index = [jnp.int32(0) if axis in mapping.vmapped_dims else next(unmapped) for axis in range(len(mapping.grid))]
    for block in params["grid_mapping"].block_mappings:
        index_map = closed_jaxpr(block.index_map_jaxpr)
        named = index_map.jaxpr.debug_info
        starts = []
        along = zip(evaluate(index_map, [*index, *prefetched]), block.block_shape, block.array_aval.shape, strict=True)
        for number, size, whole in along:
            if isinstance(size, pallas_core.Element):
                starts.append((number, whole + sum(size.padding) - size.block_size + 1))  # its end must be inside, too
            else:
                starts.append((number * pallas_core.get_block_size(size), whole))
        yield block.origin, (named.func_filename or "", named.func_lineno or 0, named.func_name), starts


_ACCESSES = {state.get_p: "read", state.swap_p: "write", state.addupdate_p: "update"}
_MASKED_ACCESSES = {primitives.load_p: "read", primitives.swap_p: "write"}


def accesses(eqn: Any, operands: Sequence[Any]) -> Iterator[tuple[str, list[tuple[int, int, Any]], Any]]:
    """Yields an equation's accesses of references, each as its kind, its positions, and its mask or None.

    A position is (axis, size of the axis, index along it), and indices broadcast to the shape of the access. Accesses
    that JAX has checked statically are left out.
    """
    if (kind := _ACCESSES.get(eqn.primitive)) is not None:
        transforms = jax.tree.unflatten(eqn.params["tree"], operands[1 if eqn.primitive is state.get_p else 2 :])
        yield kind, _all_positions(transforms), None
    elif (kind := _MASKED_ACCESSES.get(eqn.primitive)) is not None:
        _, transforms, *others = jax.tree.unflatten(eqn.params["args_tree"], operands)
        yield kind, _all_positions(transforms), others[0 if eqn.primitive is primitives.load_p else 1]
    elif eqn.primitive.name == "dma_start":  # by name, so that JAX's module for TPUs need not be imported
        source, target, *_ = eqn.params["tree"].unflatten(operands)
        for kind, reference in (("read", source), ("write", target)):
            yield kind, _all_positions(getattr(reference, "transforms", ())), None


def _all_positions(transforms: Sequence[Any]) -> list[tuple[int, int, Any]]:
    return [one for each in transforms if isinstance(each, indexing.NDIndexer) for one in _positions(each)]


def _positions(indexer: Any) -> Iterator[tuple[int, int, Any]]:
    rank, num_slices = len(indexer.int_indexer_shape), sum(isinstance(i, indexing.Slice) for i in indexer.indices)
    arrays = [axis for axis, index in enumerate(indexer.indices) if not isinstance(index, indexing.Slice)]
    # As in NumPy, the axes of index arrays replace the first array's axis, or come first if slices separate the arrays.
    ahead = arrays[0] if arrays and arrays[-1] - arrays[0] < len(arrays) else 0
    slices = 0
    for axis, (index, size) in enumerate(zip(indexer.indices, indexer.shape, strict=True)):
        if not isinstance(index, indexing.Slice):
            positions = jnp.asarray(index)
            if positions.ndim:
                positions = positions.reshape(positions.shape + (1,) * (num_slices - ahead))
            yield axis, size, positions
            continue
        at = slices if slices < ahead else slices + rank
        slices += 1
        if not isinstance(index.start, int):
            along = [index.size if i == at else 1 for i in range(rank + num_slices)]
            yield axis, size, (index.start + jnp.arange(index.size) * index.stride).reshape(along)


def with_kernel(params: dict[str, Any], fun: Callable[..., Sequence[Any]]) -> dict[str, Any]:
    """The parameters of a kernel with `fun(*references)` as its body."""
    return trace_kernel(params, params["grid_mapping"], closed_jaxpr(params["jaxpr"]).in_avals, fun)


def block_of(mapping: Any, name: str, spec: Any, array: Any) -> Any:
    """The block of a further operand of a kernel, beside those of `mapping`."""
    known = ("index_map_avals", "index_map_tree", "grid", "vmapped_dims")
    return spec.to_block_mapping(name, array, **{each: getattr(mapping, each) for each in known})


def with_input(params: dict[str, Any], name: str, fun: Callable[..., Sequence[Any]]) -> dict[str, Any]:
    """The parameters of a kernel with an additional last input, a `float32[1, 1]`. `fun(number, *references)` gets its
    reference ahead of the others.

    The input is no integer, since JAX's derivative of a kernel takes every input to have a tangent. It has two axes,
    since on TPUs the last two axes of such a small block must be those of its array.
    """
    mapping = params["grid_mapping"]
    spec = pallas_core.BlockSpec((1, 1), lambda *_: (0, 0))
    block = block_of(mapping, name, spec, core.ShapedArray((1, 1), jnp.float32))
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


def with_grid_order(
    params: dict[str, Any], order: Any, fun: Callable[..., Sequence[Any]]
) -> tuple[dict[str, Any], Any]:
    """The parameters of a kernel that visits its grid in the given order, along a single axis; and the order as an
    operand, which comes ahead of the others. `fun(position, sizes, *references)` is the kernel's body; `position` and
    `sizes` are of the original grid, as from `grid_position`."""
    mapping = params["grid_mapping"]
    grid, unmapped = mapping.grid, [axis for axis in range(len(mapping.grid)) if axis not in mapping.vmapped_dims]
    order_ref = AbstractRef(core.ShapedArray(order.shape, jnp.int32), pallas_core.MemorySpace.INDEX)

    def at(number: Any) -> list[Any]:
        return [index.astype(jnp.int32) for index in jnp.unravel_index(number, grid)]

    def moved(block: Any) -> Any:
        index_map = block.index_map_jaxpr

        def find(step: Any, order: Any, *references: Any) -> list[Any]:
            return evaluate(index_map, [*at(order[step]), *references])

        with mapping.trace_env():
            traced = trace_to_jaxpr(find, index_avals, like=index_map)
        return block.replace(index_map_jaxpr=traced)

    index_avals = (pallas_core.index_map_grid_aval, order_ref, *mapping.index_map_avals[len(grid) :])
    new = dataclasses.replace(
        mapping,
        grid=order.shape,
        grid_names=None,
        vmapped_dims=(),
        block_mappings=tuple(map(moved, mapping.block_mappings)),
        num_index_operands=mapping.num_index_operands + 1,
        index_map_avals=index_avals,
        index_map_tree=jax.tree.structure(((0,) * len(index_avals), {})),
    )

    def kernel(order: Any, *references: Any) -> Sequence[Any]:
        index = at(order[program_id_p.bind(axis=0)])
        sizes = [np.int32(grid[axis]) for axis in unmapped]
        return fun([index[axis] for axis in unmapped], sizes, *references)

    params = trace_kernel(params, new, [order_ref, *closed_jaxpr(params["jaxpr"]).in_avals], kernel)
    aliases = tuple((operand + 1, result) for operand, result in params["input_output_aliases"])
    return {**params, "input_output_aliases": aliases}, order


def kernel_source(params: dict[str, Any]) -> str:
    """The kernel's name, and its place in the user's source."""
    return str(closed_jaxpr(params["jaxpr"]).jaxpr.debug_info.func_src_info)


def grid_of_kernel(params: dict[str, Any]) -> tuple[int, ...] | None:
    """The sizes of a kernel's grid, with axes that `vmap` added; None if a size is dynamic."""
    grid = params["grid_mapping"].grid
    return tuple(grid) if all(isinstance(size, int) for size in grid) else None


def named_inputs(params: dict[str, Any], prefix: str) -> list[int]:
    """The positions of the references that `with_input` added under names with this prefix, in the order of addition.
    In a derivative of the kernel, the tangents of inputs have the same names and come later, and are left out."""
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
    """The effects of a kernel that its equation must have: ours, and JAX's callbacks if the kernel is simulated. A
    compiled kernel runs JAX's callbacks on the device."""
    callbacks = is_simulated(params)
    return {
        effect for effect in params["jaxpr"].effects if is_ours(effect) or (callbacks and is_callback_effect(effect))
    }


def simulated_kernel(params: dict[str, Any], avals: Sequence[Any]) -> Any:
    """The loop over the grid by which JAX simulates a kernel, as a jaxpr of the equation's operands.

    JAX's interpreters of kernels for TPUs and GPUs keep their state by callbacks, which are left to JAX.
    """
    interpret = params["interpret"]
    simulate, more = hlo_interpreter.pallas_call_hlo_interpret, {}
    if interpret is not True:
        simulate, more = _interpreter_of(interpret), {"interpret_params": interpret}
    given = {name: value for name, value in params.items() if name != "interpret"}
    with binding_callbacks(None):
        return trace_to_jaxpr(
            lambda *args: list(simulate(*args, **more, **given)), avals, like=closed_jaxpr(params["jaxpr"])
        )


def kernel_of_mesh(params: dict[str, Any], avals: Sequence[Any]) -> dict[str, Any] | None:
    """The parameters of the `pallas_call` by which JAX simulates a kernel over a mesh; None if it does not do so.

    `jax._src.pallas.mpmd` makes them in the function that also lowers the call. So that function is run with a
    lowering that returns the parameters. It can go when JAX makes the call while tracing.
    """
    if not params["interpret"] or len(params["jaxprs"]) != 1 or params["external_meshes"]:
        return None
    lower = mpmd._mpmd_map_fallback_lowering
    returning = SimpleNamespace(_pallas_call_lowering=lambda ctx, *nodes, **made: made)
    made = FunctionType(lower.__code__, {**vars(mpmd), "pallas_call": returning})
    return made(SimpleNamespace(avals_in=avals), *avals, **params)


def inside_meshes(params: dict[str, Any]) -> Any:
    """A context in which tracing takes place inside a kernel: the axes of its meshes are known."""
    return core.extend_axis_env_nd([axis for mesh in params.get("meshes", ()) for axis in mesh.shape.items()])


def _interpreter_of(interpret: Any) -> Callable[..., Any]:
    if "mosaic_gpu" in type(interpret).__module__:
        from jax._src.pallas.mosaic_gpu.interpret import interpret_pallas_call
    else:
        from jax._src.pallas.mosaic.interpret import interpret_pallas_call
    return interpret_pallas_call.interpret_pallas_call


@implements("state of simulated kernels")
def _with_new_memory(initialize: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the callback by which each device of a simulated kernel finds the kernel's memory, or makes it."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter

    lock = threading.Lock()

    @functools.wraps(initialize)
    def find_memory(token: Any, device: Any, *args: Any, **options: Any) -> Any:
        with lock:
            if int(device) in getattr(interpreter._shared_memory, "found_by", ()):  # by a former kernel, which failed
                interpreter.reset_tpu_interpret_mode_state()
            token = initialize(token, device, *args, **options)
            memory: Any = interpreter._shared_memory
            memory.found_by = {*getattr(memory, "found_by", ()), int(device)}
        return token

    find_memory.__module__ = __name__
    return find_memory


def scope_body(scope: Any) -> Any:
    """The body of a `run_scoped` as a jaxpr with constants, whose inputs are the equation's operands and then the
    references."""
    return closed_jaxpr(pe.convert_constvars_jaxpr(getattr(scope, "jaxpr", scope)))


def scope_of(body: Any, operands: Sequence[Any]) -> tuple[list[Any], Any]:
    """The operands and the parameter of a `run_scoped` with this body."""
    operands = [*body.consts, *operands]
    raw = pe.convert_constvars_jaxpr(body.jaxpr)
    if hasattr(pe, "convert_invars_to_constvars"):  # up to JAX 0.11
        return operands, pe.convert_invars_to_constvars(raw, len(operands))
    return operands, raw.with_consts(operands)
