"""What a jaxpr does while an asynchronous operation is under way.

The jaxpr is read in the order of the program, with the ticket of each operation followed through loops, branches and
nested functions. A loop's body is read twice, since what one turn starts the next may end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from effects import _jax
from effects.extensions.asynchronous.operation import Operation
from effects.extensions.asynchronous.primitives import ASYNC, async_done_p, async_start_p, async_update_p
from effects.extensions.asynchronous.ties import is_asynchronous
from effects.lowering.summary import summarize

Path = tuple[tuple[int, int], ...]
"""For each branch around an equation: which visit to a `cond` it is part of, and which branch."""


Place = tuple[int, ...]
"""Where an equation stands in the program, by the equations around it. It is the same in all turns of a loop."""


class Step(NamedTuple):
    """An equation when the program comes to it.

    Attributes:
        eqn: The equation.
        path: The branches that it is in.
        references: The references that it takes: the variables that they have where they come into the program.
        results: The flights whose results it takes, by number.
    """

    eqn: Any
    path: Path
    references: tuple[Any, ...]
    results: frozenset[int]


@dataclasses.dataclass
class Flight:
    """An operation from where it is started: the positions of its equations among the steps."""

    operation: Operation
    start: int
    place: Place
    updates: list[int] = dataclasses.field(default_factory=list)
    dones: list[int] = dataclasses.field(default_factory=list)


class _Value(NamedTuple):
    """What is known of a value: the flights of which it is the ticket, those that it is a result of, and the variable
    of a reference."""

    tickets: frozenset[int] = frozenset()
    results: frozenset[int] = frozenset()
    reference: Any = None


_UNKNOWN = _Value()


class Flights:
    """All steps of a jaxpr, and all operations that it starts.

    Attributes:
        steps: The steps, in the order of the program.
        flights: The operations, each as often as a step starts it.
    """

    def __init__(self, jaxpr: Any) -> None:
        self.steps: list[Step] = []
        self.flights: list[Flight] = []
        self._visits = 0
        self._around: Place = ()
        inner = _open(jaxpr)
        self._read(inner, [_Value(reference=var) if _is_reference(var) else _UNKNOWN for var in inner.invars], ())

    def between(self, flight: Flight, done: int) -> Iterator[int]:
        """The positions of the steps between a start and this done of it. What is in another branch is not there."""
        ends = self.steps[flight.start].path, self.steps[done].path
        steps = range(flight.start + 1, done)
        return (at for at in steps if not any(exclude(self.steps[at].path, path) for path in ends))

    def operation_at(self, at: int) -> Operation | None:
        """The operation that a step starts, updates or ends."""
        found = (flight for flight in self.flights if at in (flight.start, *flight.updates, *flight.dones))
        return next((flight.operation for flight in found), None)

    def _read(self, jaxpr: Any, args: Sequence[_Value], path: Path) -> list[_Value]:
        known = dict(zip(jaxpr.invars, args, strict=True))

        def value(atom: Any) -> _Value:
            return _UNKNOWN if hasattr(atom, "val") else known.get(atom, _UNKNOWN)

        for eqn in jaxpr.eqns:
            outs = self._step(eqn, [value(atom) for atom in eqn.invars], path)
            for var, out in zip(eqn.outvars, outs, strict=True):
                known[var] = _Value(reference=var) if _is_reference(var) and out.reference is None else out
        return [value(atom) for atom in jaxpr.outvars]

    def _step(self, eqn: Any, values: list[_Value], path: Path) -> Sequence[_Value]:
        primitive, at = eqn.primitive, len(self.steps)
        if primitive not in (async_start_p, async_update_p, async_done_p) and is_asynchronous(eqn):
            around, self._around = self._around, (*self._around, id(eqn))
            outs = self._inside(eqn, values, path)
            self._around = around
            if outs is not None:
                return outs
        references = tuple(value.reference for value in values if value.reference is not None)
        results = _union(value.results for value in values)
        self.steps.append(Step(eqn, path, references, results))
        if primitive is async_start_p:
            self.flights.append(Flight(eqn.params["operation"], at, (*self._around, id(eqn))))
            return [_Value(tickets=frozenset([len(self.flights) - 1]))]
        if primitive in (async_update_p, async_done_p):
            ticket = values[-1]
            for number in ticket.tickets:
                flight = self.flights[number]
                (flight.dones if primitive is async_done_p else flight.updates).append(at)
            found = _Value(results=ticket.tickets)
            return [found if i or primitive is async_done_p else ticket for i in range(len(eqn.outvars))]
        return [_Value(_union(value.tickets for value in values), results)] * len(eqn.outvars)

    def _inside(self, eqn: Any, values: list[_Value], path: Path) -> list[_Value] | None:
        params = eqn.params
        if eqn.primitive is _jax.scan_p:
            consts, carried = _jax.read_scan(params)
            return self._loop([(params["jaxpr"], values[:consts])], values[consts:], carried, path)
        if eqn.primitive is _jax.while_p:
            of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
            consts, carry = values[: of_cond + of_body], values[of_cond + of_body :]
            both = [(params["body_jaxpr"], consts[of_cond:]), (params["cond_jaxpr"], consts[:of_cond])]
            self._read(_open(params["cond_jaxpr"]), [*consts[:of_cond], *carry], path)
            outs = self._loop(both, carry, len(carry), path)
            return [_join(values) for values in zip(carry, outs, strict=True)]
        if eqn.primitive is _jax.cond_p:
            self._visits += 1
            visit = self._visits
            outs = [
                self._read(_open(branch), values[1:], (*path, (visit, i)))
                for i, branch in enumerate(params["branches"])
            ]
            return [_join(values) for values in zip(*outs, strict=True)]
        for inner in map(_open, _jax.jaxprs_in(params)):
            if len(inner.invars) == len(values) and len(inner.outvars) == len(eqn.outvars):
                return self._read(inner, values, path)
        return None

    def _loop(
        self, body_and_condition: list[tuple[Any, list[_Value]]], values: list[_Value], carried: int, path: Path
    ) -> list[_Value]:
        """Two turns. The condition, if there is one, is asked behind each."""
        (body, consts), *condition = body_and_condition
        outs: list[_Value] = []
        for _ in range(2):
            outs = self._read(_open(body), [*consts, *values], path)
            values = [*outs[:carried], *values[carried:]]
            for asked, own in condition:
                self._read(_open(asked), [*own, *values], path)
        return outs


def _open(jaxpr: Any) -> Any:
    return jaxpr.jaxpr if _jax.is_closed(jaxpr) else jaxpr


def _is_reference(var: Any) -> bool:
    return _jax.is_reference_type(var.aval)


def _union(sets: Any) -> frozenset[int]:
    return frozenset().union(*sets)


def _join(values: Sequence[_Value]) -> _Value:
    """What a value is of which it is not known from which branch it comes."""
    return _Value(_union(value.tickets for value in values), _union(value.results for value in values))


def exclude(one: Path, other: Path) -> bool:
    """Whether these are in two branches of one `cond`, of which a program takes one."""
    branches = dict(other)
    return any(branches.get(visit, branch) != branch for visit, branch in one)


# Uses of a reference while an asynchronous operation is under way that writes to it when it is done.

MSG_REFERENCE_UNDER_WAY = (
    "A reference of type {type} is used at {use}, between the start of `{name}` at {start} and its done at {done}. "
    "The operation writes to it in between, at a time that nothing says. Use the reference ahead of the start or "
    "behind the done, or let the operation write to another one."
)


@_jax.weakref_lru_cache
def _writes_references(jaxpr: Any) -> bool:
    """Whether an operation is started that writes to a reference. Asked once for each jaxpr, as `Flights` reads a
    function as often as it is called."""
    return ASYNC in summarize(jaxpr).effects and any(
        (eqn.primitive is async_start_p and eqn.params["operation"].into_reference)
        or any(map(_writes_references, _jax.jaxprs_in(eqn.params)))
        for eqn in jaxpr.eqns
    )


def check_references(jaxpr: Any) -> None:
    """Raises if a reference is used that an operation under way writes to."""
    if not _writes_references(jaxpr):
        return
    flights = Flights(jaxpr)
    steps = flights.steps
    for at, write in enumerate(steps):
        for number in write.results if write.references else ():
            flight = flights.flights[number]
            if not flight.operation.into_reference:
                continue
            reference = write.references[0]
            for use in flights.between(flight, at):
                if reference in steps[use].references:
                    raise ValueError(
                        MSG_REFERENCE_UNDER_WAY.format(
                            type=reference.aval,
                            use=_jax.source_of(steps[use].eqn),
                            name=flight.operation.name,
                            start=flight.operation.where,
                            done=_jax.source_of(write.eqn),
                        )
                    )
