"""`pl.pallas_call`, with a say in how its effects and its grid are treated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from effects import _errors as errors
from effects import _jax
from effects._model.where import where_called

MSG_GRID_ORDER = (
    "`fx.pallas_call` at {where} was given the grid order {order!r}. It is the order in which a simulated kernel "
    'visits its grid. Pass "program", "reverse", or an integer, the seed of a random order.'
)
MSG_NOT_SIMULATED = (
    "`fx.pallas_call` at {where} was given the grid order {order!r} for a kernel that is compiled for a device. There "
    "all programs of the grid run at their own time. Pass `interpret=True`, or leave `grid_order` out."
)
MSG_OTHER_INTERPRETER = (
    "`fx.pallas_call` at {where} was given the grid order {order!r} for a kernel that an interpreter of JAX's for "
    "other devices runs. It visits the grid as it likes. Pass `interpret=True`, or leave `grid_order` out."
)
MSG_DYNAMIC_GRID = (
    "`fx.pallas_call` at {where} was given the grid order {order!r} for a grid whose size is known only when the "
    "program runs. An order is made while the kernel is traced. Give the grid a size of plain integers, or leave "
    "`grid_order` out."
)
MSG_LOG_CAPACITY = (
    "`fx.pallas_call` at {where} was given the log capacity {given!r}. It is how many words of 32 bits the effects of "
    "one program of the grid may take. Pass a whole number, at least 1, or leave it out."
)
MSG_WHEN_FULL = (
    "`fx.pallas_call` at {where} was given when_full={given!r}. `when_full` is the action when a kernel's log has too "
    'little room. Pass "grow" or "drop_newest".'
)
GRID_ORDER, LOG_CAPACITY, WHEN_FULL = "effects.grid_order", "effects.log_capacity", "effects.when_full"
"""Keys in a kernel's metadata. JAX hands metadata on whatever it makes of a kernel."""

DEFAULT_CAPACITY = 256
"""The default words in a log for the effects of one program of the grid."""


@_jax.for_users
def pallas_call(
    kernel: Callable[..., None],
    out_shape: Any,
    *,
    grid_order: str | int = "program",
    log_capacity: int | None = None,
    when_full: str = "grow",
    **options: Any,
) -> Callable[..., Any]:
    """A Pallas kernel, as `pl.pallas_call` makes it, with a say in how its effects and its grid are treated.

    Effects need no more than `pl.pallas_call`. A kernel whose result depends on the order in which the programs of its
    grid run is wrong on a device that runs them side by side, and simulating it in several orders shows that: see
    `effects.testing.check_grid_races`.

    Args:
        kernel: The kernel.
        out_shape: The shapes and types of its results.
        grid_order: The order in which a simulated kernel visits its grid: `"program"`, as JAX does, the last axis
            first; `"reverse"`; or an integer, the seed of a random order. Effects are shown in the order of the grid
            all the same, behind the kernel. Callbacks whose results the kernel waits for run as the grid is visited.
        log_capacity: The number of 32-bit words that the effects of one program of the grid may take in the log of a
            kernel that is compiled for a device. An effect takes one, and its arrays one for each element of 32 bits or
            fewer. Effects that do not fit are dropped, with a warning that has the number of words needed. 256 by
            default.
        when_full: The treatment of a log that had too little room. Dropped effects are counted and reported in any
            case. `"grow"`: the log has more room when the function is called again. `"drop_newest"`: it stays as it is.
        **options: As for `pl.pallas_call`.

    Returns:
        A function of arrays.

    Raises:
        ValueError: if there is no such order, if the kernel is not simulated, if the size of its grid is not known, or
            if there is no such capacity or choice.

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
    if not (grid_order in ("program", "reverse") or (_is_number(grid_order) and int(grid_order) >= 0)):
        raise errors.value_error(MSG_GRID_ORDER.format(where=where, order=grid_order))
    if when_full not in ("grow", "drop_newest"):
        raise errors.value_error(MSG_WHEN_FULL.format(where=where, given=when_full))
    if log_capacity is not None and not (_is_number(log_capacity) and log_capacity >= 1):
        raise errors.value_error(MSG_LOG_CAPACITY.format(where=where, given=log_capacity))
    notes = {} if log_capacity is None else {LOG_CAPACITY: str(int(log_capacity))}
    notes |= {WHEN_FULL: when_full} if when_full != "grow" else {}
    if notes:
        options["metadata"] = {**(options.get("metadata") or {}), **notes}
    if grid_order == "program":
        return pl.pallas_call(kernel, out_shape, **options)
    if not options.get("interpret"):
        raise errors.value_error(MSG_NOT_SIMULATED.format(where=where, order=grid_order))
    if options["interpret"] is not True:
        raise errors.value_error(MSG_OTHER_INTERPRETER.format(where=where, order=grid_order))
    grid_spec = options.get("grid_spec")
    grid = options.get("grid", ()) if grid_spec is None else grid_spec.grid
    if not all(isinstance(size, (int, np.integer)) for size in (grid if isinstance(grid, (tuple, list)) else (grid,))):
        raise errors.value_error(MSG_DYNAMIC_GRID.format(where=where, order=grid_order))
    options["metadata"] = {**(options.get("metadata") or {}), GRID_ORDER: str(grid_order)}
    return pl.pallas_call(kernel, out_shape, **options)


def _is_number(given: Any) -> bool:
    return isinstance(given, (int, np.integer)) and not isinstance(given, bool)


def grid_order_of(metadata: Any) -> str | int | None:
    """The order that a kernel's metadata asks for; None for that of the grid."""
    text = dict(metadata or {}).get(GRID_ORDER)
    return int(text) if text is not None and text.isdecimal() else text


def log_options_of(metadata: Any) -> tuple[int, bool]:
    """Returns from a kernel's metadata the capacity of its log, and True if it grows."""
    notes = dict(metadata or {})
    return int(notes.get(LOG_CAPACITY, DEFAULT_CAPACITY)), notes.get(WHEN_FULL, "grow") == "grow"


def numbers_in_order(order: str | int, count: int, numpy: Any = np) -> Any:
    """The numbers of the grid's programs, in the order in which they are visited. With `jax.numpy` the program computes
    them, since JAX does not allow every loop to close over an array."""
    numbers = numpy.arange(count, dtype=np.int32)
    if order == "reverse":
        return numbers[::-1]
    keys, seed = numbers.astype(np.uint32), int(order)
    for shift in range(0, max(1, seed.bit_length()), 32):
        keys = _scrambled(keys ^ np.uint32(seed >> shift & 0xFFFFFFFF))
    return numpy.argsort(keys, stable=True).astype(np.int32)


def _scrambled(keys: Any) -> Any:
    """Hashes keys, so that they seem random and no two become equal."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        keys = (keys ^ (keys >> np.uint32(shift)) ^ np.uint32(0x9E3779B9)) * np.uint32(factor)
    return keys ^ (keys >> np.uint32(16))
