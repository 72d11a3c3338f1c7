"""Random programs over several devices in which prints, callbacks, asynchronous callbacks and exchanges between devices
are mixed, each with a sequential reading: what every statement does, one device after the other.

A program keeps an `int32[DEVICES]` on each device. One of its functions, or the handler of a custom call, may fail on
one device, as an argument says.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import effects as fx

DEVICES = 8
MODULUS = 997
NOBODY = -1
"""What fails in a program that does not."""

WHOLE = jax.ShapeDtypeStruct((), np.int32)
HANDLED = fx.register_effect(fx.Effect("step of the storm", kind="device"))


class Failed(Exception):
    """What functions raise: (the number of the call,)."""


def mix(x: Any, y: Any) -> Any:
    return (2 * x + y) % MODULUS


def failure(label: int, device: Any) -> Any:
    """The number of the failure of this statement on this device."""
    return label * DEVICES + device


@dataclasses.dataclass
class Traced:
    """A device's program while JAX traces it."""

    x: Any
    number: Any  # of the call
    fails: Any
    futures: dict[int, Any] = dataclasses.field(default_factory=dict)

    @property
    def device(self) -> Any:
        return lax.axis_index("i")


@dataclasses.dataclass
class Read:
    """All devices' programs while they are read in their order. A failure ends the reading."""

    x: np.ndarray  # a row for each device
    number: int
    fails: int
    lines: list[str] = dataclasses.field(default_factory=list)
    futures: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)

    def each(self, line: Callable[[int, int], str], label: int = NOBODY) -> None:
        """A line for each device and the sum that it has, but none from where the statement `label` fails."""
        for device, row in enumerate(self.x):
            if label != NOBODY and failure(label, device) == self.fails:
                raise Failed(self.number)
            self.lines.append(line(device, int(row.sum())))


Statement = Any  # with `trace(Traced)`, `read(Read)`, and `failing`: the labels of what may fail


@dataclasses.dataclass(frozen=True)
class Print:
    label: int
    failing = ()

    def trace(self, at: Traced) -> None:
        fx.print("{} print {} on {}: {}", at.number, self.label, at.device, at.x.sum())

    def read(self, at: Read) -> None:
        at.each(lambda device, total: f"{at.number} print {self.label} on {device}: {total}")


@dataclasses.dataclass(frozen=True)
class Call:
    """A callback, with results or without."""

    label: int
    awaits: bool

    @property
    def failing(self) -> tuple[int, ...]:
        return (self.label,)

    def trace(self, at: Traced) -> None:
        function = _function(self.label, "call")
        got = fx.callback(function, WHOLE if self.awaits else None, at.number, at.fails, at.device, at.x.sum())
        if self.awaits:
            at.x = mix(at.x, got)

    def read(self, at: Read) -> None:
        at.each(lambda device, total: f"{at.number} call {self.label} on {device}: {total}", self.label)
        if self.awaits:
            at.x = mix(at.x, _answer(at.x.sum(1, keepdims=True)))


def _function(label: int, what: str) -> Callable[..., Any]:
    def function(number: Any, fails: Any, device: Any, total: Any) -> Any:
        if fails == failure(label, device):
            raise Failed(int(number))
        fx.print("{} {} {} on {}: {}", number, what, label, device, total)
        return np.int32(_answer(total))

    return function


def _answer(total: Any) -> Any:
    return total * 3 % MODULUS


@dataclasses.dataclass(frozen=True)
class Handler:
    """A custom call, whose handler fails where its operand is zero."""

    label: int

    @property
    def failing(self) -> tuple[int, ...]:
        return (self.label,)

    def trace(self, at: Traced) -> None:
        operand = jnp.where(at.fails == failure(self.label, at.device), 0, at.number % MODULUS + 1).astype(jnp.int32)
        at.x = mix(at.x, fx.custom_call("storm.fail_at", WHOLE, operand, at=0, effect=HANDLED))

    def read(self, at: Read) -> None:
        at.x = mix(at.x, at.number % MODULUS + 2)


@dataclasses.dataclass(frozen=True)
class Sum:
    """A collective of XLA's. A program with one has nothing that fails: XLA would wait for the others."""

    failing = ()

    def trace(self, at: Traced) -> None:
        at.x = mix(at.x, lax.psum(at.x, "i"))

    def read(self, at: Read) -> None:
        at.x = mix(at.x, at.x.sum(0))


AROUND = [(device, (device + 1) % DEVICES) for device in range(DEVICES)]
RANKS = np.arange(DEVICES, dtype=np.int32)[:, None]
EXCHANGES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    # How it is started, what is made of its result, and what all devices get
    "permute": (lambda x: fx.ppermute_start(x, "i", AROUND), lambda y: y, lambda xs: np.roll(xs, 1, axis=0)),
    "psum": (lambda x: fx.psum_start(x, "i"), lambda y: y, lambda xs: xs.sum(0)),
    "gather": (lambda x: fx.all_gather_start(x, "i"), lambda y: (y * RANKS).sum(0), lambda xs: (xs * RANKS).sum(0)),
    "to_all": (lambda x: fx.all_to_all_start(x, "i", 0, 0, tiled=True), lambda y: y, lambda xs: xs.T),
    "scatter": (lambda x: fx.psum_scatter_start(x, "i", tiled=True), lambda y: y, lambda xs: xs.sum(0)[:, None]),
    "kept": (lambda x: fx.async_start(lambda x: x * x, x), lambda y: y, lambda xs: xs * xs),
}


@dataclasses.dataclass(frozen=True)
class Start:
    """The start of an exchange, or of an asynchronous callback."""

    label: int
    kind: str
    failing = ()

    def trace(self, at: Traced) -> None:
        if self.kind == "callback":
            function = _function(self.label, "function")
            future = fx.async_callback(function, WHOLE, at.number, at.fails, at.device, at.x.sum())
        else:
            future = EXCHANGES[self.kind][0](at.x)
        at.futures[self.label] = future

    def read(self, at: Read) -> None:
        at.futures[self.label] = at.x


@dataclasses.dataclass(frozen=True)
class Update:
    label: int
    failing = ()

    def trace(self, at: Traced) -> None:
        at.futures[self.label] = fx.async_update(at.futures[self.label])

    def read(self, at: Read) -> None:
        pass


@dataclasses.dataclass(frozen=True)
class Done:
    label: int
    kind: str

    @property
    def failing(self) -> tuple[int, ...]:
        return (self.label,) if self.kind == "callback" else ()

    def trace(self, at: Traced) -> None:
        got = fx.async_done(at.futures.pop(self.label))
        at.x = mix(at.x, got if self.kind == "callback" else EXCHANGES[self.kind][1](got))

    def read(self, at: Read) -> None:
        then, now = at.futures.pop(self.label), at.x
        if self.kind == "callback":  # its effects come here, with what it was given
            at.x = then
            at.each(lambda device, total: f"{at.number} function {self.label} on {device}: {total}", self.label)
            got = _answer(then.sum(1, keepdims=True))
        else:
            got = EXCHANGES[self.kind][2](then)
        at.x = mix(now, got)


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop, or with a `carried` kind one that carries a future: done in the next turn, or behind the loop."""

    label: int
    turns: int
    body: tuple[Statement, ...]
    carried: str | None = None

    @property
    def failing(self) -> tuple[int, ...]:
        return failing(self.body)

    @property
    def _ends(self) -> list[tuple[Statement, ...]]:
        return (
            [(), ()]
            if self.carried is None
            else [(Start(self.label, self.carried),), (Done(self.label, self.carried),)]
        )

    def trace(self, at: Traced) -> None:
        start, done = self._ends
        trace(start, at)

        def turn(_: Any, carry: Any) -> Any:
            x, future = carry
            inner = Traced(x, at.number, at.fails, {} if future is None else {self.label: future})
            trace((*done, *self.body, *start), inner)
            return inner.x, inner.futures.get(self.label)

        at.x, future = lax.fori_loop(0, self.turns, turn, (at.x, at.futures.pop(self.label, None)))
        if future is not None:
            at.futures[self.label] = future
        trace(done, at)

    def read(self, at: Read) -> None:
        start, done = self._ends
        read((*start, *(*done, *self.body, *start) * self.turns, *done), at)


@dataclasses.dataclass(frozen=True)
class Branch:
    """Calls with even numbers do the one, and those with odd ones the other."""

    even: tuple[Statement, ...]
    odd: tuple[Statement, ...]
    failing = ()  # which one is taken is not known

    def trace(self, at: Traced) -> None:
        def branch(statements: Sequence[Statement]) -> Callable[[Any], Any]:
            def taken(x: Any) -> Any:
                inner = Traced(x, at.number, at.fails)
                trace(statements, inner)
                return inner.x

            return taken

        at.x = lax.cond(at.number % 2 == 0, branch(self.even), branch(self.odd), at.x)

    def read(self, at: Read) -> None:
        read(self.odd if at.number % 2 else self.even, at)


def trace(statements: Sequence[Statement], at: Traced) -> None:
    for statement in statements:
        statement.trace(at)


def read(statements: Sequence[Statement], at: Read) -> None:
    for statement in statements:
        statement.read(at)


def failing(statements: Sequence[Statement]) -> tuple[int, ...]:
    return tuple(label for statement in statements for label in statement.failing)


class Mixture:
    """A program: `statements`, and `call(x, number, fails)`."""

    def __init__(self, chance: random.Random, with_handlers: bool) -> None:
        self._chance, self._labels = chance, 0
        self._with_sum = chance.random() < 0.2
        self._with_handlers = with_handlers and chance.random() < 0.3
        self.statements = self._block(chance.randint(4, 9), 0)
        self.failing = () if self._with_sum else failing(self.statements)
        self.handlers = {statement.label for statement in self.statements if isinstance(statement, Handler)}

        def program(x: Any, number: Any, fails: Any) -> Any:
            at = Traced(x.reshape(DEVICES), number, fails)
            trace(self.statements, at)
            return at.x.reshape(x.shape)

        mesh = jax.make_mesh((DEVICES,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        spec, none = jax.P("i"), jax.P()
        region = jax.shard_map(program, mesh=mesh, in_specs=(spec, none, none), out_specs=spec, check_vma=False)
        self.call = fx.jit(region)

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.statements))

    def _label(self) -> int:
        self._labels += 1
        return self._labels

    def _block(self, length: int, depth: int) -> tuple[Statement, ...]:
        """Statements that start and end what they start."""
        statements: list[Statement] = []
        started: list[Start] = []
        for _ in range(length):
            statements.append(self._statement(depth, started))
        self._chance.shuffle(started)
        return (*statements, *(Done(start.label, start.kind) for start in started))

    def _statement(self, depth: int, started: list[Start]) -> Statement:
        choice, kinds = self._chance.random(), ["callback", "callback", *EXCHANGES]
        if choice < 0.15:
            return Print(self._label())
        if choice < 0.3:
            return Call(self._label(), self._chance.random() < 0.5)
        if choice < 0.4 and depth < 2:
            carried = self._chance.choice([None, *kinds])
            body = self._block(self._chance.randint(1, 3), depth + 1)
            return Loop(self._label(), self._chance.randint(0, 3), body, carried)
        if choice < 0.47 and depth < 2:
            return Branch(self._block(2, depth + 1), self._block(1, depth + 1))
        if choice < 0.52 and self._with_sum:
            return Sum()
        if choice < 0.6 and self._with_handlers and depth == 0:
            return Handler(self._label())
        if choice < 0.75 and started:
            start = started.pop(self._chance.randrange(len(started)))
            return Done(start.label, start.kind)
        if choice < 0.8 and started:
            return Update(self._chance.choice(started).label)
        started.append(Start(self._label(), self._chance.choice(kinds)))
        return started[-1]
