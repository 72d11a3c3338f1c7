"""Where a program runs that runs on several devices, and how it comes to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding

P = jax.P
DEVICES = 8


@dataclass(frozen=True)
class Placing:
    """Several devices, in an order of their own, and how a program comes to them."""

    devices: tuple[int, ...]
    rows: int = 1  # of a mesh with two axes
    explicit: bool = False  # whether the types of arrays say how they are sharded
    entry: str = "replicated"  # see ENTRIES

    def mesh(self, two_axes: bool) -> Any:
        sizes = (self.rows, len(self.devices) // self.rows) if two_axes or self.explicit else (len(self.devices),)
        kind = AxisType.Explicit if self.explicit else AxisType.Auto
        devices = np.array([jax.devices()[number] for number in self.devices]).reshape(sizes)
        return jax.sharding.Mesh(devices, ("i", "j")[: len(sizes)], axis_types=(kind,) * len(sizes))

    def shard(self, two_axes: bool, spec: Any = None) -> Any:
        """A sharding of an array's first dimension over all devices, or of whatever `spec` says."""
        mesh = self.mesh(two_axes)
        return NamedSharding(mesh, P(mesh.axis_names) if spec is None else spec)

    def constrain(self, x: Any, two_axes: bool, spec: Any = None) -> Any:
        """The array, sharded like that, inside of a program."""
        sharding = self.shard(two_axes, spec)
        return jax.sharding.reshard(x, sharding) if self.explicit else lax.with_sharding_constraint(x, sharding)


ENTRIES = ("replicated", "sharded", "in_shardings", "uncommitted")
"""How a program gets its registers: on all of its devices, as one array that is sharded over them by its own sharding
or by the program's, or as numbers."""
