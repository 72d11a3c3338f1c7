"""What stands only in kernels: indices of the grid, elements of blocks, stores, scopes, and prints with the grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as pltriton

from tests.oracle.jax_ import Scope, assign, remainder, run_body
from tests.oracle.language import MODULUS, Block_, Expression, State

if TYPE_CHECKING:
    from tests.oracle.expressions import Less
    from tests.oracle.source import Source


@dataclass(frozen=True)
class ProgramId:
    """The index of the program along an axis of the grid, asked for where it is used."""

    name: str
    axis: int

    def python(self) -> str:
        return self.name

    def jax(self, scope: Scope, state: State) -> Any:
        return pl.program_id(self.axis)


@dataclass(frozen=True)
class NumPrograms:
    """The size of the grid along an axis."""

    axis: int
    size: int

    def python(self) -> str:
        return str(self.size)

    def jax(self, scope: Scope, state: State) -> Any:
        return jnp.asarray(pl.num_programs(self.axis), np.int32)


@dataclass(frozen=True)
class Element:
    """An element of a block."""

    block: str
    shape: tuple[int, ...]
    index: Expression

    def python(self) -> str:
        index = self.index.python()
        return f"{self.block}[{', '.join(f'({index}) % {size}' for size in self.shape)}]"

    def at(self, scope: Scope, state: State) -> tuple[Any, ...]:
        return tuple(remainder(self.index, size, scope, state) for size in self.shape)

    def jax(self, scope: Scope, state: State) -> Any:
        return scope.names[self.block][self.at(scope, state)]


@dataclass(frozen=True)
class MaskedSum:
    """The sum of the first elements of a block, of which a masked load gets them."""

    block: str
    size: int
    count: Expression

    def python(self) -> str:
        return f"sum({self.block}[:({self.count.python()}) % {self.size}]) % {MODULUS}"

    def jax(self, scope: Scope, state: State) -> Any:
        mask = lax.iota(np.int32, self.size) < remainder(self.count, self.size, scope, state)
        values = pltriton.load(scope.names[self.block], mask=mask, other=0)
        return lax.rem(lax.reduce(values, np.int32(0), lax.add, (0,)), np.int32(MODULUS))


@dataclass(frozen=True)
class Store:
    element: Element
    value: Expression

    def kinds(self) -> tuple[str, ...]:
        return ("store",)

    def python(self, out: Source) -> None:
        out.line(f"{self.element.python()} = {self.value.python()}")

    def jax(self, scope: Scope, state: State) -> State:
        scope.names[self.element.block][self.element.at(scope, state)] = self.value.jax(scope, state)
        return state


@dataclass(frozen=True)
class GridPrint:
    """A print whose format shows the index of the program, or one of Pallas' own."""

    form: str  # ordered, unordered or pallas
    label: str
    operands: tuple[Expression, ...]

    @property
    def kind(self) -> str:
        return "jax_print" if self.form == "pallas" else self.form

    def kinds(self) -> tuple[str, ...]:
        return ("pallas_print" if self.form == "pallas" else f"grid_{self.form}",)

    def python(self, out: Source) -> None:
        grid = ["grid()"] * (self.form != "pallas")
        out.line(f"{self.kind}({', '.join([repr(self.label), *grid, *(x.python() for x in self.operands)])})")

    def jax(self, scope: Scope, state: State) -> State:
        operands = tuple(operand.jax(scope, state) for operand in self.operands)
        if self.form == "pallas":
            pl.debug_print(" ".join([self.label, *["{}"] * len(operands)]), *operands)
        else:
            scope.runner.emit[self.form](f"{self.label} {{grid}}", operands)
        return state


@dataclass(frozen=True)
class BlockPrint:
    """A print of a whole block: by its reference, or of its values in a row, so that it is one line."""

    label: str
    block: str
    is_flat: bool
    kind: ClassVar[str] = "ordered"

    def kinds(self) -> tuple[str, ...]:
        return ("block_print_row",) if not self.is_flat else ("block_print",)

    def python(self, out: Source) -> None:
        out.line(f"ordered({self.label!r}, {self.block}.flatten())")

    def jax(self, scope: Scope, state: State) -> State:
        ref = scope.names[self.block]
        scope.runner.emit["ordered"](self.label, (ref if self.is_flat else jnp.ravel(ref[...]),))
        return state


@dataclass(frozen=True)
class When:
    """A block under `pl.when`: what it assigns is gone, what it stores stays."""

    test: Less
    body: Block_

    def kinds(self) -> tuple[str, ...]:
        return ("when",)

    def python(self, out: Source) -> None:
        name = out.fresh("when")
        out.function(name, self.body)
        with out.block(f"if {self.test.python()}:"), out.block("with branch(1), dropped():"):
            out.line(f"{name}(a, b, c, x)")
        with out.block("else:"), out.block("with branch(0):"):
            pass

    def jax(self, scope: Scope, state: State) -> State:
        pl.when(self.test.jax(scope, state))(_discarding(self.body, scope, state))
        return state


@dataclass(frozen=True)
class Loop:
    """A block under `pl.loop`: what it assigns is gone after each turn."""

    variable: str
    trips: Expression | int
    limit: int
    body: Block_

    def kinds(self) -> tuple[str, ...]:
        return ("loop",)

    def python(self, out: Source) -> None:
        trips = self.trips if isinstance(self.trips, int) else f"({self.trips.python()}) % {self.limit}"
        name = out.fresh("turn")
        out.function(name, self.body, f"{self.variable}, a, b, c, x")
        with out.block(f"for {self.variable} in turns(range({trips})):  # pl.loop"), out.block("with dropped():"):
            out.line(f"{name}({self.variable}, a, b, c, x)")

    def jax(self, scope: Scope, state: State) -> State:
        trips = self.trips if isinstance(self.trips, int) else remainder(self.trips, self.limit, scope, state)

        @pl.loop(0, trips)
        def _(i: Any) -> None:
            run_body(self.body, scope.bind(**{self.variable: jnp.asarray(i, np.int32)}), state)

        return state


@dataclass(frozen=True)
class Scoped:
    """A block with a cell of its own, by `pl.run_scoped`."""

    cell: str
    initial: Expression
    body: Block_
    target: str

    def kinds(self) -> tuple[str, ...]:
        return ("run_scoped",)

    def python(self, out: Source) -> None:
        out.line(f"{self.cell} = [{self.initial.python()}]  # run_scoped")
        out.body(self.body)
        out.line(f"{self.target} = {self.cell}[0]")

    def jax(self, scope: Scope, state: State) -> State:
        initial = self.initial.jax(scope, state)

        def body(cell: Any) -> State:
            cell[...] = initial
            after = run_body(self.body, scope.bind(**{self.cell: cell}), state)
            return assign(after, self.target, cell[...])

        return tuple(pl.run_scoped(body, pltpu.SMEM((), np.int32)))


def _discarding(body: Block_, scope: Scope, state: State) -> Callable[[], None]:
    def run() -> None:
        run_body(body, scope, state)

    return run
