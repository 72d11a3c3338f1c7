"""Loops and branches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import lax

from tests.oracle.jax_ import Scope, assign, fold, hold, register, remainder, run_body, shifted
from tests.oracle.language import MODULUS, STATE, Block_, Expression, State
from tests.oracle.source import Source, held

if TYPE_CHECKING:
    from tests.oracle.expressions import Less


@dataclass(frozen=True)
class Fori:
    """A `fori_loop`: a `while` where the number of trips depends on data, a `scan` where it is known."""

    variable: str
    trips: Expression | int
    limit: int
    body: Block_
    holds: bool = False  # whether no derivative goes through it, see `held`

    def kinds(self) -> tuple[str, ...]:
        return ("fori_static" if isinstance(self.trips, int) else "fori_dynamic",)

    def python(self, out: Source) -> None:
        trips = self.trips if isinstance(self.trips, int) else f"({self.trips.python()}) % {self.limit}"
        with held(out, self.holds), out.block(f"for {self.variable} in turns(range({trips})):"):
            out.body(self.body)

    def jax(self, scope: Scope, state: State) -> State:
        trips = self.trips if isinstance(self.trips, int) else remainder(self.trips, self.limit, scope, state)

        def body(i: Any, state: State) -> State:
            return run_body(self.body, scope.bind(**{self.variable: i}), state)

        after = lax.fori_loop(
            0 if isinstance(trips, int) else np.int32(0), trips, body, hold(state) if self.holds else state
        )
        return (*after[:-1], state[-1]) if self.holds else after


@dataclass(frozen=True)
class While:
    """A while loop whose condition may hold any statements; what they assign is gone when the condition is known."""

    variable: str  # counts the trips that were made
    test: Block_
    condition: Less
    limit: int
    body: Block_
    holds: bool = False

    def kinds(self) -> tuple[str, ...]:
        return ("while_test", "while") if self.test else ("while",)

    def python(self, out: Source) -> None:
        test = out.fresh("test")
        out.function(test, self.test, f"k, {STATE}", f"k < {self.limit} and {self.condition.python()}")
        with held(out, self.holds), out.block(f"for {self.variable} in turns(count()):  # while"):
            with out.block("with dropped():"):
                out.line(f"again = {test}({self.variable}, {STATE})")
            with out.block("if not again:"):
                out.line("break")
            out.body(self.body)

    def jax(self, scope: Scope, state: State) -> State:
        def test(carry: State) -> Any:
            k, *state = carry
            after = run_body(self.test, scope, tuple(state))
            return lax.bitwise_and(lax.lt(k, np.int32(self.limit)), self.condition.jax(scope, after))

        def body(carry: State) -> State:
            k, *state = carry
            return (k + 1, *run_body(self.body, scope.bind(**{self.variable: k}), tuple(state)))

        _, *after, x = lax.while_loop(test, body, (np.int32(0), *(hold(state) if self.holds else state)))
        return (*after, state[-1] if self.holds else x)


@dataclass(frozen=True)
class Scan:
    """A scan over `xs`, each shifted by `base`, with a closed-over constant; what it collects ends in `target`."""

    variable: str
    constant: str
    constant_value: Expression
    xs: tuple[int, ...]
    base: Expression
    reverse: bool
    unroll: int
    body: Block_
    result: Expression
    target: str

    def kinds(self) -> tuple[str, ...]:
        return ("scan_reverse" if self.reverse else "scan", *([f"scan_unroll_{self.unroll}"] * (self.unroll > 1)))

    def python(self, out: Source) -> None:
        xs, ys, j = out.fresh("xs"), out.fresh("ys"), out.fresh("j")
        out.line(f"{self.constant} = {self.constant_value.python()}")
        out.line(f"{xs} = [(y + {self.base.python()}) % {MODULUS} for y in {self.xs}]")
        out.line(f"{ys} = [0] * {len(self.xs)}")
        order = f"reversed(range({len(self.xs)}))" if self.reverse else f"range({len(self.xs)})"
        with out.block(f"for {j} in {order}:  # scan, unroll={self.unroll}"):
            out.line(f"{self.variable} = {xs}[{j}]")
            out.body(self.body)
            out.line(f"{ys}[{j}] = {self.result.python()}")
        out.line(f"{self.target} = fold({ys}, {self.target})")

    def jax(self, scope: Scope, state: State) -> State:
        inner = scope.bind(**{self.constant: self.constant_value.jax(scope, state)})

        def body(state: State, x: Any) -> tuple[State, Any]:
            here = inner.bind(**{self.variable: x})
            state = run_body(self.body, here, state)
            return state, self.result.jax(here, state)

        xs = shifted(self.xs, self.base.jax(scope, state))
        state, ys = lax.scan(body, state, xs, reverse=self.reverse, unroll=self.unroll)
        return assign(state, self.target, fold(ys, register(state, self.target)))


@dataclass(frozen=True)
class Map:
    """`lax.map`: every element sees the registers as they were before."""

    variable: str
    xs: tuple[int, ...]
    base: Expression
    body: Block_
    result: Expression
    target: str

    def kinds(self) -> tuple[str, ...]:
        return ("map",)

    def python(self, out: Source) -> None:
        name = out.fresh("map")
        out.function(name, self.body, f"{self.variable}, {STATE}", self.result.python())
        values = f"[(y + {self.base.python()}) % {MODULUS} for y in {self.xs}]"
        with out.block("with dropped():"):
            out.line(f"{self.target} = fold([{name}(y, {STATE}) for y in {values}], {self.target})")

    def jax(self, scope: Scope, state: State) -> State:
        def element(x: Any) -> Any:
            here = scope.bind(**{self.variable: x})
            return self.result.jax(here, run_body(self.body, here, state))

        ys = lax.map(element, shifted(self.xs, self.base.jax(scope, state)))
        return assign(state, self.target, fold(ys, register(state, self.target)))


@dataclass(frozen=True)
class AssociativeScan:
    """`lax.associative_scan`, without effects: sums of everything so far."""

    xs: tuple[int, ...]
    base: Expression
    target: str

    def kinds(self) -> tuple[str, ...]:
        return ("associative_scan",)

    def python(self, out: Source) -> None:
        xs = out.fresh("xs")
        out.line(f"{xs} = [(y + {self.base.python()}) % {MODULUS} for y in {self.xs}]")
        sums = f"[sum({xs}[:j + 1]) for j in range({len(self.xs)})]"
        out.line(f"{self.target} = fold({sums}, {self.target})  # associative_scan")

    def jax(self, scope: Scope, state: State) -> State:
        sums = lax.associative_scan(lax.add, shifted(self.xs, self.base.jax(scope, state)))
        return assign(state, self.target, fold(sums, register(state, self.target)))


@dataclass(frozen=True)
class Cond:
    test: Less
    then: Block_
    orelse: Block_

    def kinds(self) -> tuple[str, ...]:
        return ("cond",)

    def python(self, out: Source) -> None:
        with out.alternatives(self.then, self.orelse):
            out.branch(f"if {self.test.python()}:", 1, self.then)
            out.branch("else:", 0, self.orelse)

    def jax(self, scope: Scope, state: State) -> State:
        def branch(body: Block_) -> Callable[..., State]:
            return lambda *state: run_body(body, scope, state)

        return lax.cond(self.test.jax(scope, state), branch(self.then), branch(self.orelse), *state)


@dataclass(frozen=True)
class Switch:
    index: Expression
    branches: tuple[Block_, ...]

    def kinds(self) -> tuple[str, ...]:
        return ("switch",)

    def python(self, out: Source) -> None:
        index = out.fresh("index")
        out.line(f"{index} = ({self.index.python()}) % {len(self.branches)}")
        with out.alternatives(*self.branches):
            for number, body in enumerate(self.branches):
                out.branch(f"{'elif' if number else 'if'} {index} == {number}:", number, body)

    def jax(self, scope: Scope, state: State) -> State:
        def branch(body: Block_) -> Callable[..., State]:
            return lambda *state: run_body(body, scope, state)

        index = remainder(self.index, len(self.branches), scope, state)
        return lax.switch(index, [branch(body) for body in self.branches], *state)
