"""`pl.pallas_call`, with a say in how its effects and its grid are treated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from effects._model.where import Where, where_called

MSG_GRID_ORDER = (
    "`fx.pallas_call` at {where} was given the grid order {order!r}. It is the order in which a simulated kernel "
    'visits its grid. Pass "program", "reverse", or an integer, the seed of a random order.'
)
MSG_NOT_SIMULATED = (
    "`fx.pallas_call` at {where} was given the grid order {order!r} for a kernel that is compiled for a device. There "
    "all programs of the grid run at their own time. Pass `interpret=True`, or leave `grid_order` out."
)
MSG_DYNAMIC_GRID = (
    "`fx.pallas_call` at {where} was given the grid order {order!r} for a grid whose size is known only when the "
    "program runs. An order is made while the kernel is traced. Give the grid a size of plain integers, or leave "
    "`grid_order` out."
)
GRID_ORDER = "effects.grid_order"
"""The key in a kernel's metadata. JAX hands metadata on whatever it makes of a kernel."""


def pallas_call(
    kernel: Callable[..., None], out_shape: Any, *, grid_order: str | int = "program", **options: Any
) -> Any:
    """A Pallas kernel, as `pl.pallas_call` makes it, whose grid may be visited in another order.

    Effects need no more than `pl.pallas_call`. A kernel whose result depends on the order in which the programs of its
    grid run is wrong on a device that runs them side by side, and simulating it in several orders shows that: see
    `effects.testing.check_grid_races`.

    Args:
        kernel: The kernel.
        out_shape: What it returns.
        grid_order: The order in which a simulated kernel visits its grid: `"program"`, as JAX does, the last axis
            first; `"reverse"`; or an integer, the seed of a random order.
        **options: As for `pl.pallas_call`.

    Returns:
        A function of arrays.

    Raises:
        ValueError: if there is no such order, if the kernel is not simulated, or if the size of its grid is not known.

    Example:
        A kernel that is right in one order only.

        >>> import jax, effects as fx
        >>> from jax.experimental import pallas as pl
        >>> def kernel(x_ref, o_ref):
        ...     o_ref[0] = x_ref[pl.program_id(0)]
        >>> shape = jax.ShapeDtypeStruct((1,), "int32")
        >>> x = jax.numpy.arange(4)
        >>> [int(fx.pallas_call(kernel, shape, grid=(4,), interpret=True, grid_order=order)(x)[0])
        ...  for order in ("program", "reverse")]
        [3, 0]
    """
    from jax.experimental import pallas as pl

    where = where_called()
    if not (grid_order in ("program", "reverse") or (isinstance(grid_order, (int, np.integer)) and grid_order >= 0)):
        raise ValueError(MSG_GRID_ORDER.format(where=where, order=grid_order))
    if grid_order == "program":
        return pl.pallas_call(kernel, out_shape, **options)
    if not options.get("interpret"):
        raise ValueError(MSG_NOT_SIMULATED.format(where=where, order=grid_order))
    grid_spec = options.get("grid_spec")
    grid = options.get("grid", ()) if grid_spec is None else grid_spec.grid
    _check_grid(grid, grid_order, where)
    options["metadata"] = {**(options.get("metadata") or {}), GRID_ORDER: str(grid_order)}
    return pl.pallas_call(kernel, out_shape, **options)


def _check_grid(grid: Any, order: str | int, where: Where) -> None:
    if not all(isinstance(size, (int, np.integer)) for size in (grid if isinstance(grid, (tuple, list)) else (grid,))):
        raise ValueError(MSG_DYNAMIC_GRID.format(where=where, order=order))


def grid_order_of(metadata: Any) -> str | int | None:
    """The order that a kernel's metadata asks for; None for that of the grid."""
    text = (metadata or {}).get(GRID_ORDER)
    return int(text) if text is not None and text.isdecimal() else text


def numbers_in_order(order: str | int, count: int) -> np.ndarray:
    """The numbers of so many programs, in the order in which they are visited."""
    numbers = np.arange(count, dtype=np.int32)
    return numbers[::-1].copy() if order == "reverse" else np.random.default_rng(int(order)).permutation(numbers)
