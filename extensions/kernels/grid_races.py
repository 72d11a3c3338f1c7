"""A check that a kernel's results and effects do not depend on the order in which its grid runs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.experimental.pallas  # first: registers the rules of kernels
import numpy as np

from effects import _errors as errors
from effects import _jax
from effects.dispatch.runtime.observe import capture
from effects.dispatch.runtime.runtime import effects_barrier
from effects.extensions.kernels.log import grown

MSG_RACES = (
    "The simulated kernels depend on the order in which the programs of their grids run. On a device these run side by "
    "side, and results differ from run to run. Let each program write blocks of its own, or combine what several write "
    "within one program."
)
MSG_NO_KERNELS = (
    "`check_grid_races` was given {fun}, which ran no simulated kernel with a grid of a known size. It visits the "
    "grids of simulated kernels in several orders. Pass a function that calls `pl.pallas_call(..., interpret=True)`."
)
MSG_ORDERS = (
    "`check_grid_races` was given {orders} orders. The first is that of the grid, and the others are compared with it. "
    "Pass 2 or more."
)


def check_grid_races(fun: Callable[..., Any], *args: Any, orders: int = 8) -> None:
    """Runs a function under several orders of the grids of its simulated kernels, and reports what differs.

    A kernel that is right gives the same results and the same records in every order. The first order is that of the
    grid, the second the reverse, the others are random, the same in every run. Output is kept back.

    Args:
        fun: A function, jitted or not, that calls kernels with `interpret=True`.
        *args: Its arguments.
        orders: The number of orders, at least 2.

    Raises:
        AssertionError: if results or records differ from those in the first order; the message has the first order in
            which they do, the results with the first element of each that differs, and the records.
        ValueError: if the function runs no such kernel, or there are fewer than 2 orders.

    Example:
        Every program writes the same element.

        >>> import jax, effects as fx
        >>> from effects.testing import check_grid_races
        >>> from jax.experimental import pallas as pl
        >>> def kernel(x_ref, o_ref):
        ...     o_ref[0] = x_ref[pl.program_id(0)]
        >>> shape = jax.ShapeDtypeStruct((1,), "int32")
        >>> last = pl.pallas_call(kernel, shape, grid=(4,), interpret=True)
        >>> try:
        ...     check_grid_races(last, jax.numpy.arange(4))
        ... except AssertionError as error:
        ...     print(str(error).splitlines()[-1])
        - result 0 at (0,) is 0 in the order reverse, and 3 in that of the grid
    """
    if orders < 2:
        raise errors.value_error(MSG_ORDERS.format(orders=orders))
    first = _run(fun, args, "program")
    if not first.kernels:
        raise errors.value_error(MSG_NO_KERNELS.format(fun=errors.shown(fun)))
    for order in ("reverse", *range(orders - 2)):
        if found := [*_differences(first, _run(fun, args, order))]:
            raise AssertionError("\n".join([MSG_RACES, *found]))


@dataclasses.dataclass(eq=False)
class _Visit:
    """One run of a function, with all grids visited in one order."""

    order: str | int
    kernels: int = 0  # the number of traced effects
    results: list[np.ndarray] = dataclasses.field(default_factory=list)
    records: Counter[tuple[str, ...]] = dataclasses.field(default_factory=Counter)


def _run(fun: Callable[..., Any], args: Sequence[Any], order: str | int) -> _Visit:
    """One run in which no record was lost: the log that restores their order grows when it was too small."""
    while True:
        visit, before = _Visit(order), sum(grown.values())
        try:
            with _jax.with_kernel_options(visit=visit), capture(suppress=True) as records:
                visit.results = list(map(np.asarray, jax.tree.leaves(fun(*args))))
                jax.effects_barrier()
                effects_barrier()
        except errors.EffectError:
            if sum(grown.values()) == before:
                raise
            continue
        visit.records = Counter((str(record.where), str(record.grid), record.text) for record in records)
        return visit


def _differences(first: _Visit, other: _Visit) -> Iterator[str]:
    """A line for each result and each record that is not the same."""
    order = f"the order {other.order}" if isinstance(other.order, str) else f"the order of seed {other.order}"
    for number, (x, y) in enumerate(zip(first.results, other.results, strict=True)):
        differs = (x != y) & ((x == x) | (y == y))
        if differs.any():
            at = tuple(map(int, np.argwhere(differs)[0]))
            yield f"- result {number} at {at} is {y[at]} in {order}, and {x[at]} in that of the grid"
    for run, others, order_name in ((other, first, order), (first, other, "that of the grid")):
        for where, grid, text in run.records - others.records:
            yield f"- record {text!r} of program {grid} at {where} comes only in {order_name}"
