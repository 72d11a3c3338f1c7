"""Random programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from tests.oracle.expressions import Name
from tests.oracle.jax_ import IDENTITIES, WRAPPERS
from tests.oracle.language import (
    ACTIONS,
    DOMAINS,
    EFFECTS,
    REGISTERS,
    RESULT_TYPES,
    SWITCHES,
    Block_,
    Function,
    Program,
    Statement,
    statements,
)
from tests.oracle.leaves import Leaves
from tests.oracle.place import Draw, Place
from tests.oracle.statements.arrays import TYPES, TokenLike
from tests.oracle.statements.asynchronous import InFlight
from tests.oracle.statements.calls import Call, Solve, Vmap, Wrapped
from tests.oracle.statements.control import Cond, Fori, Map, Scan, Switch, While
from tests.oracle.statements.derivatives import BACKWARD, FORWARD, CustomRule, Derivative
from tests.oracle.statements.effects import Effect, Fails, Log
from tests.oracle.statements.state import RefBlock


class Generator(Leaves):
    """One program, built from a `Draw`'s decisions."""

    place: ClassVar[type[Place]] = Place

    def __init__(self, draw: Draw, prefix: str, features: frozenset[str], failure: str):
        super().__init__(draw, prefix, features, failure)
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
        if "filters" in features:
            self.leaves += [self.filtered] * (30 if "more_filters" in features else 3)
        if words != "prints" and "log" in features:
            self.leaves += [*[self.log] * 2, self.log_unordered]
        if words != "prints" and "check" in features:
            self.leaves += [self.check] * 2
        if words != "prints" and "callback" in features:
            self.leaves += [*[self.queued] * 2, self.queued_unordered]
        if words == "all" and "callback" in features:
            self.leaves += [*[self.sync] * 5, *[self.sync_unordered] * (4 if failure == "loose" else 1)]
        if words != "queued" and "domains" in features and failure == "none":
            self.leaves += [self.far] * 3
        if "jax" in features:
            self.leaves += [*[self.jax_print] * 2, self.jax_print_ordered]
            if words != "prints" and "callback" in features:
                self.leaves += [self.jax_queued, self.jax_io]
            if words == "all" and "callback" in features:
                self.leaves += [self.jax_sync] * 2
        self.has_native = "native" in features
        if words != "queued" and self.has_native:
            self.leaves += [*[self.native] * 2, self.native_unordered, self.apart, self.apart_print]
            if words != "prints" and "callback" in features:
                self.leaves += [self.queued_apart]
        self.fails = failure in ("exact", "loose") and draw.integer(0, 1) == 1
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
        if "arrays" in features:
            self.nests += [self.token_like] * 2
        if words == "all" and "async" in features:
            self.nests += [self.in_flight] * 3
        # What a block has at least: a print, or sometimes another ordered effect.
        others = (self.log, self.queued, self.sync, self.jax_print, self.jax_sync)
        self.first_leaves = [*[self.ordered] * 3, *[leaf for leaf in others if leaf in self.leaves]]
        self.first_leaves += [self.filtered] * (9 if "more_filters" in features else 0)
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
            body += (self.statement(self.place(depth=3)), *self.next_to_each_other(self.place(depth=3)))
        if self.queued_apart in self.leaves and "barriers" in self.features and self.draw.integer(0, 4) == 4:
            body = (self.queued_apart(self.place(depth=1)), *body)  # which a barrier for others does not wait for
        if self.failure == "native" and self.draw.integer(0, 1):
            at = self.draw.integer(0, len(body))
            body = (*body[:at], Fails(self.label(), self.less(self.place(depth=1))), *body[at:])
        last = Effect("ordered", self.label(), tuple(map(Name, ("n", *REGISTERS, "x"))))
        return Program(tuple(self.functions), (*body, last))

    def anywhere(self) -> Place:
        """Where a function is called."""
        return self.place(depth=1, lanes=True, known=(), forward=True, backward=True, lanes_back=True)

    def block(self, place: Place, most: int = 3, effect: bool = False) -> Block_:
        """A few statements; more often than not with an effect among them."""
        body: list[Statement] = []
        if effect or self.draw.integer(0, 2) > 0:
            body.append(self.draw.choice(self.first_leaves_at(place))(place))
        for _ in range(self.draw.integer(0, most)):
            if self.left > 0:
                body.append(self.statement(place))
        body += self.next_to_each_other(place)
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

    def next_to_each_other(self, place: Place) -> Block_:
        """Sometimes a few effects that show what is known ahead of them, so that nothing stands between them."""
        kinds = ["ordered", "ordered", "unordered", *["log"] * (self.log in self.leaves)]
        effects: list[Statement] = []
        for _ in range(self.draw.choice((0, 0, 0, 2, 3, 5))):
            kind, operands = self.draw.choice(kinds), tuple(self.atom(place) for _ in range(self.draw.integer(0, 2)))
            is_log, label = kind == "log", self.label()
            effects.append(Log(kind, label, "INFO", operands, False) if is_log else Effect(kind, label, operands))
        return tuple(effects)

    def leaves_at(self, place: Place) -> Sequence[Callable[[Any], Statement]]:
        return self.leaves

    def first_leaves_at(self, place: Place) -> Sequence[Callable[[Any], Statement]]:
        return self.first_leaves

    def nests_at(self, place: Place) -> Sequence[Callable[[Any], Statement]]:
        return self.nests

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
        test = self.less(place)
        place = place.inside_branch(test)
        then, orelse = place.inside_predicate(), place.inside_other_branch()
        return Cond(test, self.block(then, 2), self.block(orelse, 2))

    def switch(self, place: Place) -> Statement:
        is_known = place.lanes and place.known and self.draw.integer(0, 1)
        index = self.expression(place.with_known_values() if is_known else place)
        place = place.inside_branch(index)
        others = tuple(self.block(place.inside_other_branch(), 2) for _ in range(self.draw.choice((1, 2))))
        return Switch(index, (*others, self.block(place.inside_predicate(), 2)))

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
        xs, base = tuple(self.draw.integer(0, 9) for _ in range(self.draw.choice((2, 3, 1)))), self.atom(place)
        inner = place.inside_vmap(variable, place.knows(base))
        body, result, target = self.block(inner, effect=True), self.expression(inner), self.register()
        return Vmap(variable, xs, base, body, result, target, apart=place.backward)

    def in_flight(self, place: Place) -> Statement:
        turns = self.draw.choice((None, None, 0, 1, 2, 3))
        often = ("async_x",) * (8 if place.forward or place.backward else 2)
        native = ("async_native",) * self.has_native
        kind = self.draw.choice(("async_host", "async_values", *native, *often))
        if kind == "async_x":  # each doubles a slope, which is a whole number of `float32`
            kind, turns = ("async_x", turns and min(turns, 2)) if place.depth > 1 else ("async_values", turns)
        variable = self.variable("t")
        inner = place.inside() if turns is None else place.inside(variable)
        updates = self.draw.choice((0, 0, 0, 1, 2, 3))
        operands = tuple(self.expression(place) for _ in range(self.draw.choice((1, 2, 3))))
        label, body, target, factor = self.label(), self.block(inner), self.register(), self.draw.choice((1, -1))
        return InFlight(label, kind, operands, turns, variable, updates, body, target, factor)

    def token_like(self, place: Place) -> Statement:
        variable, turns = self.variable("t"), self.draw.choice((1, 2, 3, 0))
        label, first, target = self.label(), self.expression(place), self.register()
        body = self.block(place.inside(variable))
        under_way = self.in_flight in self.nests and bool(self.draw.integer(0, 1))
        return TokenLike(label, self.draw.choice(TYPES), first, turns, variable, body, target, under_way)

    def derivative(self, place: Place) -> Statement:
        form = self.draw.choice(tuple(dict.fromkeys((*BACKWARD, *FORWARD))))
        label, inner = self.label(), place.inside_derivative(form)
        body = self.block(inner)
        if self.in_flight in self.nests and self.draw.integer(0, 2) == 2:
            body += (self.in_flight(inner),)
        return Derivative(form, label, body, self.register())

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
        *(f"fails_{kind}" for kind in EFFECTS.keys() - DOMAINS if {"queued", "sync", "io"} & {*kind.split("_")}),
        *("assign", "optimization_barrier", "associative_scan", "map", "call", "call_dropped", "dropped_result"),
        *("fori_static", "fori_dynamic", "while", "while_test", "cond", "switch", "scan", "scan_reverse"),
        *("filtered_every", "filtered_first", "filtered_once", "filtered_when", *(f"action_{s}" for s in SWITCHES)),
        *("async_straight", "async_carried", "async_update"),
        *(f"array_{dtype}_{size}" for dtype, size in TYPES),
        "array_under_way",
        *("scan_unroll_2", "scan_unroll_3", "solve", "solve_residual", "new_ref", "freeze", "run_state", "write"),
    }
)
