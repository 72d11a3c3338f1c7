"""Blocks that are called: functions, wrappers, `vmap`, and the solver of a linear system."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.oracle.jax_ import IDENTITIES, WRAPPERS, Scope, assign, fold, hold, register, run_body, shifted, wrap
from tests.oracle.language import MODULUS, STATE, Block_, Expression, State
from tests.oracle.source import Source, call


@dataclass(frozen=True)
class Call:
    """A call of one of the program's inner jitted functions; with `keep` false only its effects are wanted."""

    function: str
    keep: bool

    def kinds(self) -> tuple[str, ...]:
        return ("call",) if self.keep else ("call_dropped",)

    def python(self, out: Source) -> None:
        call(out, f"{self.function}(n, {STATE})", self.keep)

    def jax(self, scope: Scope, state: State) -> State:
        result = scope.functions[self.function](scope.names["n"], *state)
        return result if self.keep else state


@dataclass(frozen=True)
class Wrapped:
    """A block under one of `WRAPPERS`; with `keep` false its results are unused and only its effects are wanted."""

    wrapper: str
    keep: bool
    body: Block_

    def kinds(self) -> tuple[str, ...]:
        return (self.wrapper, *(["dropped_result"] * (not self.keep)))

    def python(self, out: Source) -> None:
        name = out.fresh(self.wrapper)
        out.function(name, self.body)
        call(out, f"{name}({STATE})", self.keep, self.wrapper not in IDENTITIES)

    def jax(self, scope: Scope, state: State) -> State:
        result = WRAPPERS[self.wrapper](scope, lambda *state: run_body(self.body, scope, state))(*state)
        return result if self.keep else state


@dataclass(frozen=True)
class Vmap:
    """A `vmap` over `xs`: at every point of the body the lanes come in their order. Their `x` are added up."""

    variable: str
    xs: tuple[int, ...]
    base: Expression
    body: Block_
    result: Expression
    target: str
    apart: bool = False  # whether each lane has an `x` of its own: JAX adds up the slopes of lanes that share one

    def kinds(self) -> tuple[str, ...]:
        return ("vmap",)

    def python(self, out: Source) -> None:
        name = out.fresh("lane")
        out.function(name, self.body, f"{self.variable}, {STATE}", f"{self.result.python()}, x")
        ys, values = out.fresh("ys"), f"[(y + {self.base.python()}) % {MODULUS} for y in {self.xs}]"
        out.line(f"{ys}, x = lockstep({self.variable!r}, {name}, {values}, {STATE})  # vmap")
        out.line(f"{self.target} = fold({ys}, {self.target})")

    def jax(self, scope: Scope, state: State) -> State:
        def lane(x: Any) -> Any:
            here = scope.bind(**{self.variable: x})
            own = lax.add(state[-1], lax.convert_element_type(lax.mul(x, np.int32(0)), np.float32))
            after = run_body(self.body, here, (*state[:-1], own) if self.apart else state)
            return self.result.jax(here, after), after[-1]

        ys, x = jax.vmap(lane)(shifted(self.xs, self.base.jax(scope, state)))
        state = (*state[:-1], wrap(jnp.sum(x)))
        return assign(state, self.target, fold(ys, register(state, self.target)))


@dataclass(frozen=True)
class Solve:
    """A `custom_linear_solve` of a diagonal system; with a `residual` the solver evaluates the operator once."""

    variable: str  # inside the solver: the right-hand side, made small
    value: Expression
    diagonal: int
    body: Block_
    residual: Block_
    target: str

    def kinds(self) -> tuple[str, ...]:
        return ("solve", "solve_residual") if self.residual else ("solve",)

    def python(self, out: Source) -> None:
        solve, residual = out.fresh("solve"), out.fresh("residual")
        if self.residual:
            out.function(residual, self.residual)
        with out.block(f"def {solve}(right, {STATE}):"):
            out.line(f"{self.variable}, entry = right % {MODULUS}, ({STATE})")
            out.body(self.body)
            if self.residual:
                out.line(f"{residual}(*entry)")
            out.line(f"return right // {self.diagonal}")
        with out.block("with held():"):
            out.line(f"{self.target} = {solve}({self.diagonal} * ({self.value.python()}), {STATE})")

    def jax(self, scope: Scope, state: State) -> State:
        diagonal = np.float32(self.diagonal)

        def operator(x: Any) -> Any:
            run_body(self.residual, scope, hold(state))
            return lax.mul(x, diagonal)

        def solve(matvec: Callable[[Any], Any], b: Any) -> Any:
            value = lax.rem(lax.convert_element_type(b, np.int32), np.int32(MODULUS))
            run_body(self.body, scope.bind(**{self.variable: value}), hold(state))
            if self.residual:
                matvec(b)
            return lax.div(b, diagonal)

        b = lax.mul(lax.convert_element_type(self.value.jax(scope, state), np.float32), diagonal)
        x = lax.custom_linear_solve(operator, b, solve)
        return assign(state, self.target, lax.convert_element_type(x, np.int32))
