"""Whether the results and the effects of a kernel depend on the order in which the programs of its grid run."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.experimental.pallas  # first of all: it has the rules of kernels loaded
import numpy as np

from effects import _errors as errors
from effects import _jax
from effects._jax import pallas
from effects.dispatch.calling.jit import jit
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
_SHOWN = 6
"""How many differences, and how many programs of one, a report shows."""


def check_grid_races(fun: Callable[..., Any], *args: Any, orders: int = 8) -> None:
    """Runs a function under several orders of the grids of its simulated kernels, and reports what differs.

    A kernel that is right gives the same results and the same records in every order. The first order is that of the
    grid, the second the reverse, the others are random, the same in every run. Output is kept back.

    Args:
        fun: A function, jitted or not, that calls kernels with `interpret=True`.
        *args: Its arguments. Arrays in them are traced; all else the function gets as it is.
        orders: How many orders, at least 2.

    Raises:
        AssertionError: if results or records differ; the message names the kernel, the result, the block, and the
            programs of the grid that have it.
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
        ...     print(str(error).partition(".")[0])
        The simulated kernels depend on the order in which the programs of their grids run
    """
    if orders < 2:
        raise ValueError(MSG_ORDERS.format(orders=orders))
    names: list[str | int] = ["program", "reverse", *range(orders - 2)]
    first = _run(fun, args, names[0])
    if not first.calls:
        raise ValueError(MSG_NO_KERNELS.format(fun=errors.shown(fun)))
    found: dict[tuple[str, ...], list[str]] = {}
    for name in names[1:]:
        for row in dict.fromkeys(_differences(first, _run(fun, args, name))):
            found.setdefault(row, []).append(f"seed {name}" if isinstance(name, int) else name)
    if found:
        raise AssertionError(f"{MSG_RACES}\n{_listed(found)}")


@dataclasses.dataclass(eq=False)
class _Visit:
    """One run of a function, with all grids visited in one order."""

    order: str | int
    results: list[Any] = dataclasses.field(default_factory=list)
    records: Counter[tuple[str, ...]] = dataclasses.field(default_factory=Counter)
    calls: dict[tuple[str, int], list[_Call]] = dataclasses.field(default_factory=dict)  # by kernel and device

    def note(self, params: dict[str, Any], args: Sequence[Any], results: Sequence[Any]) -> None:
        """While a program is traced: it has this kernel."""
        if (grid := pallas.grid_of_kernel(params)) is None:
            return
        name, blocks = pallas.kernel_source(params), pallas.blocks_of_results(params)[: len(results)]
        prefetched = args[: pallas.num_prefetched(params)]

        def seen(device: Any, starts: Sequence[Any], results: Sequence[Any]) -> None:
            arrays = [list(map(np.asarray, values)) for values in (starts, results)]
            self.calls.setdefault((name, int(device)), []).append(_Call(grid, blocks, *arrays))

        axes = tuple(jax.sharding.get_abstract_mesh().manual_axes)
        device = jax.lax.axis_index(axes) if axes else 0  # those of a region call at the same time
        with _jax.left_to_jax():
            jax.debug.callback(
                seen, device, pallas.starts_of_results(params, prefetched)[: len(results)], list(results)
            )


@dataclasses.dataclass
class _Call:
    """One call of a kernel."""

    grid: tuple[int, ...]
    blocks: list[tuple[str, tuple[int, ...]]]
    starts: list[np.ndarray]
    results: list[np.ndarray]


def _run(fun: Callable[..., Any], args: Sequence[Any], order: str | int) -> _Visit:
    """One run in which no record was lost: the log that restores their order grows when it was too small."""
    while True:
        before = sum(grown.values())
        try:
            return _run_once(fun, args, order)
        except errors.EffectError:
            if sum(grown.values()) == before:
                raise


def _run_once(fun: Callable[..., Any], args: Sequence[Any], order: str | int) -> _Visit:
    leaves, structure = jax.tree.flatten(args)
    traced = [at for at, leaf in enumerate(leaves) if isinstance(leaf, (jax.Array, np.ndarray, np.generic))]

    def call(arrays: Sequence[Any]) -> Any:
        given = list(leaves)
        for at, array in zip(traced, arrays, strict=True):
            given[at] = array
        return fun(*jax.tree.unflatten(structure, given))

    visit = _Visit(order)
    with _jax.with_kernel_options(visit=visit), capture(suppress=True) as records:
        visit.results = list(map(np.asarray, jax.tree.leaves(jit(call)([leaves[at] for at in traced]))))
        jax.effects_barrier()
        effects_barrier()
    visit.records = Counter((str(record.where), str(record.grid), record.text) for record in records)
    return visit


def _differences(first: _Visit, other: _Visit) -> list[tuple[str, ...]]:
    """(what, where, which programs) of all that is not the same."""
    rows: list[tuple[str, ...]] = []
    for key, calls in first.calls.items():
        for call, again in zip(calls, other.calls.get(key, []), strict=False):
            for number, (result, after) in enumerate(zip(call.results, again.results, strict=True)):
                rows += _blocks_that_differ(key[0], call, number, result, after)
    for number, (result, after) in enumerate(zip(first.results, other.results, strict=True)):
        if not rows and not _same(result, after).all():
            rows.append((f"result {number} of the function", "", ""))
    changed = [*(first.records - other.records), *(other.records - first.records)]
    for (where, text), grids in _by_text(changed).items():
        rows.append((f"record at {where}", repr(text), f"programs {', '.join(grids[:_SHOWN])}"))
    return rows


def _by_text(changed: Sequence[tuple[str, ...]]) -> dict[tuple[str, str], list[str]]:
    grids: dict[tuple[str, str], list[str]] = {}
    for where, grid, text in changed:
        grids.setdefault((where, text), []).append(grid)
    return grids


def _same(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x == y) | ((x != x) & (y != y))


def _blocks_that_differ(
    name: str, call: _Call, number: int, result: np.ndarray, after: np.ndarray
) -> list[tuple[str, ...]]:
    """Of one result of a kernel's call: each block with elements that differ, and the programs that have it."""
    origin, size = call.blocks[number]
    padded = -(-np.array(result.shape, int) // np.array(size, int)) * np.array(size, int)
    starts = np.clip(call.starts[number], 0, padded - size)  # to where the simulation moves what is outside
    left = np.argwhere(~_same(result, after))
    rows = []
    while len(left):
        covers = ((starts <= left[0]) & (left[0] < starts + size)).all(axis=1)
        programs = np.argwhere(covers.reshape(call.grid)) if call.grid else np.zeros((1, 0), int)
        start = starts[np.argmax(covers)] if covers.any() else left[0]
        shown = ", ".join(
            [*(str(tuple(map(int, each))) for each in programs[:_SHOWN]), *["..."] * (len(programs) > _SHOWN)]
        )
        block = ", ".join(f"{a}:{a + n}" for a, n in zip(start.tolist(), size, strict=True))
        rows.append((f"{origin} of {name}", f"block [{block}]", f"programs {shown}"))
        left = left[~((start <= left) & (left < start + size)).all(axis=1)]
    return rows


def _listed(rows: dict[tuple[str, ...], list[str]]) -> str:
    """What differs, a line for each."""
    lines = [f"- {'; '.join(filter(None, row))} (in the orders {', '.join(orders)})" for row, orders in rows.items()]
    return "\n".join([*lines[:_SHOWN], *[f"- and {len(lines) - _SHOWN} more"] * (len(lines) > _SHOWN)])
