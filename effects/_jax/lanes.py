"""`vmap`: `jax._src.interpreters.batching`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax._src import core
from jax._src.interpreters import batching

from effects._jax.core import typeof
from effects._jax.jaxprs import closed_jaxpr


def batched(jaxpr: Any, axis_data: Any, which: Sequence[bool], outs: bool | Sequence[bool]) -> tuple[Any, list[bool]]:
    """A jaxpr for all lanes at once, in the leading axis of those inputs that have them; and which results have them:
    at least these."""
    instantiate = outs if isinstance(outs, bool) else list(outs)
    jaxpr, outs_batched = batching.batch_jaxpr(closed_jaxpr(jaxpr), axis_data, list(which), instantiate)
    return closed_jaxpr(jaxpr), list(outs_batched)


def own_lanes(x: Any, dim: int | None, axis_data: Any) -> Any:
    """A value with the lanes of its device. What a region closes over has, with `spmd_axis_name`, those of all devices,
    unlike the region's arguments."""
    if dim is None or axis_data.spmd_name is None or x.shape[dim] == axis_data.size:
        return x
    first = jax.lax.axis_index(axis_data.spmd_name) * axis_data.size
    return jax.lax.dynamic_slice_in_dim(x, first, axis_data.size, dim)


def lanes_at_front(x: Any, dim: int | None, axis_data: Any) -> Any:
    """A value with its lanes in the leading axis, made if there is none."""
    x = own_lanes(x, dim, axis_data)
    return batching.bdim_at_front(x, dim, axis_data.size, mesh_axis=axis_data.explicit_mesh_axis)


def without_lanes(x: Any, dim: int | None) -> Any:
    """The type of a value in each lane."""
    aval = typeof(x)
    return aval if dim is None else core.mapped_aval(aval.shape[dim], dim, aval)


def select(predicate: Any, x: Any, y: Any) -> Any:
    """`x` where the predicate, which is for the leading axes, holds, else `y`."""
    return jax.lax.select(_for_all_axes(predicate, x), x, y)


def select_n(index: Any, *cases: Any) -> Any:
    """The case of that number, which is for the leading axes."""
    return jax.lax.select_n(_for_all_axes(index, cases[0]), *cases)


def _for_all_axes(leading: Any, like: Any) -> Any:
    """Values for the leading axes as values for all, which lie on devices as those do if the types say how."""
    if leading.ndim == like.ndim:
        return leading
    sharding = typeof(like).sharding
    out_sharding = sharding if any(sharding.spec) else None
    return jax.lax.broadcast_in_dim(leading, like.shape, range(leading.ndim), out_sharding=out_sharding)
