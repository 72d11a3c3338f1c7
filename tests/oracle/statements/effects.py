"""Prints, log events and checks."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tests.oracle.jax_ import Scope, stacked
from tests.oracle.language import EFFECTS, Expression, State

if TYPE_CHECKING:
    from tests.oracle.expressions import Less
    from tests.oracle.source import Source


@dataclass(frozen=True)
class Effect:
    """An effect whose line is its label, unique in the program, and the values of its operands."""

    kind: str
    label: str
    operands: tuple[Expression, ...]

    def kinds(self) -> tuple[str, ...]:
        return (self.kind,)

    def python(self, out: Source) -> None:
        out.line(f"{self.kind}({', '.join([repr(self.label), *(operand.python() for operand in self.operands)])})")

    def jax(self, scope: Scope, state: State) -> State:
        scope.runner.emit[self.kind](self.label, tuple(operand.jax(scope, state) for operand in self.operands))
        return state


@dataclass(frozen=True)
class Filtered:
    """A print of which not all are shown: one of `every`, so many at `first`, once, and where a test holds."""

    label: str
    operands: tuple[Expression, ...]
    every: int
    first: int
    once: bool
    test: Less | None
    kind: ClassVar[str] = "filtered"

    def kinds(self) -> tuple[str, ...]:
        asked = {"every": self.every > 1, "first": self.first, "once": self.once, "when": self.test is not None}
        return (self.kind, *(f"filtered_{name}" for name, is_asked in asked.items() if is_asked))

    def python(self, out: Source) -> None:
        test = "True" if self.test is None else self.test.python()
        values = (operand.python() for operand in self.operands)
        out.line(
            f"filtered({', '.join([repr(self.label), *map(repr, (self.every, self.first, self.once)), test, *values])})"
        )

    def jax(self, scope: Scope, state: State) -> State:
        operands = tuple(operand.jax(scope, state) for operand in self.operands)
        when = None if self.test is None else self.test.jax(scope, state)
        scope.runner.filtered(self.label, self.every, self.first, self.once, when, operands)
        return state


@dataclass(frozen=True)
class Log:
    """An event with fields: each operand by itself, and all of them as an array if it is asked for."""

    kind: str
    label: str
    level: str
    operands: tuple[Expression, ...]
    array: bool

    def kinds(self) -> tuple[str, ...]:
        return (self.kind, *(["log_array"] * self.array), *(["log_below"] * (self.level == "DEBUG")))

    def python(self, out: Source) -> None:
        values = [operand.python() for operand in self.operands]
        fields = [f"x{j}={value}" for j, value in enumerate(values)]
        if self.array:
            fields.append(f"y=[{', '.join(values)}]")
        out.line(f"{self.kind}({', '.join([repr(self.label), repr(self.level), *fields])})")

    def jax(self, scope: Scope, state: State) -> State:
        values = [operand.jax(scope, state) for operand in self.operands]
        fields = {f"x{j}": value for j, value in enumerate(values)}
        if self.array:
            fields["y"] = stacked(values)
        scope.runner.log(self.label, getattr(logging, self.level), EFFECTS[self.kind], fields)
        return state


@dataclass(frozen=True)
class Fails:
    """A custom call that fails where a test holds, and says its label."""

    label: str
    test: Less
    kind: ClassVar[str] = "native_fails"

    def kinds(self) -> tuple[str, ...]:
        return (self.kind,)

    def python(self, out: Source) -> None:
        out.line(f"native_fails({self.label!r}, {self.test.python()})")

    def jax(self, scope: Scope, state: State) -> State:
        scope.runner.fail(self.label, self.test.jax(scope, state))
        return state


@dataclass(frozen=True)
class Check:
    """A check: its label and the values of its operands are what it raises where it does not hold."""

    label: str
    test: Less
    operands: tuple[Expression, ...]
    kind: ClassVar[str] = "check"

    def kinds(self) -> tuple[str, ...]:
        return (self.kind,)

    def python(self, out: Source) -> None:
        values = (operand.python() for operand in self.operands)
        out.line(f"check({', '.join([repr(self.label), self.test.python(), *values])})")

    def jax(self, scope: Scope, state: State) -> State:
        operands = [operand.jax(scope, state) for operand in self.operands]
        scope.runner.check(self.test.jax(scope, state), " ".join([self.label, *["{}"] * len(operands)]), *operands)
        return state
