"""Random statements without statements inside, and the names and expressions that all statements are made of."""

from __future__ import annotations

from typing import Any

from tests.oracle.expressions import Binary, Chain, Less, Literal, Name, Read, Reference
from tests.oracle.language import (
    ACTIONS,
    DOMAINS,
    EFFECTS,
    FAR,
    REGISTERS,
    RESULT_TYPES,
    SWITCHES,
    Expression,
    Statement,
    is_native,
    is_of_jax,
)
from tests.oracle.place import Draw, Place
from tests.oracle.statements.callback import Callback
from tests.oracle.statements.control import AssociativeScan
from tests.oracle.statements.derivatives import PrintGrad, Scale
from tests.oracle.statements.effects import Check, Effect, Filtered, Log
from tests.oracle.statements.state import Assign, OptimizationBarrier, Write


class Leaves:
    """What makes one statement at a place, from a `Draw`'s decisions."""

    def __init__(self, draw: Draw, prefix: str, features: frozenset[str], failure: str):
        self.draw = draw
        self.prefix = prefix
        self.features = features
        self.failure = failure  # "none"; of a callback: "exact", or "loose" of an unordered one that is awaited
        self.fails = False  # whether a callback is still to be made that raises
        self.labels = 0
        self.variables = 0

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
        if kind == 5 or not (place.state or place.values):
            return Literal(self.draw.integer(0, 9))
        if kind == 4 and place.refs:
            return Read(self.draw.choice(place.refs))
        return Name(self.draw.choice((*REGISTERS, *place.values, *REGISTERS, "x") if place.state else place.values))

    def expression(self, place: Place) -> Expression:
        operator = self.draw.choice(("", "+", "-", "*"))
        return Binary(operator, self.atom(place), self.atom(place)) if operator else self.atom(place)

    def less(self, place: Place) -> Less:
        if place.lanes and place.known and self.draw.integer(0, 1):
            return Less(Name(self.draw.choice(place.known)), self.atom(place.with_known_values()))
        return Less(Name(self.register()), self.draw.choice((self.atom(place), Literal(48))))

    def xs(self) -> tuple[int, ...]:
        return tuple(self.draw.integer(0, 9) for _ in range(self.draw.choice((2, 3, 1, 4, 0))))

    def register(self) -> str:
        return self.draw.choice(REGISTERS)

    # Statements

    def effect(self, place: Place, kind: str) -> Statement:
        place = self.operands_place(place, kind)
        # The handler of a custom call takes whole numbers.
        chain = (Chain(),) * (place.state and not is_native(kind) and self.draw.integer(0, 5) == 5)
        return Effect(kind, self.label(), self.operands(place) + chain)

    def operands_place(self, place: Place, kind: str) -> Place:
        """The place for the operands of an effect. JAX's own effects happen once along an axis of lanes along which no
        operand is mapped, which the reading must know."""
        return place.with_known_values() if place.lanes and is_of_jax(kind) else place

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

    def filtered(self, place: Place) -> Statement:
        every, first = self.draw.choice((1, 2, 3, 5)), self.draw.choice((0, 0, 1, 3))
        once, test = self.draw.integer(0, 5) == 5, self.less(place) if self.draw.integer(0, 2) == 2 else None
        return Filtered(self.label(), self.operands(place), every, first, once, test)

    def native(self, place: Place) -> Statement:
        return self.effect(place, "native")

    def native_unordered(self, place: Place) -> Statement:
        return self.effect(place, "native_unordered")

    def apart(self, place: Place) -> Statement:
        return self.effect(place, "apart")

    def apart_print(self, place: Place) -> Statement:
        return self.effect(place, "apart_print")

    def far(self, place: Place) -> Statement:
        return self.effect(place, self.draw.choice(tuple(FAR)))

    def jax_print(self, place: Place) -> Statement:
        return self.effect(place, "jax_print")

    def jax_print_ordered(self, place: Place) -> Statement:
        return self.effect(place, "jax_print_ordered")

    def log(self, place: Place, kind: str = "log") -> Statement:
        level = self.draw.choice(("INFO", "INFO", "WARNING", "ERROR", "DEBUG"))
        operands = self.operands(place)
        return Log(kind, self.label(), level, operands, bool(operands) and self.draw.integer(0, 2) == 2)

    def log_unordered(self, place: Place) -> Statement:
        return self.log(place, "log_unordered")

    def check(self, place: Place) -> Statement:
        return Check(self.label(), self.less(place), self.operands(place))

    def callback(self, place: Place, kind: str, **parameters: Any) -> Callback:
        layout = self.draw.choice(("flat", "keywords", "array", "tree"))
        has_record = "record" in self.features and not is_of_jax(kind)
        pass_record = has_record and self.draw.integer(0, 3) == 3
        actions: tuple[str, ...] = ()
        if kind not in DOMAINS and "nested" in self.features and self.draw.integer(0, 2) == 2:
            actions = tuple(self.draw.choice(tuple(ACTIONS)) for _ in range(self.draw.choice((1, 1, 2, 3))))
        if "switches" in self.features and kind == "sync" and self.draw.integer(0, 3) == 3:
            actions = (*actions, self.draw.choice(SWITCHES))
        ordered = EFFECTS[kind] and kind not in DOMAINS and not (place.lanes and kind in ("sync", "jax_sync"))
        remembers = ordered and self.failure != "loose" and self.draw.integer(0, 1) == 1
        fails_at = 0
        may_fail = kind not in DOMAINS and (self.failure == "loose") == (kind == "sync_unordered")
        if self.fails and may_fail:
            self.fails = False
            fails_at = self.draw.choice((1, 1, 2, 3))
        operands = self.operands(self.operands_place(place, kind), least=layout == "array")
        return Callback(kind, self.label(), operands, layout, pass_record, actions, remembers, fails_at, **parameters)

    def queued(self, place: Place) -> Statement:
        return self.callback(place, "queued")

    def queued_unordered(self, place: Place) -> Statement:
        return self.callback(place, "queued_unordered")

    def queued_apart(self, place: Place) -> Statement:
        return self.callback(place, "queued_apart")

    def sync(self, place: Place, kind: str = "sync") -> Statement:
        structure = self.draw.choice(("leaf", "leaf", "tuple", "tree"))
        fewest = 1 if kind == "jax_sync" else 0  # nothing waits for an `io_callback` without results
        count = {"leaf": 1, "tree": self.draw.choice((1, 2, 3)), "tuple": self.draw.choice((2, 1, 3, fewest))}[
            structure
        ]
        types = ("int32", "int32", *RESULT_TYPES)
        results = tuple((self.draw.choice(types), self.draw.choice((0, 0, 0, 2, 3))) for _ in range(count))
        returns = self.draw.choice(("numpy", "numpy", "python", "jax"))
        parameters = {"target": self.register(), "results": results, "structure": structure, "returns": returns}
        return self.callback(place, kind, **parameters)

    def sync_unordered(self, place: Place) -> Statement:
        return self.sync(place, "sync_unordered")

    def jax_queued(self, place: Place) -> Statement:
        return self.callback(place, "jax_queued")

    def jax_io(self, place: Place) -> Statement:
        return self.callback(place, "jax_io")

    def jax_sync(self, place: Place) -> Statement:
        return self.sync(place, "jax_sync")

    def assign(self, place: Place) -> Statement:
        return Assign(self.register(), self.expression(place))

    def optimization_barrier(self, place: Place) -> Statement:
        return OptimizationBarrier()

    def associative_scan(self, place: Place) -> Statement:
        return AssociativeScan((*self.xs(), 1), self.atom(place), self.register())

    def write(self, place: Place) -> Statement:
        return Write(self.draw.choice(place.refs), self.expression(place))

    def scale(self, place: Place) -> Statement:
        factors = (1, -1, 2) if place.depth > 1 else (1, -1)
        return Scale(factors, self.expression(place), self.expression(place))

    def print_grad(self, place: Place) -> Statement:
        return PrintGrad(self.label()) if place.may_go_back else self.scale(place)
