"""What is assigned: registers, and mutable refs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.oracle.jax_ import Scope, assign, run_body
from tests.oracle.language import STATE, Block_, Expression, State

if TYPE_CHECKING:
    from tests.oracle.source import Source


@dataclass(frozen=True)
class Assign:
    target: str
    value: Expression

    def kinds(self) -> tuple[str, ...]:
        return ("assign",)

    def python(self, out: Source) -> None:
        out.line(f"{self.target} = {self.value.python()}")

    def jax(self, scope: Scope, state: State) -> State:
        return assign(state, self.target, self.value.jax(scope, state))


@dataclass(frozen=True)
class RefBlock:
    """A block with a mutable ref of its own, made by `jax.new_ref` or by Pallas' `run_state`."""

    ref: str
    initial: Expression
    made_by: str
    body: Block_
    target: str

    def kinds(self) -> tuple[str, ...]:
        return (self.made_by,)

    def python(self, out: Source) -> None:
        out.line(f"{self.ref} = [{self.initial.python()}]  # {self.made_by}")
        out.body(self.body)
        out.line(f"{self.target} = {self.ref}[0]")

    def jax(self, scope: Scope, state: State) -> State:
        initial = self.initial.jax(scope, state)
        if self.made_by == "run_state":
            final, *state_after = self._run_state(scope, initial, state)
            return assign(tuple(state_after), self.target, final)
        ref = jax.new_ref(jnp.asarray(initial))
        state = run_body(self.body, scope.bind(**{self.ref: ref}), state)
        return assign(state, self.target, ref[...] if self.made_by == "new_ref" else jax.freeze(ref))

    def _run_state(self, scope: Scope, initial: Any, state: State) -> State:
        from jax.experimental import pallas  # takes a second to import and few programs need it

        def body(refs: tuple[Any, ...]) -> None:
            ref, *registers = refs
            state = tuple(register[...] for register in registers)
            after = run_body(self.body, scope.bind(**{self.ref: ref}), state)
            for register, value in zip(registers, after, strict=True):
                register[...] = value

        return tuple(pallas.run_state(body)((initial, *state)))


@dataclass(frozen=True)
class Write:
    ref: str
    value: Expression

    def kinds(self) -> tuple[str, ...]:
        return ("write",)

    def python(self, out: Source) -> None:
        out.line(f"{self.ref}[0] = {self.value.python()}")

    def jax(self, scope: Scope, state: State) -> State:
        scope.names[self.ref][...] = self.value.jax(scope, state)
        return state


@dataclass(frozen=True)
class OptimizationBarrier:
    def kinds(self) -> tuple[str, ...]:
        return ("optimization_barrier",)

    def python(self, out: Source) -> None:
        out.line(f"{STATE} = {STATE}  # optimization_barrier")

    def jax(self, scope: Scope, state: State) -> State:
        return tuple(lax.optimization_barrier(state))
