"""The order oracle: random programs with side effects, each read twice.

A program here is a small tree of frozen dataclasses. `render` turns it into ordinary Python source, and running that
source on one thread is what the library promises to look like; `to_jax` turns it into a function for `effects.jit`.
`check` dispatches a short sequence of programs without waiting, meets the barrier once, and compares final states,
lines and errors. Ordered lines must agree one by one; unordered ones as a multiset, and they may stand anywhere between
the ordered ones. Everything that happens ends as a line in one place: prints are written there by the library, events
by a handler of Python's logging, and callbacks write their own.

Under `vmap`, the reading in Python runs one lane after the other, and what they do happens afterwards, in the order of
the places in the program and at one place in the order of the lanes. One value, `x`, can be differentiated: the reading
notes what is made of it, and goes back over that where JAX would.

Each statement holds its two readings side by side, `python` and `jax`, and nothing else knows what it means. What a
callback does is the same for both readings: it stands in `Host`. To add a kind of effect, add an entry to `EFFECTS` and
one to `library`; to add a statement, add a class and a production to `Generator`; to add something that callbacks do,
add an entry to `ACTIONS` and one to `library`. The generator asks a `Draw` for every decision, so `random.Random` and
hypothesis share it.

    python -m tests.oracle --programs 5000 --seed 0 --jobs 2
    python -m tests.oracle --seed 0 --only 1234          # one sequence again, with its source
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import contextvars
import dataclasses
import difflib
import faulthandler
import functools
import gc
import io
import logging
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
from typing import Any, ClassVar, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax
from jax.experimental import io_callback

from tests.helpers import build_handlers

T = TypeVar("T")
State = tuple[Any, ...]

MODULUS = 97  # small and prime: products stay far below int32 and do not collapse to zero
REGISTERS = ("a", "b", "c")
STATE = "a, b, c, x"  # in rendered source: the registers, and `x`, the one value that can be differentiated

# Python source that every rendered program starts with; `ordered`, `unordered`, ... come from EFFECTS.
PRELUDE = """\
from itertools import count

def fold(values, register):
    return (sum((j + 1) * y for j, y in enumerate(values)) + register) % 97
"""

RESULT_TYPES = ("int32", "uint8", "bool", "float16", "bfloat16", "float32")  # of what callbacks return

# Effect kind -> whether its lines keep their place. In rendered source the kind is the name of a function. The first
# four are prints, two of them by the handler of a custom call; a queued callback is called when its turn has come, and
# the program waits for what a sync one returns.
EFFECTS: Mapping[str, bool] = {
    "ordered": True,
    "unordered": False,
    "native": True,
    "native_unordered": False,
    "log": True,
    "log_unordered": False,
    "queued": True,
    "queued_unordered": False,
    "sync": True,
    "sync_unordered": False,
    "print_grad": True,
}
PRINTS = ("ordered", "unordered", "native", "native_unordered")

# What a callback may do besides writing its line -> the lines that come of it. In these, `label` is the callback's,
# `who` tells those of ordered callbacks from those of unordered ones, and `value` is a number.
ACTIONS: Mapping[str, Callable[[str, str, int], list[str]]] = {
    "print": lambda label, who, value: [f"{label}.print {value}"],
    "log": lambda label, who, value: [f"{label}.log x={value} INFO"],
    "callback": lambda label, who, value: [f"{label}.callback {value}"],
    "eager_sync": lambda label, who, value: [f"{label}.asked {value}", f"{label}.answer {value + 1}"],
    "jit": lambda label, who, value: [f"{label}.jit {(2 * value + 1) % MODULUS}"],
    "effects_jit": lambda label, who, value: [f"{who}.nested {value} 0", f"{who}.nested {value} 1"],
    "effects_jit_sync": lambda label, who, value: [
        f"{who}.asks {value}",
        f"{who}.asked {value}",
        f"{who}.got {value + 1}",
    ],
    "barrier": lambda label, who, value: [],
}

# What a runner may be able to do; programs are made of what it can.
FEATURES = frozenset(
    {
        *("log", "callback", "record", "nested", "vmap", "grad", "devices", "context", "failures", "process"),
        *("capture", "native"),
    }
)
JAX_FEATURES = frozenset({"log", "callback"})

DISPATCH: contextvars.ContextVar[int] = contextvars.ContextVar("dispatch", default=0)
"""Which dispatch it is, where a sequence says so. Callbacks show it."""


class Failure(Exception):
    """What a callback raises that is meant to."""


# ---------------------------------------------------------------------------------------------------------------------
# What the two readings share


@dataclass(frozen=True)
class Runner:
    """What a program runs on: the library, or something else that makes the same promise."""

    jit: Callable[[Callable[..., Any]], Callable[..., Any]]
    emit: Mapping[str, Callable[[str, tuple[Any, ...]], None]]  # print's kind -> emit(label, operands)
    log: Callable[..., None]  # log(label, level, ordered, fields)
    print_grad: Callable[[str, Any], Any]
    callback: Callable[..., Any]  # callback(fn, results, *args, ordered=, [pass_record=], **kwargs)
    barrier: Callable[[], object]
    actions: Mapping[str, Callable[[str, str, int], None]]  # what callbacks do, under the names of `ACTIONS`
    error: type[Exception]  # what a failing callback becomes; its cause is what the callback raised
    features: frozenset[str] = FEATURES


class Host:
    """What callbacks do and know: the same for both readings, which differ in how lines and actions come about."""

    def __init__(self, write: Callable[[str], None], actions: Mapping[str, Callable[[str, str, int], None]]):
        self.write = write
        self.actions = actions
        self.memory = 0  # of all ordered calls so far, in their order
        self.calls: collections.Counter[str] = collections.Counter()
        self.raised: list[Failure] = []

    def call(self, callback: Callback, values: Sequence[int], lane: tuple[int, ...]) -> list[int]:
        """Runs a callback. Returns the numbers of which its results are made."""
        self.write(f"{' '.join([callback.label, *map(str, values), f'@{DISPATCH.get()}'])}{_in_lane(lane)}")
        value = sum((j + 1) * y for j, y in enumerate(values)) % MODULUS
        who = "o" if EFFECTS[callback.kind] else "u"
        for action in callback.actions:
            self.actions[action](callback.label, who, value)
        self.calls[callback.label] += 1
        if self.calls[callback.label] == callback.fails_at:
            self.raised.append(Failure(callback.label))
            raise self.raised[-1]
        if callback.remembers:
            self.memory = (31 * self.memory + value + 1) % MODULUS
            value += self.memory
        return callback.numbers(value)


def _in_lane(lane: tuple[int, ...]) -> str:
    """How a line says in which lane it is; nothing outside of any `vmap`."""
    return f" lane {lane}" if lane else ""


@dataclass(frozen=True)
class Scope:
    """What a statement's JAX reading may refer to besides the registers."""

    runner: Runner
    host: Host
    functions: Mapping[str, Callable[..., State]]
    names: Mapping[str, Any]  # read-only values and mutable refs, closed over by whatever is inside
    settle: Callable[[State], State] = lambda state: state  # gives what a statement makes the types that it must have

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

    def function(self, name: str, body: Block_, parameters: str = STATE, result: str = STATE) -> None:
        with self.block(f"def {name}({parameters}):"):
            self.body(body)
            self.line(f"return {result}")

    def body(self, body: Block_) -> None:
        for statement in body:
            statement.python(self)

    def branch(self, head: str, number: int, body: Block_) -> None:
        with self.block(head), self.block(f"with branch({number}):"):
            self.body(body)


def run_body(body: Block_, scope: Scope, state: State) -> State:
    for statement in body:
        state = scope.settle(statement.jax(scope, state))
    return state


def register(state: State, name: str) -> Any:
    return state[REGISTERS.index(name)]


def assign(state: State, target: str, value: Any) -> State:
    index = REGISTERS.index(target)
    return (*state[:index], value, *state[index + 1 :])


def hold(state: State) -> State:
    """The state, with no derivative through `x`."""
    return (*state[:-1], lax.stop_gradient(state[-1]))


def wrap(x: Any) -> Any:
    """`x % 97` of whole numbers, with the derivative of `x`."""
    rest = lax.rem(lax.convert_element_type(x, np.int32), np.int32(MODULUS))
    rest = lax.rem(lax.add(rest, np.int32(MODULUS)), np.int32(MODULUS))
    return lax.sub(x, lax.stop_gradient(lax.sub(x, lax.convert_element_type(rest, np.float32))))


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


def value_of(operand: Any) -> Any:
    """The value of an operand that may be a mutable ref."""
    return operand if isinstance(operand, np.generic) else operand[...]


def stacked(operands: Sequence[Any]) -> Any:
    return jnp.stack([value_of(operand) for operand in operands])


@dataclass(frozen=True)
class Callback:
    """A call of a Python function, which shows its operands and does its `actions`.

    What a sync one returns is folded into `target`. If it `remembers`, that depends on every such call before it.
    """

    kind: str
    label: str
    operands: tuple[Expression, ...]
    layout: str  # how the operands are passed, see `_arguments`
    pass_record: bool
    actions: tuple[str, ...]
    remembers: bool
    fails_at: int = 0  # the call that raises, counted from 1
    target: str = ""  # of a sync one
    results: tuple[tuple[str, int], ...] = ()  # (dtype, length) of each; no length: a scalar
    structure: str = "leaf"  # how the results are put together, see `_structured`
    returns: str = "numpy"  # numpy, python or jax: what the function returns

    @property
    def awaited(self) -> bool:
        return self.kind.startswith("sync")

    def kinds(self) -> tuple[str, ...]:
        found = [self.kind, f"args_{self.layout}", *[f"action_{action}" for action in self.actions]]
        if self.awaited:
            found += [f"results_{self.structure}", f"returns_{self.returns}", *[f"result_{d}" for d, _ in self.results]]
        found += ["record"] * self.pass_record + [f"fails_{self.kind}"] * bool(self.fails_at)
        return tuple(found)

    def python(self, out: Source) -> None:
        call = f"{self.kind}({', '.join([repr(self.label), *(operand.python() for operand in self.operands)])})"
        notes = [self.layout, *["record"] * self.pass_record, *self.actions, *["remembers"] * self.remembers]
        if self.awaited:
            types = ", ".join(f"{dtype}[{n}]" if n else dtype for dtype, n in self.results)
            notes.append(f"returns {self.structure} of ({types}) by {self.returns}")
        if self.fails_at:
            notes.append(f"raises in call {self.fails_at}")
        note = f"  # {'; '.join(notes)}"
        out.line((f"{self.target} = fold({call}, {self.target})" if self.awaited else call) + note)

    def numbers(self, value: int) -> list[int]:
        """What the results are made of: one number for each element."""
        found = []
        for dtype, length in self.results:
            for _ in range(length or 1):
                value = (value + 7) % MODULUS
                found.append(value % 2 if dtype == "bool" else value)
        return found

    def jax(self, scope: Scope, state: State) -> State:
        host = scope.host

        def function(*args: Any, **kwargs: Any) -> Any:
            lane: tuple[int, ...] = ()
            if self.pass_record:
                record = kwargs.pop("record")
                assert record.effect == "callback" and record.text.startswith(f"{self.label}("), record
                lane = record.lane
            return self._returned(host.call(self, [int(leaf) for leaf in self._leaves(args, kwargs)], lane))

        function.__qualname__ = function.__name__ = self.label
        args, kwargs = self._arguments([operand.jax(scope, state) for operand in self.operands])
        options = {"pass_record": True} if self.pass_record else {}
        shapes = self._shapes() if self.awaited else None
        outs = scope.runner.callback(function, shapes, *args, ordered=EFFECTS[self.kind], **options, **kwargs)
        if not self.awaited:
            assert outs is None
            return state
        assert jax.tree.structure(outs) == jax.tree.structure(shapes)
        values = []
        for (dtype, _), out in zip(self.results, jax.tree.leaves(outs), strict=True):
            assert out.dtype == dtype, (out, dtype)
            if "float" in dtype:
                out = out * np.dtype(dtype).type(4)
            values.append(jnp.ravel(lax.convert_element_type(out, np.int32)))
        folded = fold(jnp.concatenate([*values, np.zeros(0, np.int32)]), register(state, self.target))
        return assign(state, self.target, folded)

    def _arguments(self, values: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self.layout == "flat":
            return tuple(values), {}
        if self.layout == "keywords":
            return (self.label,), {f"x{j}": value for j, value in enumerate(values)}
        if self.layout == "array":
            return (stacked(values),), {}
        halves = [lax.convert_element_type(value_of(value), np.float16) for value in values[1:]]
        return ({"first": values[:1], "rest": (halves, None)}, "text"), {"empty": ()}

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The operands' values in what the function was given."""
        if self.layout == "flat":
            assert not kwargs
            leaves = list(args)
        elif self.layout == "keywords":
            assert args == (self.label,), args
            leaves = [kwargs[f"x{j}"] for j in range(len(kwargs))]
        elif self.layout == "array":
            (array,) = args
            assert array.shape == (len(self.operands),) and array.dtype == np.int32, array
            leaves = list(array)
        else:
            tree, text = args
            assert (text, kwargs) == ("text", {"empty": ()}) and tree["rest"][1] is None, (args, kwargs)
            leaves = [*tree["first"], *tree["rest"][0]]
            assert all(leaf.dtype == np.float16 for leaf in tree["rest"][0]), args
        assert all(isinstance(leaf, np.ndarray | np.generic) and leaf.shape == () for leaf in leaves), leaves
        assert not any(leaf.flags.writeable for leaf in leaves), leaves
        return leaves

    def _shapes(self) -> Any:
        return self._structured([jax.ShapeDtypeStruct((n,) * bool(n), dtype) for dtype, n in self.results])

    def _structured(self, leaves: list[Any]) -> Any:
        if self.structure == "leaf":
            return leaves[0]
        if self.structure == "tuple":
            return tuple(leaves)
        return {"first": leaves[0], "rest": [leaves[1:], ()]}

    def _returned(self, numbers: list[int]) -> Any:
        """The results in the form that was asked for. What a queued callback returns may be anything."""
        if not self.awaited:
            return numbers
        leaves: list[Any] = []
        rest = iter(numbers)
        for dtype, length in self.results:
            scale = 4 if "float" in dtype else 1
            values = [next(rest) / scale if scale > 1 else next(rest) for _ in range(length or 1)]
            if self.returns == "python" and not length:
                leaves.append(bool(values[0]) if dtype == "bool" else values[0])
                continue
            array = np.array(values if length else values[0], dtype)
            leaves.append(jnp.asarray(array) if self.returns == "jax" else array)
        return self._structured(leaves)


@contextlib.contextmanager
def held(out: Source, holds: bool) -> Iterator[None]:
    """If it `holds`, a block that leaves `x` as it is and has no derivative: none goes backward through a `while`."""
    if not holds:
        yield
        return
    kept = out.fresh("kept")
    out.line(f"{kept} = x")
    with out.block("with held():"):
        yield
    out.line(f"x = {kept}")


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
        for number, body in enumerate(self.branches):
            out.branch(f"{'elif' if number else 'if'} {index} == {number}:", number, body)

    def jax(self, scope: Scope, state: State) -> State:
        def branch(body: Block_) -> Callable[..., State]:
            return lambda *state: run_body(body, scope, state)

        index = remainder(self.index, len(self.branches), scope, state)
        return lax.switch(index, [branch(body) for body in self.branches], *state)


def call(out: Source, expression: str, keep: bool, differentiated: bool = True) -> None:
    """A call that gives a new state, or not; what is made of `x` in it may have no derivative."""
    if keep and differentiated:
        out.line(f"{STATE} = {expression}")
        return
    with out.block("with dropped():" if differentiated else "with held():"):
        out.line(f"{STATE} = {expression}" if keep else expression)


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
IDENTITIES = ("custom_jvp", "custom_vjp")  # those whose rule says that the derivative is one


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

    def kinds(self) -> tuple[str, ...]:
        return ("vmap",)

    def python(self, out: Source) -> None:
        name = out.fresh("lane")
        out.function(name, self.body, f"{self.variable}, {STATE}", f"{self.result.python()}, x")
        ys, values = out.fresh("ys"), f"[(y + {self.base.python()}) % {MODULUS} for y in {self.xs}]"
        out.line(f"{ys}, x = lockstep({name}, {values}, {STATE})  # vmap")
        out.line(f"{self.target} = fold({ys}, {self.target})")

    def jax(self, scope: Scope, state: State) -> State:
        def lane(x: Any) -> Any:
            here = scope.bind(**{self.variable: x})
            after = run_body(self.body, here, state)
            return self.result.jax(here, after), after[-1]

        ys, x = jax.vmap(lane)(shifted(self.xs, self.base.jax(scope, state)))
        state = (*state[:-1], wrap(jnp.sum(x)))
        return assign(state, self.target, fold(ys, register(state, self.target)))


@dataclass(frozen=True)
class Scale:
    """`x` times one of `factors`, plus something."""

    factors: tuple[int, ...]
    index: Expression
    shift: Expression

    def kinds(self) -> tuple[str, ...]:
        return ("scale",)

    def python(self, out: Source) -> None:
        factor = f"{self.factors}[({self.index.python()}) % {len(self.factors)}]"
        out.line(f"x = scale(x, {factor}, {self.shift.python()})")

    def jax(self, scope: Scope, state: State) -> State:
        index = remainder(self.index, len(self.factors), scope, state)
        factor = jnp.array(self.factors, np.float32)[index]
        shift = lax.convert_element_type(self.shift.jax(scope, state), np.float32)
        return (*state[:-1], wrap(lax.add(lax.mul(state[-1], factor), shift)))


@dataclass(frozen=True)
class PrintGrad:
    """The identity of `x`, which prints the derivative where it comes by backward."""

    label: str
    kind: ClassVar[str] = "print_grad"

    def kinds(self) -> tuple[str, ...]:
        return (self.kind,)

    def python(self, out: Source) -> None:
        out.line(f"x = print_grad({self.label!r}, x)")

    def jax(self, scope: Scope, state: State) -> State:
        return (*state[:-1], scope.runner.print_grad(self.label, state[-1]))


@dataclass(frozen=True)
class CustomRule:
    """A block with statements of its own for where it is differentiated, forward and backward.

    The backward rule is given the state as it was before, and shows the derivative first.
    """

    label: str
    body: Block_
    forward: Block_
    backward: Block_
    factor: int
    kind: ClassVar[str] = "ordered"

    def kinds(self) -> tuple[str, ...]:
        return ("custom_rule",)

    def python(self, out: Source) -> None:
        body, forward, backward = (out.fresh(name) for name in ("primal", "forward", "backward"))
        out.function(body, self.body)
        out.function(forward, self.forward)
        with out.block(f"def {backward}(slope, {STATE}):"):
            out.line(f"ordered({self.label!r}, slope)")
            out.body(self.backward)
            out.line(f"return {self.factor} * slope")
        out.line(f"{STATE} = custom_rule({body}, {forward}, {backward}, {STATE})")

    def jax(self, scope: Scope, state: State) -> State:
        def backward(state: State, slopes: State) -> State:
            scope.runner.emit["ordered"](self.label, slopes[-1:])
            run_body(self.backward, Scope(scope.runner, scope.host, {}, {}, scope.settle), state)
            return (*slopes[:-1], slopes[-1] * np.float32(self.factor))

        wrapped = jax.custom_vjp(lambda *state: run_body(self.body, scope, state))
        wrapped.defvjp(lambda *state: (run_body(self.forward, scope, state), state), backward)
        return wrapped(*state)


BACKWARD = ("grad", "value_and_grad", "vjp", "jacrev", "hessian")
FORWARD = ("jvp", "linearize", "jacfwd", "hessian")


@dataclass(frozen=True)
class Derivative:
    """A block that is differentiated with regard to `x`, and then a print of the derivative; `x` stays as it is."""

    form: str
    label: str
    body: Block_
    target: str
    kind: ClassVar[str] = "ordered"

    def kinds(self) -> tuple[str, ...]:
        return (self.form,)

    def python(self, out: Source) -> None:
        name, y = out.fresh("differentiated"), out.fresh("y")
        out.function(name, self.body)
        out.line(f"a, b, c, {y} = {self.form}({self.label!r}, {name}, {STATE})")
        out.line(f"{self.target} = fold([{y}], {self.target})")

    def jax(self, scope: Scope, state: State) -> State:
        *registers, x = hold(state)

        def fun(x: Any) -> tuple[Any, State]:
            after = run_body(self.body, scope, (*registers, x))
            y = after[-1]
            if self.form == "hessian":  # of something whose second derivative is twice the first one of what it is of
                y = lax.mul(lax.add(x, np.float32(1)), y)
            if self.form == "jacrev":
                y = jnp.stack([y, y * np.float32(2)])
            return y, after

        slope, after = self._slope(scope, fun, x)
        scope.runner.emit["ordered"](self.label, tuple(slope) if self.form == "jacrev" else (slope,))
        y = lax.reshape(lax.convert_element_type(after[-1], np.int32), (1,))
        after = (*after[:-1], state[-1])
        return assign(after, self.target, fold(y, register(after, self.target)))

    def _slope(self, scope: Scope, fun: Callable[[Any], tuple[Any, State]], x: Any) -> tuple[Any, State]:
        between = functools.partial(scope.runner.emit["ordered"], f"{self.label}.between")
        one = lax.add(lax.mul(lax.stop_gradient(x), np.float32(0)), np.float32(1))  # of the type of `x`
        if self.form == "value_and_grad":
            (_, after), slope = jax.value_and_grad(fun, has_aux=True)(x)
        elif self.form == "vjp":
            y, pull, after = jax.vjp(fun, x, has_aux=True)
            between((y,))
            (slope,) = pull(one)
        elif self.form == "jvp":
            _, slope, after = jax.jvp(fun, (x,), (one,), has_aux=True)
        elif self.form == "linearize":
            y, push, after = jax.linearize(fun, x, has_aux=True)
            between((y,))
            slope = push(one)
        else:
            slope, after = getattr(jax, self.form)(fun, has_aux=True)(x)
        return slope, after


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
    """One dispatch of a program, from a state of its own or from what the last dispatch returned that did not fail."""

    program: Program
    state: tuple[int, ...] | None
    device: int | None = None  # on which one, if it is said
    by_default: bool = False  # by `jax.default_device`, instead of the arguments


@dataclass(frozen=True)
class Case:
    """A sequence of dispatches, and what is in force meanwhile."""

    runs: tuple[Run, ...]
    order: str = "thread"
    capture: bool = False
    context: bool = False  # whether each dispatch has a context of its own

    def kinds(self) -> tuple[str, ...]:
        devices = {(run.device, run.by_default) for run in self.runs if run.device is not None}
        found = [f"order_{self.order}"] * (self.order != "thread") + ["capture"] * self.capture
        found += ["context"] * self.context + ["several_devices"] * (len(devices) > 1)
        return (*found, *sorted({"default_device" if by_default else "device_put" for _, by_default in devices}))


def render(program: Program) -> str:
    """The program as Python source: what it means, and what an error shows."""
    out = Source()
    for function in program.functions:
        out.line(f"# {function.through}")
        out.function(function.name, function.body, f"n, {STATE}")
    with out.block("def program(n, a, b, c):"):
        out.line("x = n")
        out.body(program.body)
        out.line("return a, b, c")
    return "\n".join(out.lines) + "\n"


@functools.lru_cache(maxsize=64)
def _compiled(program: Program) -> Any:
    return compile(PRELUDE + render(program), "<program>", "exec")


Step = Callable[[int], int]
"""Takes a derivative past something, backward."""

Point = tuple[tuple[int, ...], tuple[int, ...], str, Callable[[], object]]
"""What is to happen later: the place in the program, the lane, the label of the effect if there is one, and what."""


class Reading:
    """Runs programs as Python: the functions that their source calls, and what came of them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.failures: list[str] = []  # labels of queued callbacks that raised
        # The lane of each `vmap` around, what is to happen in lanes, and where we are: see `_at_this_point`.
        self._lane: tuple[int, ...] = ()
        self._points: list[Point] = []
        self._position = [0]
        # Where `x` has a derivative: how it goes back, a step for each thing that was made of `x`.
        self._steps: list[Step] | None = None
        self._goes_back = False  # whether effects come of that
        self._defers = False  # whether what happens does so later even outside of lanes

        def act(action: str) -> Callable[[str, str, int], None]:
            return lambda *about: self.lines.extend(ACTIONS[action](*about))

        self.host = Host(self.lines.append, {action: act(action) for action in ACTIONS})

    def interpret(self, program: Program, state: Sequence[int], number: int) -> tuple[int, ...]:
        callbacks = {s.label: s for s in statements(program) if isinstance(s, Callback)}

        def log(label: str, level: str, **fields: Any) -> None:
            words = [label, *(f"{name}={np.array(value)}" for name, value in fields.items()), level]
            text = f"{' '.join(words)}{_in_lane(self._lane)}"
            self._at_this_point("" if level == "DEBUG" else label, lambda: level == "DEBUG" or self.lines.append(text))

        def call(label: str, *values: int) -> list[int]:
            callback, lane = callbacks[label], self._lane if callbacks[label].pass_record else ()
            if callback.awaited and not self._lane and not self._defers:
                return self.host.call(callback, values, lane)
            self._at_this_point(label, lambda: self._call(callback, values, lane))
            return callback.numbers(sum((j + 1) * y for j, y in enumerate(values)) % MODULUS)

        calls = {"log": log, "queued": call, "sync": call}
        namespace: dict[str, Any] = {kind: calls.get(kind.split("_")[0], self._write) for kind in EFFECTS}
        namespace |= {"lockstep": self._lockstep, "branch": self._branch, "turns": self._turns}
        namespace |= {"held": self._held, "dropped": self._dropped, "scale": self._scale}
        namespace |= {"print_grad": self._print_grad, "custom_rule": self._custom_rule}
        namespace |= {form: functools.partial(self._differentiate, form) for form in (*BACKWARD, *FORWARD)}
        namespace |= self.more_names(program)
        exec(_compiled(program), namespace)
        self._lane, self._points, self._position, self._steps = (), [], [0], None
        return namespace["program"](number, *state)

    def more_names(self, program: Program) -> dict[str, Any]:
        """What else the source may call, for those who have more statements."""
        return {}

    def _write(self, *words: object) -> None:
        self._at_this_point(str(words[0]), lambda: self.lines.append(" ".join(map(str, words))))

    def _call(self, callback: Callback, values: Sequence[int], lane: tuple[int, ...]) -> None:
        try:
            self.host.call(callback, values, lane)
        except Failure:
            if callback.awaited:
                raise
            self.failures.append(callback.label)

    # Under `vmap`, each lane is run by itself, and what it does happens afterwards: in the order of the places in the
    # program, and at one place in the order of the lanes. A place is known by how many effects, branches and loops came
    # before it in the same block, and by those of the blocks around it, with the branch or turn that the block is.

    def _at_this_point(self, label: str, happens: Callable[[], object]) -> None:
        self._position[-1] += 1
        if self._lane or self._defers:
            self._points.append((tuple(self._position), self._lane, label, happens))
        else:
            happens()

    @contextlib.contextmanager
    def _branch(self, number: int) -> Iterator[None]:
        """A branch: those of lower numbers come first, in all lanes that take them."""
        position = self._position
        position[-1] += 1
        position += (number, 0)
        steps = self._steps
        if steps is not None:
            self._steps = []
            steps.append(functools.partial(self._branch_back, number, self._steps))
        yield
        self._steps = steps
        del position[-2:]

    def _branch_back(self, number: int, steps: list[Step], slope: int) -> int:
        with self._branch(number):
            return self._back(steps, slope)

    def _turns(self, values: Iterable[int]) -> Iterator[int]:
        """A loop: each turn is made by all lanes that go on."""
        position = self._position
        position[-1] += 1
        position += (0, 0)
        try:
            for turn, value in enumerate(values):
                position[-2:] = turn, 0
                yield value
        finally:
            del position[-2:]

    def _lockstep(self, lane: Callable[..., tuple[int, int]], xs: Sequence[int], *state: int) -> tuple[list[int], int]:
        """The lanes' results, and the sum of their `x`."""
        around, of_lanes = self._steps, [[] if self._steps is not None else None for _ in xs]

        def run(number: int) -> tuple[int, int]:
            self._steps = of_lanes[number]
            return lane(xs[number], *state)

        results = self._in_lanes(len(xs), run)
        self._steps = around
        if around is not None:
            around.append(
                lambda slope: sum(self._in_lanes(len(xs), lambda lane: self._back(of_lanes[lane] or [], slope)))
            )
        return [result for result, _ in results], sum(x for _, x in results) % MODULUS

    def _in_lanes(self, count: int, run: Callable[[int], T]) -> list[T]:
        self._position[-1] += 1
        position, around, results = self._position, self._lane, []
        for number in range(count):
            self._position, self._lane = [*position, 0], (*around, number)
            results.append(run(number))
        self._position, self._lane = position, around
        if not around and not self._defers:
            self._let_happen()
        return results

    def _let_happen(self) -> None:
        points, self._points = sorted(self._points, key=lambda point: point[:2]), []
        for _, _, _, happens in points:
            happens()

    # Derivatives.

    def _back(self, steps: list[Step], slope: int) -> int:
        for step in reversed(steps):
            slope = step(slope)
        return slope

    def _scale(self, x: int, factor: int, shift: int) -> int:
        if self._steps is not None:
            self._steps.append(lambda slope: factor * slope)
        return (factor * x + shift) % MODULUS

    def _print_grad(self, label: str, x: int) -> int:
        if self._steps is not None:
            self._steps.append(lambda slope: self._show_slope(label, slope))
        return x

    def _show_slope(self, label: str, slope: int) -> int:
        if self._goes_back:
            self._write(label, float(slope))
        return slope

    def _custom_rule(
        self,
        body: Callable[..., tuple[int, ...]],
        forward: Callable[..., tuple[int, ...]],
        backward: Callable[..., int],
        *state: int,
    ) -> tuple[int, ...]:
        steps = self._steps
        with self._held():
            after = (body if steps is None else forward)(*state)
        if steps is not None:
            steps.append(lambda slope: backward(float(slope), *state))
        return after

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """What is in there has no derivative."""
        steps, self._steps = self._steps, None
        yield
        self._steps = steps

    @contextlib.contextmanager
    def _dropped(self) -> Iterator[None]:
        """What is in there has one that nobody asks for."""
        steps, self._steps = self._steps, None if self._steps is None else []
        yield
        self._steps = steps

    def _differentiate(
        self, form: str, label: str, fun: Callable[..., tuple[int, ...]], *state: int
    ) -> tuple[int, ...]:
        around, went_back = self._steps, self._goes_back
        self._steps = steps = []
        after = fun(*state)
        self._steps, self._goes_back = None, form in BACKWARD
        if form in ("vjp", "linearize"):
            self._write(f"{label}.between", float(after[-1]))
        if form == "jacrev":  # of what it is, and of twice that
            slopes = self._in_lanes(2, lambda lane: self._back(steps, lane + 1))
        elif form == "hessian":
            seed = state[-1] + 1
            [slope] = self._in_lanes(1, lambda lane: self._back(steps, seed))
            slopes = [2 * (slope // seed)]
        else:
            slopes = [self._back(steps, 1)]
        self._steps, self._goes_back = around, went_back
        self._write(label, *map(float, slopes))
        return after


def interpret(program: Program, state: Sequence[int], number: int = 0) -> tuple[tuple[int, ...], list[str]]:
    """The program's final state and its lines, found by running its source: no JAX takes part."""
    reading = Reading()
    return reading.interpret(program, state, number), reading.lines


def to_jax(
    program: Program, runner: Runner, host: Host, names: Mapping[str, Any] | None = None
) -> Callable[..., State]:
    """The program as a function of `n` and the registers, to be jitted by `runner.jit`."""

    def traced(n: Any, *state: Any) -> State:
        functions: dict[str, Callable[..., State]] = {}

        def inner(body: Block_) -> Callable[..., State]:
            return lambda n, *state: run_body(body, Scope(runner, host, functions, {"n": n}), state)

        for function in program.functions:
            whole = Scope(runner, host, functions, {})
            functions[function.name] = WRAPPERS[function.through](whole, inner(function.body))
        x = lax.convert_element_type(n, np.float32)
        return run_body(program.body, Scope(runner, host, functions, {"n": n, **(names or {})}), (*state, x))[:-1]

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


def write_line(line: str) -> None:
    sys.stdout.write(line + "\n")


@functools.cache
def library() -> Runner:
    """The library under test."""
    import effects as fx

    def emit(ordered: bool) -> Callable[[str, tuple[Any, ...]], None]:
        return lambda label, operands: fx.print(" ".join([label, *["{}"] * len(operands)]), *operands, ordered=ordered)

    def per_shard(label: str, operands: tuple[Any, ...]) -> None:
        fx.print(" ".join([label, "{device} {index}", *["{}"] * len(operands)]), *operands, per_shard=True)

    fx.register_custom_call("oracle.say_line", (build_handlers(), "say_line"))

    def native(ordered: bool) -> Callable[[str, tuple[Any, ...]], None]:
        effect = fx.registered_effects()["print"]

        def emit(label: str, operands: tuple[Any, ...]) -> None:
            values = stacked([*operands, np.int32(0)])[:-1]
            chosen = effect if ordered else effect.unordered()
            fx.custom_call("oracle.say_line", (), values, label=label, effect=chosen, vmap_method="sequential")

        return emit

    def log(label: str, level: int, ordered: bool, fields: Mapping[str, Any]) -> None:
        fx.log(label, level=level, ordered=ordered, **fields)

    def shows(label: str, returns: bool = False) -> Callable[[Any], Any]:
        def function(value: Any) -> Any:
            write_line(f"{label} {value}")
            return np.int32(value + 1) if returns else None

        function.__qualname__ = label
        return function

    scalar = jax.ShapeDtypeStruct((), np.int32)

    def show(label: str, value: Any) -> None:
        fx.print("{} {}", label, jnp.asarray(value, np.int32))

    def eager_sync(label: str, who: str, value: int) -> None:
        show(f"{label}.answer", fx.callback(shows(f"{label}.asked", True), scalar, np.array(value, np.int32)))

    def eager_callback(label: str, who: str, value: int) -> None:
        fx.callback(shows(f"{label}.callback"), None, np.array(value, np.int32))

    def nested(who: str) -> Any:
        def body(value: Any) -> None:
            lax.fori_loop(0, 2, lambda i, _: fx.print(f"{who}.nested {{}} {{}}", value, i), None)

        return fx.jit(body)

    def nested_sync(who: str) -> Any:
        def body(value: Any) -> Any:
            fx.print(f"{who}.asks {{}}", value)
            answer = fx.callback(shows(f"{who}.asked", True), scalar, value)
            fx.print(f"{who}.got {{}}", answer)
            return answer

        return fx.jit(body)

    nested_by, nested_sync_by = ({who: make(who) for who in "ou"} for make in (nested, nested_sync))
    twice = jax.jit(lambda value: (2 * value + 1) % MODULUS)
    return Runner(
        fx.jit,
        {
            "ordered": emit(True),
            "unordered": emit(False),
            "per_shard": per_shard,
            "native": native(True),
            "native_unordered": native(False),
        },
        log,
        lambda label, x: fx.print_grad(f"{label} {{}}", x),
        fx.callback,
        functools.partial(fx.effects_barrier, timeout=STUCK_AFTER),
        {
            "print": lambda label, who, value: show(f"{label}.print", value),
            "log": lambda label, who, value: fx.log(f"{label}.log", x=np.array(value, np.int32)),
            "callback": eager_callback,
            "eager_sync": eager_sync,
            "jit": lambda label, who, value: show(f"{label}.jit", twice(np.int32(value))),
            "effects_jit": lambda label, who, value: nested_by[who](np.int32(value)),
            "effects_jit_sync": lambda label, who, value: nested_sync_by[who](np.int32(value)),
            "barrier": lambda label, who, value: fx.effects_barrier(timeout=STUCK_AFTER),
        },
        fx.EffectError,
    )


def library_after(change: Callable[[list[str]], None]) -> Runner:
    """The library, except that the barrier changes the lines that were written."""
    right = library()

    def barrier() -> None:
        right.barrier()
        written: Any = sys.stdout
        lines = written.getvalue().splitlines()
        change(lines)
        written.seek(0)
        written.truncate()
        written.write("".join(line + "\n" for line in lines))

    return dataclasses.replace(right, barrier=barrier)


def plain_jax() -> Runner:
    """JAX's own ordered effects: slower, and right wherever JAX allows them. It checks the oracle, not the library.

    Everything is a callback that JAX waits for: effects of other kinds have orders of their own.
    """

    def callback(function: Any, results: Any, *args: Any, ordered: bool, **kwargs: Any) -> Any:
        """JAX takes neither texts nor mutable refs as arguments, and gives JAX arrays."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        at = [j for j, leaf in enumerate(leaves) if not isinstance(leaf, str)]

        def call(*values: Any) -> Any:
            given = list(leaves)
            for j, value in zip(at, values, strict=True):
                given[j] = np.asarray(value)
            args, kwargs = jax.tree.unflatten(tree, given)
            returned = function(*args, **kwargs)
            if results is None:
                return None
            return jax.tree.map(lambda shape, value: np.asarray(value, shape.dtype), results, returned)

        return io_callback(call, results, *(value_of(leaves[j]) for j in at), ordered=ordered)

    def emit(ordered: bool) -> Callable[[str, tuple[Any, ...]], None]:
        def emit(label: str, operands: tuple[Any, ...]) -> None:
            def write(*operands: Any) -> None:
                write_line(" ".join([label, *map(str, operands)]))

            callback(write, None, *operands, ordered=ordered)

        return emit

    def log(label: str, level: int, ordered: bool, fields: Mapping[str, Any]) -> None:
        def write(**fields: Any) -> None:
            text = " ".join([label, *(f"{name}={value}" for name, value in fields.items())])
            write_line(f"{text} {logging.getLevelName(level)}")

        if level >= logging.INFO:
            callback(write, None, ordered=ordered, **fields)

    prints = {"ordered": emit(True), "unordered": emit(False)}
    return Runner(
        jax.jit, prints, log, lambda label, x: x, callback, jax.effects_barrier, {}, RuntimeError, JAX_FEATURES
    )


@dataclass
class Outcome:
    """What a sequence of dispatches left behind. Errors are the labels of the callbacks that raised them."""

    states: list[tuple[int, ...] | str] = field(default_factory=list)  # of a dispatch that failed: the error
    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # which the barrier raised
    records: list[str] | None = None  # what was captured, as lines; of a callback only its label


def expect(case: Case) -> Outcome:
    outcome, reading = Outcome(), Reading()
    state: tuple[int, ...] = ()
    for number, run in enumerate(case.runs):
        state = state if run.state is None else run.state
        DISPATCH.set(number if case.context else 0)
        try:
            state = reading.interpret(run.program, state, number)
            outcome.states.append(state)
        except Failure as failure:
            outcome.states.append(str(failure))
    DISPATCH.set(0)
    outcome.lines, outcome.errors = reading.lines, reading.failures
    return outcome


class _Lines(logging.Handler):
    """Where events become lines among the others."""

    def emit(self, record: logging.LogRecord) -> None:
        write_line(f"{record.getMessage()} {record.levelname}{_in_lane(record.effects_record.lane)}")


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    logger, handler = logging.getLogger("effects"), _Lines()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


@contextlib.contextmanager
def _in_force(case: Case, outcome: Outcome) -> Iterator[None]:
    """What the case asks for, around its dispatches and the barrier."""
    with contextlib.ExitStack() as stack:
        if case.order != "thread":
            import effects as fx

            stack.enter_context(fx.config.override(order=case.order))
        records: Any = None
        if case.capture:
            import effects as fx

            records = stack.enter_context(fx.capture())
        yield
    if records is not None:
        outcome.records = []
        for record in records:
            text = record.text
            if record.effect == "callback":
                text = text.split("(", 1)[0]
            elif record.effect == "log":
                text += f" {logging.getLevelName(record.level)}{_in_lane(record.lane)}"
            outcome.records.append(text)


def observe(case: Case, runner: Runner) -> Outcome:
    """Dispatches the programs one after another, waits once, and returns what came out."""
    host = Host(write_line, runner.actions)
    outcome = Outcome()
    with contextlib.redirect_stdout(io.StringIO()) as written, _logging():
        try:
            with _in_force(case, outcome):
                results = _dispatch(case, runner, host)
                try:
                    runner.barrier()
                except* runner.error as group:
                    outcome.errors = [_label_of(error, host) for error in group.exceptions]
            outcome.states = [
                state if isinstance(state, str) else tuple(int(value) for value in state) for state in results
            ]
        finally:
            DISPATCH.set(0)
    outcome.lines = written.getvalue().splitlines()
    return outcome


def _dispatch(case: Case, runner: Runner, host: Host) -> list[State | str]:
    jitted = {run.program: runner.jit(to_jax(run.program, runner, host)) for run in case.runs}
    results: list[State | str] = []
    state: State = ()
    for number, run in enumerate(case.runs):
        state = state if run.state is None else tuple(map(np.int32, run.state))
        args: State = (np.int32(number), *state)
        DISPATCH.set(number if case.context else 0)
        place: Any = contextlib.nullcontext()
        if run.device is not None:
            device = jax.devices()[run.device % len(jax.devices())]
            if run.by_default:
                place = jax.default_device(device)
            else:
                args = tuple(jax.device_put(args, device))
        try:
            with place:
                state = tuple(jitted[run.program](*args))
            results.append(state)
        except runner.error as error:
            results.append(_label_of(error, host))
    return results


def _label_of(error: BaseException, host: Host) -> str:
    """The label of the callback that raised what caused this error; anything else is an error of its own."""
    cause = error.__cause__
    if not any(cause is raised for raised in host.raised):
        raise error
    return str(cause)


def check(case: Case | Sequence[Run], runner: Runner | None = None) -> Outcome:
    """Runs the sequence and raises an AssertionError that shows the programs and the difference, if there is one.

    Args:
      case: the dispatches, in order, and what is in force meanwhile.
      runner: what to run on; the library unless given.

    Returns:
      What was expected, and seen.
    """
    case = case if isinstance(case, Case) else Case(tuple(case))
    runner = library() if runner is None else runner
    expected = expect(case)
    try:
        seen = observe(case, runner)
    except Exception as error:
        with contextlib.suppress(Exception):
            runner.barrier()  # what else has failed is not the next one's
        raise AssertionError(f"the sequence failed\n\n{traceback.format_exc()}\n{describe(case)}") from error
    complaints = compare(case, expected, seen)
    if complaints:
        raise AssertionError("\n".join([*complaints, "", describe(case)]))
    return expected


def label_of(line: str) -> str:
    """The label of the effect from which a line comes."""
    return line.split(" ", 1)[0].split(".", 1)[0]


def kinds_of_labels(tree: object) -> dict[str, str]:
    return {s.label: s.kind for s in statements(tree) if hasattr(s, "label")}


def _labels(case: Case, failed: Iterable[str]) -> tuple[set[str], set[str]]:
    """Labels of unordered lines, and of lines of which nothing can be said.

    When a program fails, it is not known how far what was unordered has got, nor, if what failed was unordered, how far
    anything has.
    """
    unordered, unknown, failed = {"u"}, set(), set(failed)
    for program in {run.program: None for run in case.runs}:
        kinds = kinds_of_labels(program)
        here = {label for label, kind in kinds.items() if not EFFECTS[kind]}
        unordered |= here
        for label in failed & set(kinds):
            unknown |= {"u"} | (here if EFFECTS[kinds[label]] else {"o", *kinds})
    return unordered, unknown


def compare(case: Case, expected: Outcome, seen: Outcome) -> list[str]:
    """What is wrong with `seen`, as texts; nothing if it keeps the promise."""
    unordered_labels, unknown = _labels(case, [state for state in expected.states if isinstance(state, str)])

    def split(lines: Iterable[str]) -> tuple[list[str], collections.Counter[str]]:
        ordered: list[str] = []
        unordered: collections.Counter[str] = collections.Counter()
        for line in lines:
            if label_of(line) in unknown:
                continue
            if label_of(line) in unordered_labels:
                unordered[line] += 1
            else:
                ordered.append(line)
        return ordered, unordered

    complaints = []
    for number, (want, got) in enumerate(zip(expected.states, seen.states, strict=True)):
        if want != got:
            complaints.append(f"dispatch {number} {_ended(got)} and should have {_ended(want)}")
    (want_ordered, want_unordered), (got_ordered, got_unordered) = split(expected.lines), split(seen.lines)
    if want_ordered != got_ordered:
        diff = difflib.unified_diff(want_ordered, got_ordered, "expected ordered lines", "seen", lineterm="", n=3)
        complaints.append("\n".join(diff))
    for line in sorted(want_unordered.keys() | got_unordered.keys()):
        want, got = want_unordered[line], got_unordered[line]
        if want != got:
            complaints.append(f"unordered line {line!r} was seen {got} times and should have been seen {want} times")
    if sorted(expected.errors) != sorted(seen.errors):
        complaints.append(f"the barrier raised what {seen.errors} raised and should have raised {expected.errors}")
    if seen.records is not None:
        complaints += _compare_records(case, seen)
    return complaints


def _ended(state: tuple[int, ...] | str) -> str:
    return f"raised what {state} raised" if isinstance(state, str) else f"returned {state}"


def _compare_records(case: Case, seen: Outcome) -> list[str]:
    """What was captured must be what the output shows, in its order."""
    assert seen.records is not None
    callbacks = {s.label for run in case.runs for s in statements(run.program) if isinstance(s, Callback)}
    lines = []
    for line in seen.lines:
        word = line.split(" ", 1)[0]
        lines.append(word if word in callbacks or word.endswith((".callback", ".asked")) else line)
    if lines == seen.records:
        return []
    diff = difflib.unified_diff(lines, seen.records, "lines of the output", "records captured", lineterm="", n=3)
    return ["\n".join(diff)]


def describe(case: Case) -> str:
    """The sequence as Python source: each program once, then the dispatches."""
    numbers = {program: number for number, program in enumerate(dict.fromkeys(run.program for run in case.runs))}
    sources = [f"# program {number}\n{render(program)}" for program, number in numbers.items()]
    runs = [
        f"# dispatch {number}: program {numbers[run.program]} from {run.state or 'the state before'}{_where(run)}"
        for number, run in enumerate(case.runs)
    ]
    return "\n".join([*sources, *runs, f"# {', '.join(case.kinds())}"])


def _where(run: Run) -> str:
    how = "by default " if run.by_default else ""
    return "" if run.device is None else f" {how}on device {run.device}"


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
    lanes: bool = False  # whether a `vmap` may be around
    forward: bool = False  # whether a derivative that goes forward may be around,
    backward: bool = False  # or one that goes backward,
    lanes_back: bool = False  # or one that does through lanes
    may_go_back: bool = True  # whether there may be effects of that
    may_call: bool = True

    def inside(self, *values: str) -> Place:
        return dataclasses.replace(self, depth=self.depth - 1, values=self.values + values)

    def inside_predicate(self, *values: str) -> Place:
        """Under `vmap`, where it may differ between lanes, JAX takes no refs."""
        inner = self.inside(*values)
        return inner.without_refs(may_make=inner.may_make) if self.lanes else inner

    def inside_other_branch(self) -> Place:
        """All branches but the last. Where lanes differ, the order of what happens backward in several is not said."""
        inner = self.inside_predicate()
        return dataclasses.replace(inner, may_go_back=self.may_go_back and not self.lanes_back)

    def inside_derivative(self, form: str) -> Place:
        # JAX runs a `while` again for what `linearize` gives.
        backward = form in (*BACKWARD, "linearize")
        inner = dataclasses.replace(self.inside(), forward=form in FORWARD, backward=backward)
        return dataclasses.replace(inner, lanes_back=False, may_go_back=True).without_refs()

    def inside_rule(self) -> Place:
        """A rule for differentiating: JAX may trace it after what is around it, so it sees the state alone."""
        return dataclasses.replace(
            self.inside(), values=(), lanes=True, forward=True, backward=True, lanes_back=False, may_call=False
        ).without_refs()

    def inside_vmap(self, lane: str) -> Place:
        inner = dataclasses.replace(self.inside(lane), lanes=True, lanes_back=self.backward)
        return inner.without_refs(may_make=self.may_make - {"run_state"})  # which JAX cannot batch

    def without_refs(self, *, may_make: Iterable[str] = ()) -> Place:
        return dataclasses.replace(self, refs=(), may_make=self.may_make & frozenset(may_make))


class Generator:
    """One program, built from a `Draw`'s decisions."""

    place: ClassVar[type[Place]] = Place

    def __init__(self, draw: Draw, prefix: str, features: frozenset[str], failure: str):
        self.draw = draw
        self.prefix = prefix
        self.features = features
        self.failure = failure  # "none"; of a callback: "exact", or "loose" of an unordered one that is awaited
        self.labels = 0
        self.variables = 0
        self.left = 0  # statements that may still be made
        self.functions: list[Function] = []
        self.leaves: list[Callable[[Place], Statement]] = [
            *[self.ordered] * 5,
            *[self.assign] * 3,
            *[self.unordered] * 2,
            self.optimization_barrier,
            *[self.scale] * 2,
        ]
        words = draw.choice(("prints", "queued", "all", "all", "all"))
        if words != "prints" and "log" in features:
            self.leaves += [*[self.log] * 2, self.log_unordered]
        if words != "prints" and "callback" in features:
            self.leaves += [*[self.queued] * 2, self.queued_unordered]
        if words == "all" and "callback" in features:
            self.leaves += [*[self.sync] * 5, *[self.sync_unordered] * (4 if failure == "loose" else 1)]
        if words != "queued" and "native" in features:
            self.leaves += [*[self.native] * 2, self.native_unordered]
        self.fails = failure != "none" and draw.integer(0, 1) == 1
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
        # What a block has at least: a print, or sometimes another ordered effect.
        others = (self.log, self.queued, self.sync)
        self.first_leaves = [*[self.ordered] * 3, *[leaf for leaf in others if leaf in self.leaves]]
        if "vmap" in features:
            self.nests += [self.vmap] * 3
        if "grad" in features:
            self.leaves += [self.print_grad] * 2
            self.nests += [*[self.derivative] * 3, self.custom_rule]

    def program(self, size: int) -> Program:
        anywhere = self.anywhere()
        for number in range(self.draw.choice((0, 0, 1, 2))):
            self.left = self.draw.integer(1, 3)
            body = self.block(anywhere, 3, effect=True)
            self.functions.append(Function(f"f{number}", self.draw.choice(("jit", "jit", "effects_jit")), body))
        self.left = size
        body: Block_ = ()
        while self.left > 0:
            body += (self.statement(self.place(depth=3)),)
        last = Effect("ordered", self.label(), tuple(map(Name, ("n", *REGISTERS, "x"))))
        return Program(tuple(self.functions), (*body, last))

    def anywhere(self) -> Place:
        """Where a function is called."""
        return self.place(depth=1, lanes=True, forward=True, backward=True, lanes_back=True)

    def block(self, place: Place, most: int = 3, effect: bool = False) -> Block_:
        """A few statements; more often than not with an effect among them."""
        body: list[Statement] = []
        if effect or self.draw.integer(0, 2) > 0:
            body.append(self.draw.choice(self.first_leaves_at(place))(place))
        for _ in range(self.draw.integer(0, most)):
            if self.left > 0:
                body.append(self.statement(place))
        if len(body) > 1 and self.draw.integer(0, 1):
            body.append(body.pop(0))
        return tuple(body)

    def statement(self, place: Place) -> Statement:
        self.left -= 1
        if place.depth > 0 and self.left > 0 and self.draw.integer(0, 1):
            return self.draw.choice(self.nests_at(place))(place)
        leaves = list(self.leaves_at(place))
        if place.refs:
            leaves += [self.write] * 3
        if self.callable_from(place):
            leaves += [self.call] * 4
        if place.depth > 1:
            leaves.append(self.associative_scan)
        return self.draw.choice(leaves)(place)

    def leaves_at(self, place: Place) -> Sequence[Callable[[Any], Statement]]:
        return self.leaves

    def first_leaves_at(self, place: Place) -> Sequence[Callable[[Any], Statement]]:
        return self.first_leaves

    def nests_at(self, place: Place) -> Sequence[Callable[[Any], Statement]]:
        return self.nests

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
        return Name(self.draw.choice((*REGISTERS, *place.values, *REGISTERS, "x")))

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
        # The handler of a custom call takes whole numbers.
        chain = (Chain(),) * (not kind.startswith("native") and self.draw.integer(0, 5) == 5)
        return Effect(kind, self.label(), self.operands(place) + chain)

    def operands(self, place: Place, least: int = 0) -> tuple[Expression, ...]:
        count = max(least, self.draw.choice((1, 2, 2, 3, 0)))
        operands = tuple(self.expression(place) for _ in range(count))
        if place.refs and self.draw.integer(0, 1):
            operands += (self.draw.choice((Read, Read, Reference))(self.draw.choice(place.refs)),)
        return operands

    def ordered(self, place: Place) -> Statement:
        return self.effect(place, "ordered")

    def unordered(self, place: Place) -> Statement:
        return self.effect(place, "unordered")

    def native(self, place: Place) -> Statement:
        return self.effect(place, "native")

    def native_unordered(self, place: Place) -> Statement:
        return self.effect(place, "native_unordered")

    def log(self, place: Place, kind: str = "log") -> Statement:
        level = self.draw.choice(("INFO", "INFO", "WARNING", "ERROR", "DEBUG"))
        operands = self.operands(place)
        return Log(kind, self.label(), level, operands, bool(operands) and self.draw.integer(0, 2) == 2)

    def log_unordered(self, place: Place) -> Statement:
        return self.log(place, "log_unordered")

    def callback(self, place: Place, kind: str, **parameters: Any) -> Callback:
        layout = self.draw.choice(("flat", "keywords", "array", "tree"))
        pass_record = "record" in self.features and self.draw.integer(0, 3) == 3
        actions: tuple[str, ...] = ()
        if "nested" in self.features and self.draw.integer(0, 2) == 2:
            actions = tuple(self.draw.choice(tuple(ACTIONS)) for _ in range(self.draw.choice((1, 1, 2, 3))))
        ordered = EFFECTS[kind] and not (place.lanes and kind == "sync")
        remembers = ordered and self.failure != "loose" and self.draw.integer(0, 1) == 1
        fails_at = 0
        may_fail = (self.failure == "loose") == (kind == "sync_unordered")
        if self.fails and may_fail:
            self.fails = False
            fails_at = self.draw.choice((1, 1, 2, 3))
        operands = self.operands(place, least=layout == "array")
        return Callback(kind, self.label(), operands, layout, pass_record, actions, remembers, fails_at, **parameters)

    def queued(self, place: Place) -> Statement:
        return self.callback(place, "queued")

    def queued_unordered(self, place: Place) -> Statement:
        return self.callback(place, "queued_unordered")

    def sync(self, place: Place, kind: str = "sync") -> Statement:
        structure = self.draw.choice(("leaf", "leaf", "tuple", "tree"))
        count = {"leaf": 1, "tree": self.draw.choice((1, 2, 3)), "tuple": self.draw.choice((2, 1, 3, 0))}[structure]
        results = tuple(
            (self.draw.choice(("int32", "int32", *RESULT_TYPES)), self.draw.choice((0, 0, 0, 2, 3)))
            for _ in range(count)
        )
        returns = self.draw.choice(("numpy", "numpy", "python", "jax"))
        parameters = {"target": self.register(), "results": results, "structure": structure, "returns": returns}
        return self.callback(place, kind, **parameters)

    def sync_unordered(self, place: Place) -> Statement:
        return self.sync(place, "sync_unordered")

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
        if not (place.may_call and place.may_go_back):
            return []
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
        body = self.block(place.inside_predicate(variable))
        return Fori(variable, trips, 4, body, place.backward and not isinstance(trips, int))

    def while_(self, place: Place) -> Statement:
        variable = self.variable("k")
        # JAX takes no ref of an enclosing block into a condition: it never sees what the body writes.
        test_place = dataclasses.replace(place.inside(), refs=())
        test = self.block(test_place, 2) if self.draw.integer(0, 1) else ()
        body = self.block(place.inside_predicate(variable))
        return While(variable, test, self.less(test_place), 3, body, place.backward)

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
        then, orelse = place.inside_predicate(), place.inside_other_branch()
        return Cond(self.less(place), self.block(then, 2), self.block(orelse, 2))

    def switch(self, place: Place) -> Statement:
        others = tuple(self.block(place.inside_other_branch(), 2) for _ in range(self.draw.choice((1, 2))))
        return Switch(self.expression(place), (*others, self.block(place.inside_predicate(), 2)))

    def wrapped(self, place: Place) -> Statement:
        wrapper = self.draw.choice([name for name in WRAPPERS if not (place.forward and name == "custom_vjp")])
        keep = bool(self.draw.choice((1, 1, 1, 0)))
        is_rule = wrapper in IDENTITIES and (place.forward or place.backward)
        inner = place.inside_rule() if is_rule else place.inside()
        if wrapper == "custom_jvp":
            inner = inner.without_refs()  # JAX cannot discharge it
        return Wrapped(wrapper, keep, self.block(inner))

    def vmap(self, place: Place) -> Statement:
        variable = self.variable("l")
        inner = place.inside_vmap(variable)
        xs, base = tuple(self.draw.integer(0, 9) for _ in range(self.draw.choice((2, 3, 1)))), self.atom(place)
        return Vmap(variable, xs, base, self.block(inner, effect=True), self.expression(inner), self.register())

    def scale(self, place: Place) -> Statement:
        factors = (1, -1, 2) if place.depth > 1 else (1, -1)
        return Scale(factors, self.expression(place), self.expression(place))

    def print_grad(self, place: Place) -> Statement:
        return PrintGrad(self.label()) if place.may_go_back else self.scale(place)

    def derivative(self, place: Place) -> Statement:
        form = self.draw.choice(tuple(dict.fromkeys((*BACKWARD, *FORWARD))))
        label = self.label()
        return Derivative(form, label, self.block(place.inside_derivative(form)), self.register())

    def custom_rule(self, place: Place) -> Statement:
        if place.forward or not place.may_go_back:
            return self.wrapped(place)
        label, inner = self.label(), place.inside().without_refs()
        body, forward, backward = (self.block(at, 2) for at in (inner, place.inside_rule(), place.inside_rule()))
        return CustomRule(label, body, forward, backward, self.draw.choice((1, -1)))

    def solve(self, place: Place) -> Statement:
        if place.forward or place.backward:  # JAX solves for derivatives too, with the user's solver
            return self.wrapped(place)
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
        *("scale", "custom_rule", *BACKWARD, *FORWARD),
        *("vmap", "log_array", "log_below", "record"),
        *(f"args_{layout}" for layout in ("flat", "keywords", "array", "tree")),
        *(f"action_{action}" for action in ACTIONS),
        *(f"results_{structure}" for structure in ("leaf", "tuple", "tree")),
        *(f"result_{dtype}" for dtype in RESULT_TYPES),
        *(f"returns_{form}" for form in ("numpy", "python", "jax")),
        *(f"fails_{kind}" for kind in ("queued", "queued_unordered", "sync", "sync_unordered")),
        *("assign", "optimization_barrier", "associative_scan", "map", "call", "call_dropped", "dropped_result"),
        *("fori_static", "fori_dynamic", "while", "while_test", "cond", "switch"),
        *("scan", "scan_reverse", "scan_unroll_2", "scan_unroll_3"),
        *("solve", "solve_residual", "new_ref", "freeze", "run_state", "write"),
    }
)


def _case(draw: Draw, size: int, features: frozenset[str]) -> Case:
    """One to four dispatches: a program, then the same again or a smaller one; after one that may fail one more."""
    failure = draw.choice((*["none"] * 5, *["exact"] * 4, "loose")) if "failures" in features else "none"

    def program(size: int) -> Program:
        made = Generator(draw, "ABCD"[len(programs)], features, failure).program(size)
        programs.append(made)
        return made

    def run(program: Program, fresh: bool) -> Run:
        state = tuple(draw.integer(0, MODULUS - 1) for _ in REGISTERS) if fresh else None
        if not on_devices or draw.integer(0, 1) == 0:
            return Run(program, state)
        return Run(program, state, draw.integer(0, 3), draw.integer(0, 2) == 2)

    programs: list[Program] = []
    on_devices = "devices" in features and draw.integer(0, 3) == 3
    program(size)
    runs: list[Run] = []
    for number in range(draw.choice((1, 2, 3, 4))):
        again = number == 0 or draw.integer(0, 3) < 3
        chosen = draw.choice(programs) if again else program(max(2, size // 2))
        runs.append(run(chosen, number == 0 or draw.integer(0, 1) == 0))
    if any(isinstance(s, Callback) and s.fails_at for s in statements(tuple(programs))):
        runs.append(run(draw.choice(programs), False))
    return Case(
        tuple(runs),
        "process" if "process" in features and draw.integer(0, 9) == 9 else "thread",
        draw.integer(0, 9) == 9 and "capture" in features,
        "context" in features and draw.integer(0, 1) == 1,
    )


def generate(rng: random.Random, size: int, failure: str = "none") -> Program:
    """A random program of about `size` statements."""
    return Generator(RandomDraw(rng), "A", FEATURES, failure).program(size)


def generate_case(rng: random.Random, features: frozenset[str] = FEATURES) -> Case:
    """A random sequence for `check`."""
    return _case(RandomDraw(rng), rng.randint(4, 14), features)


@st.composite
def cases(draw: Callable[[st.SearchStrategy[Any]], Any], max_size: int = 12) -> Case:
    """The hypothesis strategy for `check`: what it finds, it shrinks."""
    return _case(HypothesisDraw(draw), draw(st.integers(2, max_size)), FEATURES)


def case_number(seed: int, number: int, features: frozenset[str] = FEATURES) -> Case:
    """Sequence `number` of the bulk run with `seed`: the same on every machine and for every number of jobs."""
    return generate_case(random.Random(f"{seed}:{number}"), features)


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
    cases: collections.Counter[str] = field(default_factory=collections.Counter)
    errors: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)
    peak_kib: int = 0

    def count(self, case: Case, outcome: Outcome) -> None:
        programs = tuple(dict.fromkeys(run.program for run in case.runs))
        self.sequences += 1
        self.programs += len(programs)
        self.dispatches += len(case.runs)
        self.cases.update(case.kinds())
        for statement in statements(programs):
            self.statements.update(statement.kinds())
        effects = kinds_of_labels(programs)
        words = [line.split(" ", 1)[0] for line in outcome.lines]
        self.fired.update(effects.get(word, "parts") for word in words)
        self.errors["raised by calls"] += sum(isinstance(state, str) for state in outcome.states)
        self.errors["raised by barriers"] += len(outcome.errors)

    def add(self, other: Tally) -> None:
        self.sequences += other.sequences
        self.programs += other.programs
        self.dispatches += other.dispatches
        self.statements += other.statements
        self.fired += other.fired
        self.cases += other.cases
        self.errors += other.errors
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
        case = case_number(seed, number, runner.features)
        try:
            outcome = check(case, runner)
        except AssertionError as error:
            outcome = Outcome()
            tally.failures.append((number, str(error)))
        tally.count(case, outcome)
    faulthandler.cancel_dump_traceback_later()
    note.unlink()
    jax.clear_caches()
    gc.collect()
    tally.peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return tally


def _chunks(seed: int, programs: int, features: frozenset[str]) -> list[range]:
    """The numbers of as many sequences as hold that many programs, in chunks."""
    found = number = 0
    while found < programs:
        found += len({run.program for run in case_number(seed, number, features).runs})
        number += 1
    return [range(start, min(start + CHUNK, number)) for start in range(0, number, CHUNK)]


def _run_all(seed: int, programs: int, jobs: int, runner_name: str) -> tuple[Tally, bool]:
    """Runs everything in `jobs` processes; also answers whether every process lived to the end."""
    total, started, shown = Tally(), time.monotonic(), 0.0
    context = multiprocessing.get_context("spawn")
    numbers = _chunks(seed, programs, FEATURES if runner_name == "library" else JAX_FEATURES)
    with (
        tempfile.TemporaryDirectory() as notes,
        concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool,
    ):
        chunks = [pool.submit(_run_chunk, seed, chunk, runner_name, notes) for chunk in numbers]
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
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=4"
    if options.only is not None:
        runner = RUNNERS[options.runner]()
        case = case_number(options.seed, options.only, runner.features)
        print(describe(case), flush=True)
        faulthandler.dump_traceback_later(STUCK_AFTER, exit=True)
        try:
            outcome = check(case, runner)
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
    for name in ("cases", "statements", "fired", "errors"):
        counts = getattr(total, name)
        print(f"{name}:", ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())))
    print(f"failed: {len(total.failures)}")
    for number, _ in sorted(total.failures):
        print("   ", _again(options.seed, number, options.runner))
    return 0 if alive and not total.failures else 1


if __name__ == "__main__":
    sys.exit(main())
