"""Meshes, and per-device regions of them: `jax._src.shard_map` and `jax._src.mesh`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

import jax
from jax._src import config as jax_config
from jax._src import core

from effects._jax.core import ShapedArray
from effects._jax.jaxprs import jaxprs_in


def boolean() -> Any:
    """The type of a predicate, the same on all devices of the mesh that is in force, if one is."""
    return ShapedArray((), bool, sharding=core.get_cur_mesh_sharding(jax.sharding.PartitionSpec()))


def per_device(aval: Any, same_along: Iterable[Any] = ()) -> Any:
    """The type of what may differ between the devices of the region that is traced, if one is, but along some axes."""
    axes = jax.sharding.get_abstract_mesh().manual_axes
    if not axes:
        return aval
    varying = core.ManualAxisType(varying=frozenset(axes if jax_config._check_vma.value else ()).difference(same_along))
    sharding = core.get_cur_mesh_sharding(jax.sharding.PartitionSpec(*[None] * aval.ndim))
    return aval.update(sharding=sharding, manual_axis_type=varying)


def as_per_device(x: Any) -> Any:
    """A value that is the same on all devices of the region that is traced, if one is, as one that need not be."""
    same_along = axes_of_same(x)
    return jax.lax.pcast(x, same_along, to="varying") if same_along else x


def as_of_first(x: Any, same_along: tuple[Any, ...]) -> Any:
    """A value that is the same on all devices along these axes as one that the first of them has, and the others zeros:
    the sum of what they have is what there was."""
    if not same_along:
        return as_per_device(x)
    x, is_first = as_per_device(x), as_per_device(jax.lax.axis_index(same_along) == 0)
    return jax.lax.select_n(is_first, as_per_device(jax.lax.full_like(x, 0)), x)


def axes_of_same(x: Any) -> tuple[Any, ...]:
    """The axes of the region that is traced along which a value is the same on all devices, if JAX checks that."""
    return tuple(sorted(per_device(core.typeof(x)).manual_axis_type.varying - core.typeof(x).manual_axis_type.varying))


def differs(aval: Any) -> bool:
    """Whether a value of a per-device region differs between devices. Its type says so if JAX checks that."""
    return bool(aval.manual_axis_type.varying)


def is_collective(eqn: Any) -> bool:
    """Whether devices talk to each other in this equation."""
    if not any(isinstance(effect, core.NamedAxisEffect) for effect in eqn.effects):
        return False
    return eqn.primitive is not jax.lax.axis_index_p and not any(jaxprs_in(eqn.params))


def region_axes(mesh: Any, newly_manual_axes: Any) -> tuple[dict[Any, int], dict[Any, int]]:
    """The axes along which the devices of a region count for themselves, and those along which they are replicas of
    each other, with their sizes."""
    by_device = frozenset(newly_manual_axes) | frozenset(mesh.manual_axes)
    own = {axis: size for axis, size in mesh.shape.items() if axis in by_device}
    return own, {axis: size for axis, size in mesh.shape.items() if axis not in by_device and size > 1}


@contextlib.contextmanager
def inside_region(mesh: Any, newly_manual_axes: Any, check_vma: bool) -> Iterator[None]:
    """Whatever is traced meanwhile is part of such a region."""
    inner = mesh.abstract_mesh.update_axis_types(dict.fromkeys(newly_manual_axes, jax.sharding.AxisType.Manual))
    sizes = list(region_axes(mesh, newly_manual_axes)[0].items())
    with core.extend_axis_env_nd(sizes), jax.sharding.use_abstract_mesh(inner), jax_config._check_vma(check_vma):
        yield


def is_in_region_over_some_axes() -> bool:
    """Whether devices are replicas of each other in the region that is traced, if one is."""
    mesh = jax.sharding.get_abstract_mesh()
    return bool(mesh.manual_axes) and bool(region_axes(mesh, ())[1])


def is_abstract(mesh: Any) -> bool:
    """Whether a mesh does not say which its devices are."""
    return isinstance(mesh, jax.sharding.AbstractMesh)


def automatic_devices(ctx: Any) -> int:
    """How many devices run this program where XLA's partitioner decides what of it runs where; else 0."""
    axis_context = ctx.module_context.axis_context
    devices = getattr(axis_context, "num_devices", 1)
    return devices if devices > 1 and not getattr(axis_context, "manual_axes", None) else 0


def devices_of_program(ctx: Any) -> int | None:
    """How many devices run this program, outside of its per-device regions; None if that is open."""
    return getattr(ctx.module_context.axis_context, "num_devices", None)


def is_for_several_devices(ctx: Any) -> bool:
    """Whether several devices run this program."""
    axis_context = ctx.module_context.axis_context
    mesh, axis_env = getattr(axis_context, "mesh", None), getattr(axis_context, "axis_env", None)
    devices = mesh.size if mesh is not None else axis_env.nreps if axis_env is not None else axis_context.num_devices
    return devices is not None and devices > 1


def devices_of_region(ctx: Any) -> int:
    """How many devices the region is over that is lowered, replicas included."""
    return ctx.module_context.axis_context.mesh.size


def replicas_per_group(ctx: Any) -> int:
    """In a region over some axes of its mesh: how many replicas a replica group has; elsewhere 0."""
    axis_context = ctx.module_context.axis_context
    by_device = getattr(axis_context, "manual_axes", None)
    if not by_device:
        return 0
    replicas = math.prod(size for axis, size in axis_context.mesh.shape.items() if axis not in by_device)
    return replicas if replicas > 1 else 0
