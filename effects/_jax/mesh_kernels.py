"""Kernels over a mesh, such as those of `plgpu.kernel`, with one output more: the log of their effects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax._src import core
from jax._src.pallas import mpmd

from effects._jax.core import closed_jaxpr, is_closed, trace_to_jaxpr

mpmd_map_p = mpmd.mpmd_map_p


def mesh_kernel(params: dict[str, Any]) -> tuple[Any, dict[str, int]] | None:
    """The jaxpr of a kernel for GPUs, and the sizes of its mesh by their names; None if it is another one."""
    if len(params["jaxprs"]) != 1 or "mosaic_gpu" not in type(params["meshes"][0]).__module__:
        return None
    return closed_jaxpr(params["jaxprs"][0]), dict(params["meshes"][0].shape)


def with_mesh_log(
    params: dict[str, Any], operands: int, programs: int, width: int, fun: Callable[..., Sequence[Any]]
) -> dict[str, Any]:
    """The parameters of such a kernel with one output more behind the others, an `int32[programs, 1, width]`.

    `fun(log, row, *references)` is called as by `with_log`.
    """
    (jaxpr,), sizes = params["jaxprs"], dict(params["meshes"][0].shape)
    avals, at = closed_jaxpr(jaxpr).in_avals, operands + len(params["out_avals"])
    shape = programs, 1, width
    log_aval = avals[operands].update(inner_aval=core.ShapedArray(shape, jnp.int32))

    def kernel(*references: Any) -> Sequence[Any]:
        number = jnp.int32(0)
        for name, size in sizes.items():
            number = number * size + jax.lax.axis_index(name)
        return fun(references[at], (number, 0), *references[:at], *references[at + 1 :])

    with core.extend_axis_env_nd(list(sizes.items())):
        traced = trace_to_jaxpr(kernel, [*avals[:at], log_aval, *avals[at:]], like=closed_jaxpr(jaxpr))
    assert not traced.consts
    log = params["out_avals"][0].update(shape=shape, dtype=jnp.dtype("int32"))
    jaxprs = (traced if is_closed(jaxpr) else traced.jaxpr,)
    return {**params, "jaxprs": jaxprs, "out_avals": (*params["out_avals"], log)}
