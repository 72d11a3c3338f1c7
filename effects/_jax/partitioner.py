"""XLA's partitioner."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax._src import xla_bridge
from jax._src.interpreters import mlir
from jax._src.lib import xla_client

replicated_hlo_sharding = xla_client.HloSharding.replicate()


def is_tiled(sharding: Any, together: int) -> bool:
    """Whether an array is cut into parts, and not along the first axes, which stay `together`."""
    if not sharding.is_tiled() or sharding.is_manual() or sharding.is_maximal() or sharding.is_unreduced():
        return False
    if any(kind != xla_client.OpSharding.Type.REPLICATED for kind in sharding.subgroup_types()):
        return False
    return all(cuts == 1 for cuts in sharding.tile_assignment_dimensions()[:together])


def write_sharding(aval: Any) -> str:
    """How an array lies by its type, as text."""
    return aval.sharding._to_xla_hlo_sharding(aval.ndim).to_proto().SerializeToString().hex()


def read_sharding(text: str) -> Any:
    """What `write_sharding` has written."""
    proto = xla_client.OpSharding()
    proto.ParseFromString(bytes.fromhex(text))
    return xla_client.HloSharding.from_proto(proto)


def element_type(shape: Any) -> str:
    """The element type of XLA's shape, as MLIR writes it."""
    with mlir.make_ir_context():
        return str(mlir.dtype_to_ir_type(np.dtype(shape.numpy_dtype())))


def call_partitioned(ctx: Any, target: str, operands: Sequence[Any], said: str) -> Sequence[Any]:
    """Calls a target that XLA's partitioner asks us about; see `register_partitioner`."""
    return mlir.custom_call(
        target,
        operands=operands,
        result_types=[mlir.aval_to_ir_type(ctx.module_context, aval) for aval in ctx.avals_out],
        backend_config=said,
        api_version=2,
    ).results


def register_partitioner(target: str, partition: Callable[..., Any]) -> None:
    """`partition(operands' shapes, their shardings, result's shape, its sharding, what the call says)` gives what each
    device does in place of a call of this target. Results are the same on all devices."""
    register = functools.partial(
        xla_client.register_custom_call_partitioner,
        name=target,
        prop_user_sharding=lambda sharding, *_: replicated_hlo_sharding,
        partition=partition,
        infer_sharding_from_operands=lambda *_: replicated_hlo_sharding,
        can_side_effecting_have_replicated_sharding=True,
    )
    register()
    xla_bridge.register_plugin_callbacks(register)  # a GPU's plugin has a compiler of its own
