"""A callback of JAX's own that has become an effect of ours, and the way back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from effects._model.site import Site


@dataclasses.dataclass(frozen=True, eq=False)
class JaxCall:
    """A callback of JAX's own, as the user's code bound it."""

    primitive: Any
    params: Mapping[str, Any]
    dtypes: tuple[Any, ...]  # of its operands
    ordered: bool  # as the user wrote it

    def restore(self, site: Site, operands: Sequence[Any]) -> list[Any]:
        """Binds JAX's own primitive to a site's operands, with JAX's semantics: under `vmap` by JAX's rule, and in all
        lanes, inactive ones included."""
        values = operands[len(operands) - len(self.dtypes) :]

        def call(*values: Any) -> list[Any]:
            typed = [x if _is_key(dtype) else x.astype(dtype) for x, dtype in zip(values, self.dtypes, strict=True)]
            outs = self.primitive.bind(*typed, **self.params)
            return [out.astype(result.stored) for out, result in zip(outs, site.results or (), strict=True)]

        arrays = site.operands[len(site.operands) - len(values) :]
        for axis, size in reversed(list(enumerate(site.lanes))):
            call = jax.vmap(call, [0 if array.lanes[axis] else None for array in arrays], axis_size=size)
        return call(*values)


def _is_key(dtype: Any) -> bool:
    """Returns True if values of this type travel in another type: JAX, too, gives a callback the numbers of a PRNG
    key."""
    return dtype == jax.dtypes.float0 or jnp.issubdtype(dtype, jax.dtypes.extended)
