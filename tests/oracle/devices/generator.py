"""Random programs over several devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.oracle.devices.placing import DEVICES
from tests.oracle.devices.region import MODES, REGIONS, Region
from tests.oracle.devices.statements import TALKS, Talk, TalkInFlight, Whole
from tests.oracle.expressions import Name
from tests.oracle.generator import Generator
from tests.oracle.place import Draw, Place
from tests.oracle.statements.arrays import TYPES, TokenLike
from tests.oracle.statements.asynchronous import InFlight
from tests.oracle.statements.control import Fori
from tests.oracle.statements.effects import Effect

if TYPE_CHECKING:
    from tests.oracle.language import Program, Statement
    from tests.oracle.statements.callback import Callback


@dataclass(frozen=True)
class DevicePlace(Place):
    """Where a statement of a program over several devices is generated."""

    regions: bool = True  # whether regions may be
    mode: str = ""  # of the region around, if there is one; or of a function
    together: bool = False  # whether all devices of the region come here
    checked: bool = False  # whether JAX may check which values differ between its devices

    def inside_predicate(self, *values: str) -> DevicePlace:
        inner: Any = super().inside_predicate(*values)
        return dataclasses.replace(inner, together=False)

    def inside_derivative(self, form: str) -> DevicePlace:
        inner: Any = super().inside_derivative(form)
        return dataclasses.replace(inner, together=False)

    def inside_rule(self) -> DevicePlace:
        inner: Any = super().inside_rule()
        return dataclasses.replace(inner, together=False, regions=False)

    def inside_vmap(self, lane: str, is_known: bool) -> DevicePlace:
        inner: Any = super().inside_vmap(lane, is_known)
        return dataclasses.replace(inner, together=False)


class DeviceGenerator(Generator):
    """One program over several devices."""

    place = DevicePlace

    def __init__(self, draw: Draw, prefix: str, features: frozenset[str], failure: str, pmap: bool):
        super().__init__(draw, prefix, features, failure)
        self.forms = tuple(form for form in REGIONS if pmap or form != "pmap")
        self.awaited = (self.sync, self.sync_unordered, self.jax_sync)
        self.no_region_yet = True
        self.only_in_flight = False
        """True in a region in which devices communicate by asynchronous collectives alone."""

    def leaves_at(self, place: Any) -> Sequence[Callable[[Any], Statement]]:
        leaves = self.leaves
        if not self._counts_at(place):
            leaves = [leaf for leaf in leaves if leaf != self.filtered]
        if not place.mode:
            return [*leaves, *[self.whole] * 2] if place.regions else leaves
        if place.mode == "talk_ways":
            leaves = [leaf for leaf in leaves if leaf not in self.awaited]
        if self.may_talk(place) and not self.only_in_flight:
            leaves = [*leaves, *[self.talk] * 5]
        return leaves

    def _counts_at(self, place: Any) -> bool:
        """False for lanes on several devices, since it is unknown which of these lanes are active."""
        return not (place.lanes or "pmap" in self.forms)

    def first_leaves_at(self, place: Any) -> Sequence[Callable[[Any], Statement]]:
        leaves = [leaf for leaf in super().first_leaves_at(place) if leaf != self.filtered or self._counts_at(place)]
        return [leaf for leaf in leaves if leaf not in self.awaited] if place.mode == "talk_ways" else leaves

    def nests_at(self, place: Any) -> Sequence[Callable[[Any], Statement]]:
        nests = self._nests_at(place)
        return [*nests, *[self.talk_in_flight] * 6] if self.may_talk(place) and self.in_flight in self.nests else nests

    def may_talk(self, place: Any) -> bool:
        return place.together and place.mode in ("talk_calls", "talk_ways", "both")

    def _nests_at(self, place: Any) -> Sequence[Callable[[Any], Statement]]:
        if place.mode == "talk_calls":  # no ways of each device's own
            return [
                self.scan,
                self.scan,
                self.map,
                self.wrapped,
                self.wrapped,
                self.ref_block,
                self.in_flight,
                self.token_like,
            ]
        if place.regions:
            more = [self.region] * (40 if self.no_region_yet else 12)
            return [*self.nests, *more]
        return self.nests

    def callable_from(self, place: Any) -> list[str]:
        if place.mode in MODES and (place.mode != "wide" or place.checked):
            return []  # they may have what the mode has not, or types that JAX would refuse
        return super().callable_from(place)

    def anywhere(self) -> Place:
        return dataclasses.replace(super().anywhere(), regions=False, mode="function", checked=True)  # type: ignore[call-arg]

    def program(self, size: int) -> Program:
        made = super().program(size)
        if self.no_region_yet:  # it has one at least
            self.left = 4
            made = dataclasses.replace(made, body=(self.region(self.place(depth=3)), *made.body))
        if self.in_flight in self.nests and self.draw.integer(0, 3) == 3:
            made = dataclasses.replace(made, body=(*made.body, *self._diverging()))
        return made

    def _diverging(self) -> tuple[Statement, ...]:
        """A region in which devices start different numbers of operations, and behind it an asynchronous callback."""
        place, turn, device, variable = self.place(depth=2), *map(self.variable, "tdy")
        kind, target = self.draw.choice(("async_values", "async_values", "async_host")), self.register()
        started = InFlight(self.label(), kind, (Name(variable), Name(turn)), None, "", 0, (), target)
        loop = Fori(turn, Name(device), 4, (started,))
        xs = tuple(self.draw.integer(0, 9) for _ in range(DEVICES))
        known = (f"r{self.variable('')}", self.draw.choice(self.forms), False, 1, device, variable, xs)
        region = Region(*known, self.atom(place), place.values, (loop,), Name(target), self.register(), "wide")
        label, value = self.label(), Name(self.register())
        array = TokenLike(label, self.draw.choice(TYPES), value, 2, self.variable("t"), (), self.register(), True)
        between = self.draw.choice((array, Effect("ordered", label, (value,))))
        turns, operands = self.draw.choice((None, 2)), (self.expression(place),)
        variable, updates = self.variable("t"), self.draw.choice((0, 1))
        return region, InFlight(
            self.label(), "async_host", operands, turns, variable, updates, (between,), self.register()
        )

    def callback(self, place: Any, kind: str, **parameters: Any) -> Callback:
        fails = self.fails
        made = super().callback(place, kind, **parameters)
        if kind not in ("sync", "jax_sync") or not (place.mode or place.lanes):
            return made
        made = dataclasses.replace(made, remembers=False)
        if place.mode == "talk_calls" and not place.lanes:  # all devices come, and so they fail together
            fails = self.failure != "none" and bool(self.draw.integer(0, 1))
            return dataclasses.replace(made, fails_at=self.draw.choice((1, 2, 3, 5))) if fails else made
        self.fails = fails  # where devices may wait for each other, and where it is not known which is next, none does
        return dataclasses.replace(made, fails_at=0)

    def in_flight(self, place: Any) -> Statement:
        made: Any = super().in_flight(place)
        # The end of an asynchronous callback waits for it, as one of `self.awaited` does.
        return dataclasses.replace(made, kind="async_values") if place.mode == "talk_ways" else made

    def while_(self, place: Any) -> Statement:
        return super().while_(dataclasses.replace(place, together=False))

    def solve(self, place: Any) -> Statement:
        if place.checked:
            return self.wrapped(place)  # JAX's types of the solver and of the operator do not match
        return super().solve(dataclasses.replace(place, together=False, regions=False))

    def ref_block(self, place: Any) -> Statement:
        return super().ref_block(dataclasses.replace(place, regions=False))

    def talk(self, place: Any) -> Statement:
        return Talk(self.draw.choice(TALKS), self.expression(place), self.register())

    def talk_in_flight(self, place: Any) -> Statement:
        form, value, target = self.draw.choice(TALKS), self.expression(place), self.register()
        return TalkInFlight(form, value, target, self.block(place.inside()), self.rarely())

    def whole(self, place: Any) -> Statement:
        xs = tuple(self.draw.integer(0, 9) for _ in range(DEVICES))
        sharded, two_axes = bool(self.draw.integer(0, 2)), bool(self.draw.integer(0, 1))
        per_shard = not place.lanes and bool(self.draw.integer(0, 1))  # lanes stay together
        by_jax = bool(self.draw.integer(0, 1))
        return Whole(self.label(), xs, self.atom(place), sharded, two_axes, per_shard, self.register(), by_jax)

    def region(self, place: Any) -> Statement:
        self.no_region_yet = False
        mode = self.draw.choice((*["wide"] * 3, *["talk_calls"] * 2, *["talk_ways"] * 2, *["both"] * self.rarely()))
        self.only_in_flight = mode == "both" and self.in_flight in self.nests and bool(self.draw.integer(0, 1))
        form = self.draw.choice(self.forms)
        check_vma = bool(self.draw.integer(0, 1))
        device, variable, label = self.variable("d"), self.variable("y"), f"r{self.variable('')}"
        inner = place.inside(device, variable)
        # JAX checks a ref against what it was made of.
        inner = inner.without_refs(may_make=() if check_vma else place.may_make)
        inner = dataclasses.replace(inner, regions=False, mode=mode, together=True, checked=check_vma)
        inner = dataclasses.replace(inner, depth=max(1, inner.depth))
        xs = tuple(self.draw.integer(0, 9) for _ in range(DEVICES))
        turns = self.draw.choice((1, 1, 1, 2))
        base = self.atom(place)
        self.left = max(self.left, 2)
        body = self.block(inner, 4, effect=True)
        result, target = self.expression(inner), self.register()
        return Region(
            label, form, check_vma, turns, device, variable, xs, base, place.values, body, result, target, mode
        )

    def rarely(self) -> bool:
        return self.draw.integer(0, 3) == 3
