"""The arrays of a kernel, and the part of each that a program of the grid gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from tests.oracle.language import MODULUS, Expression, State

if TYPE_CHECKING:
    from tests.oracle.jax_ import Scope

STRIDE = 5  # between the values of neighbouring elements


@dataclass(frozen=True)
class Form:
    """How an array is cut into blocks along one axis of the grid, or along two.

    The functions are given the sizes of the grid along these axes; `part` also names of the indices, and writes Python.
    """

    axes: int
    array: Callable[..., tuple[int, ...]]
    block: tuple[int, ...]  # as the kernel sees it
    part: Callable[[Sequence[str], Sequence[int]], str]
    spec: Callable[[Sequence[int], Sequence[int]], Any]  # of the axes and the sizes


def _twice(index: str) -> str:
    return f"2 * {index}:2 * {index} + 2"


FORMS: Mapping[str, Form] = {
    "whole": Form(0, lambda: (3,), (3,), lambda i, n: ":", lambda axes, n: pl.BlockSpec()),
    "blocked": Form(
        1,
        lambda n: (2 * n,),
        (2,),
        lambda i, n: _twice(i[0]),
        lambda axes, n: pl.BlockSpec((2,), lambda *i: (i[axes[0]],)),
    ),
    "backwards": Form(
        1,
        lambda n: (2 * n,),
        (2,),
        lambda i, n: _twice(f"({n[0] - 1} - {i[0]})"),
        lambda axes, n: pl.BlockSpec((2,), lambda *i: (n[0] - 1 - i[axes[0]],)),
    ),
    "squeezed": Form(
        1,
        lambda n: (n, 3),
        (3,),
        lambda i, n: i[0],
        lambda axes, n: pl.BlockSpec((None, 3), lambda *i: (i[axes[0]], 0)),
    ),
    "element": Form(
        1,
        lambda n: (n + 1,),
        (2,),
        lambda i, n: f"{i[0]}:{i[0]} + 2",
        lambda axes, n: pl.BlockSpec((pl.Element(2),), lambda *i: (i[axes[0]],)),
    ),
    "table": Form(
        1,
        lambda n: (2 * n,),
        (2,),
        lambda i, n: _twice(f"table[{i[0]}]"),
        lambda axes, n: pl.BlockSpec((2,), lambda *i: (i[-1][i[axes[0]]],)),
    ),
    "tiles": Form(
        2,
        lambda n, m: (2 * n, 2 * m),
        (2, 2),
        lambda i, n: f"{_twice(i[0])}, {_twice(i[1])}",
        lambda axes, n: pl.BlockSpec((2, 2), lambda *i: (i[axes[0]], i[axes[1]])),
    ),
}
"""`table`: the index of the block stands in a table that the kernel gets ahead of its operands."""


@dataclass(frozen=True)
class Block:
    """An array of a kernel: `first`, and from element to element `STRIDE` more."""

    name: str
    form: str
    axes: tuple[int, ...]  # of the grid
    first: Expression
    starts: str = ""  # of an output: "alias" of that array, or each program begins by filling its block

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the block."""
        return FORMS[self.form].block

    def kinds(self) -> tuple[str, ...]:
        return (f"{'out' if self.starts else 'in'}_{self.form}", *([f"out_{self.starts}"] * bool(self.starts)))

    def array_shape(self, grid: Sequence[int]) -> tuple[int, ...]:
        return FORMS[self.form].array(*self._sizes(grid))

    def python(self, grid: Sequence[int]) -> str:
        shape = self.array_shape(grid)
        values = f"{STRIDE} * np.arange({np.prod(shape)}) + ({self.first.python()})"
        return f"({values}).reshape{shape} % {MODULUS}"

    def part(self, indices: Sequence[str], grid: Sequence[int]) -> str:
        return FORMS[self.form].part([indices[axis] for axis in self.axes], self._sizes(grid))

    def jax(self, grid: Sequence[int], scope: Scope, state: State) -> Any:
        shape = self.array_shape(grid)
        values = STRIDE * lax.iota(np.int32, int(np.prod(shape))) + self.first.jax(scope, state)
        return jnp.reshape(lax.rem(values, np.int32(MODULUS)), shape)

    def spec(self, grid: Sequence[int]) -> Any:
        return FORMS[self.form].spec(self.axes, self._sizes(grid))

    def _sizes(self, grid: Sequence[int]) -> list[int]:
        return [grid[axis] for axis in self.axes]
