"""Expressions, each with its two readings: as Python source, and as a value of JAX."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import lax

from tests.oracle.jax_ import Scope, register
from tests.oracle.language import MODULUS, REGISTERS, Expression, State


@dataclass(frozen=True)
class Literal:
    value: int

    def python(self) -> str:
        return str(self.value)

    def jax(self, scope: Scope, state: State) -> Any:
        return np.int32(self.value)


@dataclass(frozen=True)
class Name:
    """A register, a read-only value of an enclosing statement, or `x` as an integer, where derivatives end."""

    name: str

    def python(self) -> str:
        return self.name

    def jax(self, scope: Scope, state: State) -> Any:
        if self.name == "x":
            return lax.convert_element_type(state[-1], np.int32)
        return register(state, self.name) if self.name in REGISTERS else scope.names[self.name]


@dataclass(frozen=True)
class Chain:
    """`x` itself, as the argument of an effect."""

    def python(self) -> str:
        return "float(x)"

    def jax(self, scope: Scope, state: State) -> Any:
        return state[-1]


@dataclass(frozen=True)
class Read:
    """The present value of a mutable ref."""

    ref: str

    def python(self) -> str:
        return f"{self.ref}[0]"

    def jax(self, scope: Scope, state: State) -> Any:
        return scope.names[self.ref][...]


@dataclass(frozen=True)
class Reference:
    """A mutable ref itself, as the argument of an effect."""

    ref: str

    def python(self) -> str:
        return f"{self.ref}[0]"

    def jax(self, scope: Scope, state: State) -> Any:
        return scope.names[self.ref]


@dataclass(frozen=True)
class Binary:
    operator: str
    left: Expression
    right: Expression

    def python(self) -> str:
        return f"({self.left.python()} {self.operator} {self.right.python()}) % {MODULUS}"

    def jax(self, scope: Scope, state: State) -> Any:
        left, right = self.left.jax(scope, state), self.right.jax(scope, state)
        if self.operator == "-":
            value = lax.add(lax.sub(left, right), np.int32(MODULUS))  # lax.rem takes the dividend's sign
        else:
            value = {"+": lax.add, "*": lax.mul}[self.operator](left, right)
        return lax.rem(value, np.int32(MODULUS))


@dataclass(frozen=True)
class Less:
    left: Expression
    right: Expression

    def python(self) -> str:
        return f"{self.left.python()} < {self.right.python()}"

    def jax(self, scope: Scope, state: State) -> Any:
        return lax.lt(self.left.jax(scope, state), self.right.jax(scope, state))


def names(tree: object) -> Iterator[str]:
    """The names in expressions."""
    if isinstance(tree, Name):
        yield tree.name
    elif isinstance(tree, tuple):
        for each in tree:
            yield from names(each)
    elif isinstance(tree, Binary | Less):
        yield from names((tree.left, tree.right))
