"""The order oracle: random programs with side effects, each read twice.

A program here is a small tree of frozen dataclasses. `render` turns it into ordinary Python source, and running that
source on one thread is what the library promises to look like; `to_jax` turns it into a function for `effects.jit`.
`check` dispatches a short sequence of programs without waiting, meets the barrier once, and compares final states and
lines. Ordered lines must agree one by one; unordered ones as a multiset, and they may stand anywhere between the
ordered ones.

Each statement holds its two readings side by side, `python` and `jax`, and nothing else knows what it means. To add a
kind of effect, add an entry to `EFFECTS` and one to `library`; to add a statement, add a class and a production to
`_Generator`. The generator asks a `Draw` for every decision, so `random.Random` and hypothesis share it.

    python -m tests.oracle --programs 5000 --seed 0 --jobs 2
    python -m tests.oracle --seed 0 --only 1234          # one sequence again, with its source
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import difflib
import faulthandler
import functools
import gc
import io
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

T = TypeVar("T")
State = tuple[Any, ...]

MODULUS = 97  # small and prime: products stay far below int32 and do not collapse to zero
REGISTERS = ("a", "b", "c")

# Python source that every rendered program starts with; `ordered`, `unordered`, ... come from EFFECTS.
PRELUDE = """\
def fold(values, register):
    return (sum((j + 1) * y for j, y in enumerate(values)) + register) % 97
"""

# Effect kind -> whether its lines keep their place. In rendered source the kind is the name of a function.
EFFECTS: Mapping[str, bool] = {"ordered": True, "unordered": False}


# ---------------------------------------------------------------------------------------------------------------------
# What the two readings share


@dataclass(frozen=True)
class Runner:
    """What a program runs on: the library, or something else that makes the same promise."""

    jit: Callable[[Callable[..., Any]], Callable[..., Any]]
    emit: Mapping[str, Callable[[str, tuple[Any, ...]], None]]  # effect kind -> emit(label, operands)
    barrier: Callable[[], object]


@dataclass(frozen=True)
class Scope:
    """What a statement's JAX reading may refer to besides the registers."""

    runner: Runner
    functions: Mapping[str, Callable[..., State]]
    names: Mapping[str, Any]  # read-only values and mutable refs, closed over by whatever is inside

    def bind(self, **names: Any) -> Scope:
        return dataclasses.replace(self, names={**self.names, **names})


class Source:
    """Python source under construction: lines, their indentation, and numbers for helper functions."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0
        self.numbers: collections.Counter[str] = collections.Counter()

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self.depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.line("pass")
        self.depth -= 1

    def fresh(self, stem: str) -> str:
        self.numbers[stem] += 1
        return f"{stem}_{self.numbers[stem]}"

    def function(self, name: str, body: Block_, parameters: str = "a, b, c", result: str = "a, b, c") -> None:
        with self.block(f"def {name}({parameters}):"):
            self.body(body)
            self.line(f"return {result}")

    def body(self, body: Block_) -> None:
        for statement in body:
            statement.python(self)


def run_body(body: Block_, scope: Scope, state: State) -> State:
    for statement in body:
        state = statement.jax(scope, state)
    return state


def assign(state: State, register: str, value: Any) -> State:
    index = REGISTERS.index(register)
    return (*state[:index], value, *state[index + 1 :])


def fold(values: Any, register: Any) -> Any:
    """`PRELUDE`'s `fold` in JAX: the result depends on where in `values` each value stands."""
    weights = np.arange(1, len(values) + 1, dtype=np.int32)
    total = lax.reduce(lax.mul(values, weights), np.int32(0), lax.add, (0,))
    return lax.rem(lax.add(total, register), np.int32(MODULUS))


# ---------------------------------------------------------------------------------------------------------------------
# Expressions


class Expression(Protocol):
    def python(self) -> str: ...

    def jax(self, scope: Scope, state: State) -> Any: ...


@dataclass(frozen=True)
class Literal:
    value: int

    def python(self) -> str:
        return str(self.value)

    def jax(self, scope: Scope, state: State) -> Any:
        return np.int32(self.value)


@dataclass(frozen=True)
class Name:
    """A register, or a read-only value of an enclosing statement."""

    name: str

    def python(self) -> str:
        return self.name

    def jax(self, scope: Scope, state: State) -> Any:
        return state[REGISTERS.index(self.name)] if self.name in REGISTERS else scope.names[self.name]


@dataclass(frozen=True)
class Read:
    """The present value of a mutable ref."""

    ref: str

    def python(self) -> str:
        return f"{self.ref}[0]"

    def jax(self, scope: Scope, state: State) -> Any:
        return scope.names[self.ref][...]


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


def remainder(expression: Expression, modulus: int, scope: Scope, state: State) -> Any:
    return lax.rem(expression.jax(scope, state), np.int32(modulus))


# ---------------------------------------------------------------------------------------------------------------------
# Statements


class Statement(Protocol):
    """One statement: its Python reading, its JAX reading, and the names under which it is counted."""

    def python(self, out: Source) -> None: ...

    def jax(self, scope: Scope, state: State) -> State: ...

    def kinds(self) -> tuple[str, ...]: ...


Block_ = tuple[Statement, ...]


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
class Fori:
    """A `fori_loop`: a `while` where the number of trips depends on data, a `scan` where it is known."""

    variable: str
    trips: Expression | int
    limit: int
    body: Block_

    def kinds(self) -> tuple[str, ...]:
        return ("fori_static" if isinstance(self.trips, int) else "fori_dynamic",)

    def python(self, out: Source) -> None:
        trips = self.trips if isinstance(self.trips, int) else f"({self.trips.python()}) % {self.limit}"
        with out.block(f"for {self.variable} in range({trips}):"):
            out.body(self.body)

    def jax(self, scope: Scope, state: State) -> State:
        trips = self.trips if isinstance(self.trips, int) else remainder(self.trips, self.limit, scope, state)

        def body(i: Any, state: State) -> State:
            return run_body(self.body, scope.bind(**{self.variable: i}), state)

        return lax.fori_loop(0 if isinstance(trips, int) else np.int32(0), trips, body, state)


@dataclass(frozen=True)
class While:
    """A while loop whose condition may hold any statements; what they assign is gone when the condition is known."""

    variable: str  # counts the trips that were made
    test: Block_
    condition: Less
    limit: int
    body: Block_

    def kinds(self) -> tuple[str, ...]:
        return ("while_test", "while") if self.test else ("while",)

    def python(self, out: Source) -> None:
        test = out.fresh("test")
        out.function(test, self.test, "k, a, b, c", f"k < {self.limit} and {self.condition.python()}")
        out.line(f"{self.variable} = 0")
        with out.block(f"while {test}({self.variable}, a, b, c):"):
            out.body(self.body)
            out.line(f"{self.variable} += 1")

    def jax(self, scope: Scope, state: State) -> State:
        def test(carry: State) -> Any:
            k, *state = carry
            after = run_body(self.test, scope, tuple(state))
            return lax.bitwise_and(lax.lt(k, np.int32(self.limit)), self.condition.jax(scope, after))

        def body(carry: State) -> State:
            k, *state = carry
            return (k + 1, *run_body(self.body, scope.bind(**{self.variable: k}), tuple(state)))

        return lax.while_loop(test, body, (np.int32(0), *state))[1:]


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
        out.line(f"{xs} = [(x + {self.base.python()}) % {MODULUS} for x in {self.xs}]")
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
        return assign(state, self.target, fold(ys, state[REGISTERS.index(self.target)]))


def shifted(xs: tuple[int, ...], base: Any) -> Any:
    return lax.rem(lax.add(np.array(xs, np.int32), lax.broadcast(base, (len(xs),))), np.int32(MODULUS))


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
        out.function(name, self.body, f"{self.variable}, a, b, c", self.result.python())
        values = f"[(x + {self.base.python()}) % {MODULUS} for x in {self.xs}]"
        out.line(f"{self.target} = fold([{name}(x, a, b, c) for x in {values}], {self.target})")

    def jax(self, scope: Scope, state: State) -> State:
        def element(x: Any) -> Any:
            here = scope.bind(**{self.variable: x})
            return self.result.jax(here, run_body(self.body, here, state))

        ys = lax.map(element, shifted(self.xs, self.base.jax(scope, state)))
        return assign(state, self.target, fold(ys, state[REGISTERS.index(self.target)]))


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
        out.line(f"{xs} = [(x + {self.base.python()}) % {MODULUS} for x in {self.xs}]")
        sums = f"[sum({xs}[:j + 1]) for j in range({len(self.xs)})]"
        out.line(f"{self.target} = fold({sums}, {self.target})  # associative_scan")

    def jax(self, scope: Scope, state: State) -> State:
        sums = lax.associative_scan(lax.add, shifted(self.xs, self.base.jax(scope, state)))
        return assign(state, self.target, fold(sums, state[REGISTERS.index(self.target)]))


@dataclass(frozen=True)
class Cond:
    test: Less
    then: Block_
    orelse: Block_

    def kinds(self) -> tuple[str, ...]:
        return ("cond",)

    def python(self, out: Source) -> None:
        with out.block(f"if {self.test.python()}:"):
            out.body(self.then)
        with out.block("else:"):
            out.body(self.orelse)

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
        for number, body in enumerate(self.branches):
            with out.block(f"{'elif' if number else 'if'} {index} == {number}:"):
                out.body(body)

    def jax(self, scope: Scope, state: State) -> State:
        def branch(body: Block_) -> Callable[..., State]:
            return lambda *state: run_body(body, scope, state)

        index = remainder(self.index, len(self.branches), scope, state)
        return lax.switch(index, [branch(body) for body in self.branches], *state)


@dataclass(frozen=True)
class Call:
    """A call of one of the program's inner jitted functions; with `keep` false only its effects are wanted."""

    function: str
    keep: bool

    def kinds(self) -> tuple[str, ...]:
        return ("call",) if self.keep else ("call_dropped",)

    def python(self, out: Source) -> None:
        out.line(f"{'a, b, c = ' if self.keep else ''}{self.function}(n, a, b, c)")

    def jax(self, scope: Scope, state: State) -> State:
        result = scope.functions[self.function](scope.names["n"], *state)
        return result if self.keep else state


def _custom_jvp(scope: Scope, fun: Callable[..., State]) -> Callable[..., State]:
    wrapped = jax.custom_jvp(fun)
    wrapped.defjvp(lambda primals, tangents: (wrapped(*primals), tangents))
    return wrapped


def _custom_vjp(scope: Scope, fun: Callable[..., State]) -> Callable[..., State]:
    wrapped = jax.custom_vjp(fun)
    wrapped.defvjp(lambda *primals: (wrapped(*primals), None), lambda _, cotangents: cotangents)
    return wrapped


def _named_scope(scope: Scope, fun: Callable[..., State]) -> Callable[..., State]:
    def call(*state: Any) -> State:
        with jax.named_scope("scope"):
            return fun(*state)

    return call


# What a block of statements can be wrapped in without changing what it means: name -> the wrapped function.
WRAPPERS: Mapping[str, Callable[[Scope, Callable[..., State]], Callable[..., State]]] = {
    "jit": lambda scope, fun: jax.jit(fun),
    "inline_jit": lambda scope, fun: jax.jit(fun, inline=True),
    "effects_jit": lambda scope, fun: scope.runner.jit(fun),
    "remat": lambda scope, fun: jax.checkpoint(fun),
    "custom_jvp": _custom_jvp,
    "custom_vjp": _custom_vjp,
    "named_call": lambda scope, fun: jax.named_call(fun, name="named"),
    "named_scope": _named_scope,
}


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
        out.line(f"{'a, b, c = ' if self.keep else ''}{name}(a, b, c)")

    def jax(self, scope: Scope, state: State) -> State:
        result = WRAPPERS[self.wrapper](scope, lambda *state: run_body(self.body, scope, state))(*state)
        return result if self.keep else state


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
        with out.block(f"def {solve}(right, a, b, c):"):
            out.line(f"{self.variable}, entry = right % {MODULUS}, (a, b, c)")
            out.body(self.body)
            if self.residual:
                out.line(f"{residual}(*entry)")
            out.line(f"return right // {self.diagonal}")
        out.line(f"{self.target} = {solve}({self.diagonal} * ({self.value.python()}), a, b, c)")

    def jax(self, scope: Scope, state: State) -> State:
        diagonal = np.float32(self.diagonal)

        def operator(x: Any) -> Any:
            run_body(self.residual, scope, state)
            return lax.mul(x, diagonal)

        def solve(matvec: Callable[[Any], Any], b: Any) -> Any:
            value = lax.rem(lax.convert_element_type(b, np.int32), np.int32(MODULUS))
            run_body(self.body, scope.bind(**{self.variable: value}), state)
            if self.residual:
                matvec(b)
            return lax.div(b, diagonal)

        b = lax.mul(lax.convert_element_type(self.value.jax(scope, state), np.float32), diagonal)
        x = lax.custom_linear_solve(operator, b, solve)
        return assign(state, self.target, lax.convert_element_type(x, np.int32))


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
        out.line("a, b, c = a, b, c  # optimization_barrier")

    def jax(self, scope: Scope, state: State) -> State:
        return tuple(lax.optimization_barrier(state))


# ---------------------------------------------------------------------------------------------------------------------
# Programs


@dataclass(frozen=True)
class Function:
    """An inner jitted function of the registers; it may call the functions before it."""

    name: str
    through: str  # which of WRAPPERS jits it
    body: Block_


@dataclass(frozen=True)
class Program:
    """A function of the dispatch number `n` and of the registers; nothing assigns `n`."""

    functions: tuple[Function, ...]
    body: Block_


@dataclass(frozen=True)
class Run:
    """One dispatch of a program, from a state of its own or from what the dispatch before returned."""

    program: Program
    state: tuple[int, ...] | None


def render(program: Program) -> str:
    """The program as Python source: what it means, and what an error shows."""
    out = Source()
    for function in program.functions:
        out.line(f"# {function.through}")
        out.function(function.name, function.body, "n, a, b, c")
    out.function("program", program.body, "n, a, b, c")
    return "\n".join(out.lines) + "\n"


@functools.lru_cache(maxsize=64)
def _compiled(program: Program) -> Any:
    return compile(PRELUDE + render(program), "<program>", "exec")


def interpret(program: Program, state: Sequence[int], number: int = 0) -> tuple[tuple[int, ...], list[str]]:
    """The program's final state and its lines, found by running its source: no JAX takes part."""
    lines: list[str] = []
    namespace: dict[str, Any] = dict.fromkeys(EFFECTS, lambda *words: lines.append(" ".join(map(str, words))))
    exec(_compiled(program), namespace)
    return namespace["program"](number, *state), lines


def to_jax(program: Program, runner: Runner) -> Callable[..., State]:
    """The program as a function of `n` and the registers, to be jitted by `runner.jit`."""

    def traced(n: Any, *state: Any) -> State:
        functions: dict[str, Callable[..., State]] = {}

        def inner(body: Block_) -> Callable[..., State]:
            return lambda n, *state: run_body(body, Scope(runner, functions, {"n": n}), state)

        for function in program.functions:
            whole = Scope(runner, functions, {})
            functions[function.name] = WRAPPERS[function.through](whole, inner(function.body))
        return run_body(program.body, Scope(runner, functions, {"n": n}), state)

    return traced


def statements(tree: object) -> Iterator[Statement]:
    """Every statement below a node, in the order of the source."""
    if isinstance(tree, tuple):
        for item in tree:
            yield from statements(item)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        if hasattr(tree, "kinds"):
            yield tree  # type: ignore[misc]
        for part in dataclasses.fields(tree):
            yield from statements(getattr(tree, part.name))


# ---------------------------------------------------------------------------------------------------------------------
# Running and comparing


def library() -> Runner:
    """The library under test."""
    import effects as fx

    def emit(ordered: bool) -> Callable[[str, tuple[Any, ...]], None]:
        return lambda label, operands: fx.print(" ".join([label, *["{}"] * len(operands)]), *operands, ordered=ordered)

    return Runner(fx.jit, {"ordered": emit(True), "unordered": emit(False)}, fx.effects_barrier)


def plain_jax() -> Runner:
    """JAX's own ordered effects: slower, and right wherever JAX allows them. It checks the oracle, not the library."""

    def emit(ordered: bool) -> Callable[[str, tuple[Any, ...]], None]:
        def emit(label: str, operands: tuple[Any, ...]) -> None:
            jax.debug.print(" ".join([label, *["{}"] * len(operands)]), *operands, ordered=ordered)

        return emit

    return Runner(jax.jit, {"ordered": emit(True), "unordered": emit(False)}, jax.effects_barrier)


@dataclass
class Outcome:
    """What a sequence of dispatches left behind."""

    states: list[tuple[int, ...]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def expect(sequence: Sequence[Run]) -> Outcome:
    outcome = Outcome()
    state: tuple[int, ...] = ()
    for number, run in enumerate(sequence):
        state, lines = interpret(run.program, state if run.state is None else run.state, number)
        outcome.states.append(state)
        outcome.lines.extend(lines)
    return outcome


def observe(sequence: Sequence[Run], runner: Runner) -> Outcome:
    """Dispatches the programs one after another, waits once, and returns what came out."""
    jitted = {run.program: runner.jit(to_jax(run.program, runner)) for run in sequence}
    results: list[State] = []
    with contextlib.redirect_stdout(io.StringIO()) as written:
        for number, run in enumerate(sequence):
            state = results[-1] if run.state is None else tuple(map(np.int32, run.state))
            results.append(tuple(jitted[run.program](np.int32(number), *state)))
        runner.barrier()
    return Outcome([tuple(int(value) for value in state) for state in results], written.getvalue().splitlines())


def check(sequence: Sequence[Run], runner: Runner | None = None) -> Outcome:
    """Runs the sequence and raises an AssertionError that shows the programs and the difference, if there is one.

    Args:
      sequence: the dispatches, in order.
      runner: what to run on; the library unless given.

    Returns:
      What was expected, and seen.
    """
    expected = expect(sequence)
    try:
        seen = observe(sequence, library() if runner is None else runner)
    except Exception as error:
        raise AssertionError(f"the sequence failed\n\n{traceback.format_exc()}\n{describe(sequence)}") from error
    complaints = compare(expected, seen, _unordered_labels(sequence))
    if complaints:
        raise AssertionError("\n".join([*complaints, "", describe(sequence)]))
    return expected


def _unordered_labels(sequence: Sequence[Run]) -> set[str]:
    programs = tuple({run.program: None for run in sequence})
    return {s.label for s in statements(programs) if isinstance(s, Effect) and not EFFECTS[s.kind]}


def compare(expected: Outcome, seen: Outcome, unordered_labels: set[str]) -> list[str]:
    """What is wrong with `seen`, as texts; nothing if it keeps the promise."""

    def split(lines: Iterable[str]) -> tuple[list[str], collections.Counter[str]]:
        ordered: list[str] = []
        unordered: collections.Counter[str] = collections.Counter()
        for line in lines:
            if line.split(" ", 1)[0] in unordered_labels:
                unordered[line] += 1
            else:
                ordered.append(line)
        return ordered, unordered

    complaints = []
    for number, (want, got) in enumerate(zip(expected.states, seen.states, strict=True)):
        if want != got:
            complaints.append(f"dispatch {number} returned {got} and should have returned {want}")
    (want_ordered, want_unordered), (got_ordered, got_unordered) = split(expected.lines), split(seen.lines)
    if want_ordered != got_ordered:
        diff = difflib.unified_diff(want_ordered, got_ordered, "expected ordered lines", "seen", lineterm="", n=3)
        complaints.append("\n".join(diff))
    for line in sorted(want_unordered.keys() | got_unordered.keys()):
        want, got = want_unordered[line], got_unordered[line]
        if want != got:
            complaints.append(f"unordered line {line!r} was seen {got} times and should have been seen {want} times")
    return complaints


def describe(sequence: Sequence[Run]) -> str:
    """The sequence as Python source: each program once, then the dispatches."""
    numbers = {program: number for number, program in enumerate(dict.fromkeys(run.program for run in sequence))}
    sources = [f"# program {number}\n{render(program)}" for program, number in numbers.items()]
    runs = [
        f"# dispatch {number}: program {numbers[run.program]} from {run.state or 'the state before'}"
        for number, run in enumerate(sequence)
    ]
    return "\n".join([*sources, *runs])


# ---------------------------------------------------------------------------------------------------------------------
# Generating


class Draw(Protocol):
    """Where decisions come from. Simpler choices come first, so that hypothesis shrinks towards them."""

    def integer(self, low: int, high: int) -> int: ...

    def choice(self, options: Sequence[T]) -> T: ...


@dataclass(frozen=True)
class RandomDraw:
    rng: random.Random

    def integer(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def choice(self, options: Sequence[T]) -> T:
        return self.rng.choice(options)


@dataclass(frozen=True)
class HypothesisDraw:
    draw: Callable[[st.SearchStrategy[Any]], Any]

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def choice(self, options: Sequence[T]) -> T:
        return self.draw(st.sampled_from(options))


@dataclass(frozen=True)
class Place:
    """Where a statement is generated: what is visible, and what JAX allows there."""

    depth: int  # levels that may still be nested
    values: tuple[str, ...] = ("n",)
    refs: tuple[str, ...] = ()
    may_make: frozenset[str] = frozenset({"new_ref", "freeze", "run_state"})

    def inside(self, *values: str) -> Place:
        return dataclasses.replace(self, depth=self.depth - 1, values=self.values + values)

    def without_refs(self, *, may_make: Iterable[str] = ()) -> Place:
        return dataclasses.replace(self, refs=(), may_make=self.may_make & frozenset(may_make))


class _Generator:
    """One program, built from a `Draw`'s decisions."""

    def __init__(self, draw: Draw, prefix: str):
        self.draw = draw
        self.prefix = prefix
        self.labels = 0
        self.variables = 0
        self.left = 0  # statements that may still be made
        self.functions: list[Function] = []
        self.leaves: list[Callable[[Place], Statement]] = [
            *[self.ordered] * 5,
            *[self.assign] * 3,
            *[self.unordered] * 2,
            self.optimization_barrier,
        ]
        self.nests: list[Callable[[Place], Statement]] = [
            *[self.cond] * 3,
            *[self.fori] * 3,
            *[self.scan] * 4,
            *[self.while_] * 3,
            *[self.switch] * 2,
            *[self.wrapped] * 6,
            *[self.ref_block] * 3,
            *[self.solve] * 2,
            self.map,
        ]

    def program(self, size: int) -> Program:
        for number in range(self.draw.choice((0, 0, 1, 2))):
            self.left = self.draw.integer(1, 3)
            body = self.block(Place(depth=1), 3, effect=True)
            self.functions.append(Function(f"f{number}", self.draw.choice(("jit", "jit", "effects_jit")), body))
        self.left = size
        body: Block_ = ()
        while self.left > 0:
            body += (self.statement(Place(depth=3)),)
        last = Effect("ordered", self.label(), tuple(map(Name, ("n", *REGISTERS))))
        return Program(tuple(self.functions), (*body, last))

    def block(self, place: Place, most: int = 3, effect: bool = False) -> Block_:
        """A few statements; more often than not with an effect among them."""
        body: list[Statement] = []
        if effect or self.draw.integer(0, 2) > 0:
            body.append(self.ordered(place))
        for _ in range(self.draw.integer(0, most)):
            if self.left > 0:
                body.append(self.statement(place))
        if len(body) > 1 and self.draw.integer(0, 1):
            body.append(body.pop(0))
        return tuple(body)

    def statement(self, place: Place) -> Statement:
        self.left -= 1
        if place.depth > 0 and self.left > 0 and self.draw.integer(0, 1):
            return self.draw.choice(self.nests)(place)
        leaves = list(self.leaves)
        if place.refs:
            leaves += [self.write] * 3
        if self.callable_from(place):
            leaves += [self.call] * 4
        if place.depth > 1:
            leaves.append(self.associative_scan)
        return self.draw.choice(leaves)(place)

    # Names and expressions

    def label(self) -> str:
        self.labels += 1
        return f"{self.prefix}{self.labels}"

    def variable(self, stem: str) -> str:
        self.variables += 1
        return f"{stem}{self.variables}"

    def atom(self, place: Place) -> Expression:
        """A register or a value, seldom a literal."""
        kind = self.draw.integer(0, 5)
        if kind == 5:
            return Literal(self.draw.integer(0, 9))
        if kind == 4 and place.refs:
            return Read(self.draw.choice(place.refs))
        return Name(self.draw.choice((*REGISTERS, *place.values, *REGISTERS)))

    def expression(self, place: Place) -> Expression:
        operator = self.draw.choice(("", "+", "-", "*"))
        return Binary(operator, self.atom(place), self.atom(place)) if operator else self.atom(place)

    def less(self, place: Place) -> Less:
        return Less(Name(self.register()), self.draw.choice((self.atom(place), Literal(48))))

    def xs(self) -> tuple[int, ...]:
        return tuple(self.draw.integer(0, 9) for _ in range(self.draw.choice((2, 3, 1, 4, 0))))

    def register(self) -> str:
        return self.draw.choice(REGISTERS)

    # Leaves

    def effect(self, place: Place, kind: str) -> Statement:
        operands = tuple(self.expression(place) for _ in range(self.draw.choice((1, 2, 2, 3, 0))))
        if place.refs and self.draw.integer(0, 1):
            operands += (Read(self.draw.choice(place.refs)),)
        return Effect(kind, self.label(), operands)

    def ordered(self, place: Place) -> Statement:
        return self.effect(place, "ordered")

    def unordered(self, place: Place) -> Statement:
        return self.effect(place, "unordered")

    def assign(self, place: Place) -> Statement:
        return Assign(self.register(), self.expression(place))

    def optimization_barrier(self, place: Place) -> Statement:
        return OptimizationBarrier()

    def associative_scan(self, place: Place) -> Statement:
        return AssociativeScan((*self.xs(), 1), self.atom(place), self.register())

    def write(self, place: Place) -> Statement:
        return Write(self.draw.choice(place.refs), self.expression(place))

    def callable_from(self, place: Place) -> list[str]:
        """The functions that make no ref where JAX allows none."""
        made = {f.name: {s.made_by for s in statements(f) if isinstance(s, RefBlock)} for f in self.functions}
        calls = {f.name: {s.function for s in statements(f) if isinstance(s, Call)} for f in self.functions}
        for name in made:  # in order of definition, so what is called is complete
            made[name] = made[name].union(*(made[other] for other in calls[name]))
        return [name for name in made if made[name] <= place.may_make]

    def call(self, place: Place) -> Statement:
        return Call(self.draw.choice(self.callable_from(place)), bool(self.draw.choice((1, 1, 1, 0))))

    # Statements with statements inside

    def fori(self, place: Place) -> Statement:
        variable = self.variable("i")
        trips = self.draw.choice((self.expression(place), self.draw.integer(0, 3)))
        return Fori(variable, trips, 4, self.block(place.inside(variable)))

    def while_(self, place: Place) -> Statement:
        variable = self.variable("k")
        # JAX takes no ref of an enclosing block into a condition: it never sees what the body writes.
        test_place = dataclasses.replace(place.inside(), refs=())
        test = self.block(test_place, 2) if self.draw.integer(0, 1) else ()
        return While(variable, test, self.less(test_place), 3, self.block(place.inside(variable)))

    def scan(self, place: Place) -> Statement:
        variable, constant = self.variable("x"), self.variable("q")
        inner = place.inside(variable, constant)
        reverse, unroll = bool(self.draw.integer(0, 1)), self.draw.choice((1, 1, 2, 3))
        constant_value, base, xs = self.expression(place), self.atom(place), self.xs()
        body = self.block(inner)
        result, target = self.expression(inner), self.register()
        return Scan(variable, constant, constant_value, xs, base, reverse, unroll, body, result, target)

    def map(self, place: Place) -> Statement:
        variable = self.variable("x")
        inner = place.inside(variable)
        xs, base = self.xs(), self.atom(place)
        return Map(variable, xs, base, self.block(inner), self.expression(inner), self.register())

    def cond(self, place: Place) -> Statement:
        return Cond(self.less(place), self.block(place.inside(), 2), self.block(place.inside(), 2))

    def switch(self, place: Place) -> Statement:
        branches = tuple(self.block(place.inside(), 2) for _ in range(self.draw.choice((2, 3))))
        return Switch(self.expression(place), branches)

    def wrapped(self, place: Place) -> Statement:
        wrapper = self.draw.choice(tuple(WRAPPERS))
        keep = bool(self.draw.choice((1, 1, 1, 0)))
        inner = place.inside()
        if wrapper == "custom_jvp":
            inner = inner.without_refs()  # JAX cannot discharge it
        return Wrapped(wrapper, keep, self.block(inner))

    def solve(self, place: Place) -> Statement:
        variable = self.variable("v")
        inner = place.inside().without_refs()  # JAX rejects it
        body = self.block(dataclasses.replace(inner, values=(*inner.values, variable)), 2, effect=True)
        residual = self.block(inner, 1) if self.draw.integer(0, 1) else ()
        return Solve(variable, self.expression(place), self.draw.choice((1, 2, 4)), body, residual, self.register())

    def ref_block(self, place: Place) -> Statement:
        if not place.may_make:
            return self.wrapped(place)
        ref = self.variable("m")
        made_by = self.draw.choice(sorted(place.may_make))
        inner = dataclasses.replace(place.inside(), refs=(*place.refs, ref))
        if made_by == "run_state":
            inner = dataclasses.replace(inner, may_make=frozenset())  # JAX cannot lower a ref made inside
        initial = self.expression(place)
        return RefBlock(ref, initial, made_by, (*self.block(inner), self.write(inner)), self.register())


# Everything `Statement.kinds` can answer: the generator must reach all of it.
KINDS = frozenset(
    {
        *EFFECTS,
        *WRAPPERS,
        *("assign", "optimization_barrier", "associative_scan", "map", "call", "call_dropped", "dropped_result"),
        *("fori_static", "fori_dynamic", "while", "while_test", "cond", "switch"),
        *("scan", "scan_reverse", "scan_unroll_2", "scan_unroll_3"),
        *("solve", "solve_residual", "new_ref", "freeze", "run_state", "write"),
    }
)


def _program(draw: Draw, size: int, prefix: str) -> Program:
    return _Generator(draw, prefix).program(size)


def _sequence(draw: Draw, size: int) -> tuple[Run, ...]:
    """One to four dispatches: a program, then the same again or a smaller one."""
    programs = [_program(draw, size, "A")]
    runs: list[Run] = []
    for number in range(draw.choice((1, 2, 3, 4))):
        if number == 0 or draw.integer(0, 3) < 3:
            program = draw.choice(programs)
        else:
            program = _program(draw, max(2, size // 2), "ABCD"[len(programs)])
            programs.append(program)
        fresh = number == 0 or draw.integer(0, 1) == 0
        runs.append(Run(program, tuple(draw.integer(0, MODULUS - 1) for _ in REGISTERS) if fresh else None))
    return tuple(runs)


def generate(rng: random.Random, size: int) -> Program:
    """A random program of about `size` statements."""
    return _program(RandomDraw(rng), size, "A")


def generate_sequence(rng: random.Random) -> tuple[Run, ...]:
    """A random sequence for `check`."""
    return _sequence(RandomDraw(rng), rng.randint(4, 14))


@st.composite
def sequences(draw: Callable[[st.SearchStrategy[Any]], Any], max_size: int = 12) -> tuple[Run, ...]:
    """The hypothesis strategy for `check`: what it finds, it shrinks."""
    return _sequence(HypothesisDraw(draw), draw(st.integers(2, max_size)))


def sequence_number(seed: int, number: int) -> tuple[Run, ...]:
    """Sequence `number` of the bulk run with `seed`: the same on every machine and for every number of jobs."""
    return generate_sequence(random.Random(f"{seed}:{number}"))


# ---------------------------------------------------------------------------------------------------------------------
# In bulk

CHUNK = 25  # sequences that share JAX's caches
STUCK_AFTER = 120.0  # seconds for one sequence
RUNNERS: Mapping[str, Callable[[], Runner]] = {"library": library, "jax": plain_jax}


@dataclass
class Tally:
    """What a chunk of sequences exercised, and what failed in it."""

    sequences: int = 0
    programs: int = 0
    dispatches: int = 0
    statements: collections.Counter[str] = field(default_factory=collections.Counter)
    fired: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)
    peak_kib: int = 0

    def count(self, sequence: Sequence[Run], lines: Iterable[str]) -> None:
        programs = tuple(dict.fromkeys(run.program for run in sequence))
        self.sequences += 1
        self.programs += len(programs)
        self.dispatches += len(sequence)
        for statement in statements(programs):
            self.statements.update(statement.kinds())
        effects = {s.label: s.kind for s in statements(programs) if isinstance(s, Effect)}
        self.fired.update(effects[line.split(" ", 1)[0]] for line in lines)

    def add(self, other: Tally) -> None:
        self.sequences += other.sequences
        self.programs += other.programs
        self.dispatches += other.dispatches
        self.statements += other.statements
        self.fired += other.fired
        self.failures += other.failures
        self.peak_kib = max(self.peak_kib, other.peak_kib)


def _run_chunk(seed: int, numbers: range, runner_name: str, notes: str) -> Tally:
    """Checks some sequences in a worker process, which leaves in `notes` what it is at, in case it dies."""
    tally = Tally()
    runner = RUNNERS[runner_name]()
    note = Path(notes, str(os.getpid()))
    for number in numbers:
        note.write_text(str(number))
        faulthandler.dump_traceback_later(STUCK_AFTER, exit=True)
        sequence = sequence_number(seed, number)
        try:
            lines = check(sequence, runner).lines
        except AssertionError as error:
            lines = []
            tally.failures.append((number, str(error)))
        tally.count(sequence, lines)
    faulthandler.cancel_dump_traceback_later()
    note.unlink()
    jax.clear_caches()
    gc.collect()
    tally.peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return tally


def _chunks(seed: int, programs: int) -> list[range]:
    """The numbers of as many sequences as hold that many programs, in chunks."""
    found = number = 0
    while found < programs:
        found += len({run.program for run in sequence_number(seed, number)})
        number += 1
    return [range(start, min(start + CHUNK, number)) for start in range(0, number, CHUNK)]


def _run_all(seed: int, programs: int, jobs: int, runner_name: str) -> tuple[Tally, bool]:
    """Runs everything in `jobs` processes; also answers whether every process lived to the end."""
    total, started, shown = Tally(), time.monotonic(), 0.0
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as notes,
        concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool,
    ):
        chunks = [pool.submit(_run_chunk, seed, chunk, runner_name, notes) for chunk in _chunks(seed, programs)]
        try:
            for future in concurrent.futures.as_completed(chunks):
                tally = future.result()
                total.add(tally)
                for number, text in tally.failures:
                    print(f"\n=== sequence {number} failed; again: {_again(seed, number, runner_name)}\n{text}\n")
                elapsed = time.monotonic() - started
                if elapsed - shown > 30:
                    shown = elapsed
                    rate = total.programs / elapsed
                    print(f"{elapsed:6.0f} s  {total.programs} of {programs} programs, {rate:.1f}/s", flush=True)
        except concurrent.futures.process.BrokenProcessPool:
            print("\na worker process died or was stuck, in one of these sequences:")
            for note in sorted(Path(notes).iterdir()):
                print("   ", _again(seed, int(note.read_text()), runner_name))
            return total, False
    return total, True


def _again(seed: int, number: int, runner_name: str) -> str:
    runner = "" if runner_name == "library" else f" --runner {runner_name}"
    return f"python -m tests.oracle --seed {seed} --only {number}{runner}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description="Random programs against the oracle.")
    parser.add_argument("--programs", type=int, default=200, help="how many programs to run, at least")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", type=int, metavar="K", help="run sequence K alone and show its source")
    parser.add_argument("--runner", choices=sorted(RUNNERS), default="library", help="what to check")
    options = parser.parse_args(arguments)
    if options.only is not None:
        sequence = sequence_number(options.seed, options.only)
        print(describe(sequence), flush=True)
        try:
            outcome = check(sequence, RUNNERS[options.runner]())
        except AssertionError as error:
            print(f"\n{error}")
            return 1
        print(f"\nas promised: {len(outcome.lines)} lines")
        return 0
    started = time.monotonic()
    total, alive = _run_all(options.seed, options.programs, options.jobs, options.runner)
    elapsed = time.monotonic() - started
    print(f"\n{total.programs} programs in {total.sequences} sequences, {total.dispatches} dispatches")
    print(f"{elapsed:.0f} s, {total.programs / elapsed:.1f} programs/s, at most {total.peak_kib // 1024} MiB a process")
    print("statements:", ", ".join(f"{kind} {count}" for kind, count in sorted(total.statements.items())))
    print("effects fired:", ", ".join(f"{kind} {count}" for kind, count in sorted(total.fired.items())))
    print(f"failed: {len(total.failures)}")
    for number, _ in sorted(total.failures):
        print("   ", _again(options.seed, number, options.runner))
    return 0 if alive and not total.failures else 1


if __name__ == "__main__":
    sys.exit(main())
