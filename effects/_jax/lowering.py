"""StableHLO: `jax._src.interpreters.mlir`."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import callback as jax_callback
from jax._src import config as jax_config
from jax._src import core, xla_bridge
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo

from effects._jax.core import ShapedArray, abstract_token, jaxprs_in

# XLA's partitioner.

replicated_hlo_sharding = xla_client.HloSharding.replicate()


def is_tiled(sharding: Any, together: int) -> bool:
    """True if a sharding partitions an array, but not along its first `together` axes."""
    if not sharding.is_tiled() or sharding.is_manual() or sharding.is_maximal() or sharding.is_unreduced():
        return False
    if any(kind != xla_client.OpSharding.Type.REPLICATED for kind in sharding.subgroup_types()):
        return False
    return all(cuts == 1 for cuts in sharding.tile_assignment_dimensions()[:together])


def element_type(shape: Any) -> str:
    """The element type of XLA's shape, as MLIR writes it."""
    with mlir.make_ir_context():
        return str(mlir.dtype_to_ir_type(np.dtype(shape.numpy_dtype())))


def call_partitioned(ctx: Any, target: str, operands: Sequence[Any], description: str) -> Sequence[Any]:
    """Calls a target that XLA's partitioner replaces; see `register_partitioner`."""
    return mlir.custom_call(
        target,
        operands=operands,
        result_types=[mlir.aval_to_ir_type(ctx.module_context, aval) for aval in ctx.avals_out],
        backend_config=description,
        api_version=2,
    ).results


def register_partitioner(target: str, partition: Callable[..., Any]) -> None:
    """Registers the function by which XLA's partitioner replaces calls of a target. `partition(operands' shapes, their
    shardings, result's shape, its sharding, `said`)` returns each device's code. Results must be replicated."""
    register = functools.partial(
        xla_client.register_custom_call_partitioner,
        name=target,
        prop_user_sharding=lambda sharding, *_: replicated_hlo_sharding,
        partition=partition,
        infer_sharding_from_operands=lambda *_: replicated_hlo_sharding,
        can_side_effecting_have_replicated_sharding=True,
    )
    register()
    xla_bridge.register_plugin_callbacks(register)  # a GPU plugin has its own compiler


# Meshes, and per-device regions of them: `jax._src.shard_map` and `jax._src.mesh`.


def boolean() -> Any:
    """The type of a predicate, replicated over the current mesh, if there is one."""
    return ShapedArray((), bool, sharding=core.get_cur_mesh_sharding(jax.sharding.PartitionSpec()))


def per_device(aval: Any, same_along: Iterable[Any] = ()) -> Any:
    """The type of a value that may vary over all axes of the region being traced, if any, except `same_along`."""
    axes = jax.sharding.get_abstract_mesh().manual_axes
    if not axes:
        return aval
    varying = core.ManualAxisType(varying=frozenset(axes if jax_config._check_vma.value else ()).difference(same_along))
    sharding = core.get_cur_mesh_sharding(jax.sharding.PartitionSpec(*[None] * aval.ndim))
    return aval.update(sharding=sharding, manual_axis_type=varying)


def as_per_device(x: Any) -> Any:
    """Casts a value to the type of values that vary over all axes of the region being traced, if there is one."""
    same_along = axes_of_same(x)
    return jax.lax.pcast(x, same_along, to="varying") if same_along else x


def as_of_first(x: Any, same_along: tuple[Any, ...]) -> Any:
    """Keeps a value that is replicated along these axes on the first device only, with zeros on the others, so that the
    sum over the axes is the value."""
    if not same_along:
        return as_per_device(x)
    x, is_first = as_per_device(x), as_per_device(jax.lax.axis_index(same_along) == 0)
    return jax.lax.select_n(is_first, as_per_device(jax.lax.full_like(x, 0)), x)


def axes_of_same(x: Any) -> tuple[Any, ...]:
    """The axes of the region being traced over which a value does not vary, as far as JAX checks (`check_vma`)."""
    return tuple(sorted(per_device(core.typeof(x)).manual_axis_type.varying - core.typeof(x).manual_axis_type.varying))


def differs(aval: Any) -> bool:
    """True if the type of a value in a per-device region varies over an axis; False for all if JAX does not check."""
    return bool(aval.manual_axis_type.varying)


def is_collective(eqn: Any) -> bool:
    """True if this equation is a collective, in which devices exchange values."""
    if eqn.primitive is jax.lax.ppermute_p:
        return True
    if not any(isinstance(effect, core.NamedAxisEffect) for effect in eqn.effects):
        return False
    return eqn.primitive is not jax.lax.axis_index_p and not any(jaxprs_in(eqn.params))


def name_of_collective(eqn: Any) -> str | None:
    """The name that users know of a collective in which devices wait for each other; None for other equations."""
    name = eqn.primitive.name.removeprefix("unreduced_").removesuffix("_invariant").removesuffix("_reduced")
    return name if name in _COLLECTIVES and is_collective(eqn) else None


_COLLECTIVES = frozenset(
    ("psum", "pmax", "pmin", "ppermute", "pbroadcast", "all_gather", "all_to_all", "ragged_all_to_all")
) | {"reduce_scatter"}


def region_axes(mesh: Any, newly_manual_axes: Any) -> tuple[dict[Any, int], dict[Any, int]]:
    """The axes along which the devices of a region count for themselves, and those along which they are replicas of
    each other, with their sizes."""
    by_device = frozenset(newly_manual_axes) | frozenset(mesh.manual_axes)
    counting = {axis: size for axis, size in mesh.shape.items() if axis in by_device}
    return counting, {axis: size for axis, size in mesh.shape.items() if axis not in by_device and size > 1}


@contextlib.contextmanager
def inside_region(mesh: Any, newly_manual_axes: Any, check_vma: bool) -> Iterator[None]:
    """A context in which tracing takes place inside such a region."""
    inner = mesh.abstract_mesh.update_axis_types(dict.fromkeys(newly_manual_axes, jax.sharding.AxisType.Manual))
    sizes = list(region_axes(mesh, newly_manual_axes)[0].items())
    with core.extend_axis_env_nd(sizes), jax.sharding.use_abstract_mesh(inner), jax_config._check_vma(check_vma):
        yield


def is_in_region_over_some_axes() -> bool:
    """True if the region being traced is over some axes of its mesh only, so that devices have replicas."""
    mesh = jax.sharding.get_abstract_mesh()
    return bool(mesh.manual_axes) and bool(region_axes(mesh, ())[1])


def automatic_devices(ctx: Any) -> int:
    """The number of devices that run this program if XLA's partitioner distributes it; else 0."""
    axis_context = ctx.module_context.axis_context
    devices = getattr(axis_context, "num_devices", 1)
    return devices if devices > 1 and not getattr(axis_context, "manual_axes", None) else 0


def is_for_several_devices(ctx: Any) -> bool:
    """True if several devices run this program."""
    axis_context = ctx.module_context.axis_context
    mesh, axis_env = getattr(axis_context, "mesh", None), getattr(axis_context, "axis_env", None)
    devices = mesh.size if mesh is not None else axis_env.nreps if axis_env is not None else axis_context.num_devices
    return devices is not None and devices > 1


def devices_of_region(ctx: Any) -> int:
    """The number of devices of the region being lowered, replicas included."""
    return ctx.module_context.axis_context.mesh.size


def replicas_per_group(ctx: Any) -> int:
    """The number of replicas in a replica group of a region over some axes of its mesh; elsewhere 0."""
    axis_context = ctx.module_context.axis_context
    by_device = getattr(axis_context, "manual_axes", None)
    if not by_device:
        return 0
    replicas = math.prod(size for axis, size in axis_context.mesh.shape.items() if axis not in by_device)
    return replicas if replicas > 1 else 0


def call_handler(
    ctx: Any,
    target: str,
    operands: Sequence[Any],
    attributes: dict[str, Any],
    *,
    has_side_effect: bool,
    aliases: dict[int, int] | None = None,
) -> Sequence[Any]:
    """Calls a handler of XLA's FFI. `aliases`: the result that shares the buffer of an operand. Aliases of XLA tokens
    are dropped, since these have no buffer, and XLA fails to compile them for GPUs. Operands and results are row-major.

    `jax.ffi.ffi_lowering` does the same and more, and takes five times as long; a program may have very many calls.
    """
    sizes: list[Any] = []
    if not all(core.is_constant_shape(_shape(aval)) for aval in ctx.avals_out):
        shapes = [mlir.eval_dynamic_shape_as_ivals(ctx, _shape(aval)) for aval in ctx.avals_out]
        sizes = [mlir.shape_tensor(ctx.module_context, shape) for shape in shapes]
    inputs, outputs = (tuple([len(_shape(aval)) for aval in avals]) for avals in (ctx.avals_in, ctx.avals_out))
    same = tuple((at, to) for at, to in (aliases or {}).items() if ctx.avals_out[to] is not abstract_token)
    key = target, has_side_effect, same, inputs, outputs, len(sizes)
    known = ctx.module_context.cached_primitive_lowerings.setdefault(call_handler, {})
    if (of_all := known.get(key)) is None:
        of_all = known[key] = _attributes_of_calls(*key)
    config = _attribute(attributes)
    return hlo.CustomCallOp.build_generic(
        results=[mlir.aval_to_ir_type(ctx.module_context, aval) for aval in ctx.avals_out],
        operands=[*operands, *sizes],
        attributes={**of_all, "mhlo.backend_config": config},
    ).results


def _attributes_of_calls(
    target: str,
    has_side_effect: bool,
    aliases: Sequence[tuple[int, int]],
    inputs: Sequence[int],
    outputs: Sequence[int],
    num_sizes: int,
) -> dict[str, Any]:
    """The attributes that calls of a handler share if they differ only in their configuration. `inputs`, `outputs`: the
    ranks of operands and results. `num_sizes`: the number of result sizes that follow the operands."""
    attributes = {
        "call_target_name": ir.StringAttr.get(target),
        "has_side_effect": ir.BoolAttr.get(has_side_effect),
        "backend_config": ir.StringAttr.get(""),
        "api_version": mlir.i32_attr(1),
        "called_computations": ir.ArrayAttr.get([]),
        "operand_layouts": _row_major([*inputs, *[1] * num_sizes]),
        "result_layouts": _row_major(outputs),
    }
    if aliases:
        attributes["output_operand_aliases"] = ir.ArrayAttr.get(
            [
                hlo.OutputOperandAlias.get([to] if len(outputs) > 1 else [], operand_index=at, operand_tuple_indices=[])
                for at, to in aliases
            ]
        )
    if num_sizes:
        positions = np.arange(len(inputs), len(inputs) + num_sizes, dtype=np.int64)
        attributes["indices_of_shape_operands"] = ir.DenseIntElementsAttr.get(positions)
    return attributes


def _row_major(ranks: Sequence[int]) -> Any:
    """The row-major layouts of values of these ranks: the axes of each, the fastest varying first."""
    axes = (np.arange(rank, dtype=np.int64)[::-1] for rank in ranks)
    index = ir.IndexType.get()
    return ir.ArrayAttr.get([ir.DenseIntElementsAttr.get(np.ascontiguousarray(each), type=index) for each in axes])


_GPUS = ("cuda", "rocm")


def left_to_host_by(ctx: Any) -> Sequence[str]:
    """The GPU platforms for which `compute_on("device_host")` moves this part of the program to the host."""
    is_left = getattr(ctx.jaxpr_eqn_ctx, "compute_type", None) == "device_host"
    return [name for name in platforms_of(ctx) if is_left and name in _GPUS]


def is_for_export(ctx: Any) -> bool:
    """True if the program is lowered to be exported."""
    return ctx.module_context.lowering_parameters.for_export


def platforms_of(ctx: Any) -> Sequence[str]:
    """The platforms that the program is lowered for."""
    return ctx.module_context.platforms


def platforms_here(ctx: Any) -> Sequence[str]:
    """The platforms that the present part of the program is lowered for."""
    return ctx.platforms or platforms_of(ctx)


def mask_and_add(x: Any, mask: Sequence[int], added: Sequence[int]) -> Any:
    """`(x & mask) + added` of an array of `uint32`; a mask of ones is left out."""
    if any(bits != 0xFFFFFFFF for bits in mask):
        x = hlo.AndOp(x, mlir.ir_constant(np.array(mask, np.uint32))).result
    return hlo.AddOp(x, mlir.ir_constant(np.array(added, np.uint32))).result


def added_to(x: Any) -> tuple[Any, np.ndarray | None]:
    """Matches a value `x + constant`: returns `x` and the constant, or the value itself and None."""
    if isinstance(owner := x.owner, ir.Block) or owner.name != "stablehlo.add":
        return x, None
    before, constant = owner.operands
    if isinstance(constant.owner, ir.Block) or constant.owner.name != "stablehlo.constant":
        return x, None
    return before, np.array(constant.owner.attributes["value"])


def missing_platform(ctx: Any) -> str | None:
    """The platform that the program is lowered for, if this process has no device of it."""
    if len(platforms := platforms_of(ctx)) != 1:
        return None
    try:
        backend = ctx.module_context.get_backend(optional=True)
    except RuntimeError:  # unknown platform in this process
        backend = None
    return platforms[0] if backend is None else None


def _shape(aval: Any) -> tuple[Any, ...]:
    return () if aval is abstract_token else aval.shape


def _attribute(value: Any) -> Any:
    if isinstance(value, bool):
        return mlir.ir.BoolAttr.get(value)
    if isinstance(value, int):
        return mlir.ir.IntegerAttr.get(mlir.ir.IntegerType.get_signless(64), value)
    if isinstance(value, dict):
        return mlir.ir.DictAttr.get({name: _attribute(each) for name, each in value.items()})
    return mlir.ir.StringAttr.get(value) if isinstance(value, str) else mlir.ir_attribute(value)


def mark_replicated(ctx: Any, op: Any) -> None:
    """Marks an operation as replicated: all devices, or all replicas of a group, run it on the whole value."""
    if jax.config.jax_use_shardy_partitioner:
        sharding: Any = jax_callback._get_sdy_array_list_for_callbacks(ctx.avals_out)
        if replicas_per_group(ctx):  # in a region, all shardings must be over its mesh
            mesh_shape = tuple(ctx.module_context.axis_context.mesh.shape.items())
            each = [array.replace(mesh_shape=mesh_shape, logical_device_ids=None) for array in sharding.shardings]
            sharding = type(sharding)(tuple(each))
    else:
        sharding = xla_client.OpSharding()
        sharding.type = xla_client.OpSharding.Type.REPLICATED
        if len(ctx.avals_out) > 1:
            each, sharding = sharding, xla_client.OpSharding()
            sharding.type = xla_client.OpSharding.Type.TUPLE
            sharding.tuple_shardings = [each] * len(ctx.avals_out)
    mlir.set_sharding(ctx.module_context, op, sharding)


def keep_with_program(ctx: Any, kept: object) -> None:
    """Keeps an object for as long as the program that is being lowered."""
    ctx.module_context.add_keepalive(kept)


def owner_of(lowered: Any) -> Any:
    """The operation whose result a lowering rule returned."""
    while isinstance(lowered, (list, tuple)):
        lowered = lowered[0]
    return lowered.owner


_BESIDE = {"mhlo.frontend_attributes": {"token_effects": "beside"}}


def with_values_beside(x: Any, values: Sequence[Any]) -> Any:
    """Attaches others to a value; `values_beside` finds them wherever the value is passed on in the same function."""
    barrier = hlo.OptimizationBarrierOp([x, *values])
    for name, value in _BESIDE.items():
        barrier.operation.attributes[name] = mlir.ir_attribute(value)
    return barrier.results[0]


def values_beside(x: Any) -> Sequence[Any] | None:
    """The values that `with_values_beside` has attached to a value; None if there are none."""
    owner = x.owner
    if isinstance(owner, ir.Block) or not all(
        name in owner.attributes and owner.attributes[name] == mlir.ir_attribute(value)
        for name, value in _BESIDE.items()
    ):
        return None
    return list(owner.results)[1:]
