"""Arrays of the types that tokens have, among the values of a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jax import lax

from tests.oracle.jax_ import Scope, assign, fold, register, run_body
from tests.oracle.language import MODULUS, Block_, Expression, State

if TYPE_CHECKING:
    from tests.oracle.source import Source

TYPES = (("uint32", 4), ("int32", 4), ("uint32", 8), ("uint32", 6))


@dataclass(frozen=True)
class TokenLike:
    """A loop that carries an array, shows it in each turn behind a block, and adds one to it."""

    label: str
    type: tuple[str, int]
    first: Expression
    turns: int
    variable: str
    body: Block_
    target: str
    under_way: bool = False  # whether an asynchronous operation is, while the array is shown
    kind: ClassVar[str] = "ordered"

    def kinds(self) -> tuple[str, ...]:
        return (f"array_{self.type[0]}_{self.type[1]}", *["array_under_way"] * self.under_way)

    def python(self, out: Source) -> None:
        array, (dtype, size) = out.fresh("values"), self.type
        out.line(f"{array} = [(j + {self.first.python()}) % {MODULUS} for j in range({size})]")
        with out.block(f"for {self.variable} in turns(range({self.turns})):  # carries {dtype}[{size}]"):
            out.body(self.body)
            out.line(f"ordered({self.label!r}, np.array({array}))")
            out.line(f"{array} = [y + 1 for y in {array}]")
        out.line(f"{self.target} = fold({array}, {self.target})")

    def jax(self, scope: Scope, state: State) -> State:
        dtype, size = self.type
        values = lax.rem(lax.iota(np.int32, size) + self.first.jax(scope, state), np.int32(MODULUS))

        def turn(number: Any, carry: tuple[Any, State]) -> tuple[Any, State]:
            array, state = carry
            state = run_body(self.body, scope.bind(**{self.variable: number}), state)
            fx: Any = scope.runner.asynchronous
            future = fx.async_start(lambda value: value, number) if self.under_way else None
            scope.runner.emit["ordered"](self.label, (array,))
            if future is not None:
                fx.async_done(future)
            return array + np.ones((), dtype), state

        array, state = lax.fori_loop(0, self.turns, turn, (lax.convert_element_type(values, dtype), state))
        array = lax.convert_element_type(array, np.int32)
        return assign(state, self.target, fold(array, register(state, self.target)))
