"""Where values lie, as their types say: `jax.memory` and explicit shardings."""

from typing import Any, NamedTuple

import jax
from jax.sharding import PartitionSpec


class Placement(NamedTuple):
    """Another memory than the device's, or an explicit sharding; None where there is neither."""

    memory: Any
    spec: Any


def take_placement(x: Any) -> tuple[Any, Placement]:
    """A value in the device's memory and whole, and where it was."""
    type_ = jax.typeof(x)
    memory = None if type_.memory_space == jax.memory.Space.Device else type_.memory_space
    sharding = type_.sharding
    spec = None if sharding.mesh.empty or not any(sharding.spec) else sharding.spec
    if memory is not None:
        x = jax.device_put(x, jax.memory.Space.Device)
    if spec is not None:
        x = jax.sharding.reshard(x, PartitionSpec(*(None,) * x.ndim))
    return x, Placement(memory, spec)


def place(x: Any, placement: Placement) -> Any:
    """The value where it was."""
    if placement.spec is not None:
        x = jax.sharding.reshard(x, placement.spec)
    if placement.memory is not None:
        x = jax.device_put(x, placement.memory)
    return x
