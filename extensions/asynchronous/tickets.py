"""The check of tickets: an abstract run of a program, in which futures are the values.

The run goes through loops, branches and calls. It notes each equation as a step, and each operation with the steps that
start, update and end it. It refuses a future that is not used up exactly once, or is used up as one of another
operation, and a reference that is used while an operation in flight will write to it. `fx.inspect` reads its notes.

- A call is run with the futures that it takes. A function that takes and gives none is run once, however often it is
  called.
- Branches begin with the same state and must end with the same.
- A loop's body is run twice, since what one iteration starts the next may end. It has its own futures for the carry,
  and must use them up or return them in the carry.

Operations that JAX makes for a derivative need less. If a future does not depend on the primal, its tangent is an array
of zeros, which its done takes as a future of zeros. And a future need not be done: nothing uses the operation that the
last iteration of a transposed loop starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from effects import _errors as errors
from effects import _jax
from effects.extensions.asynchronous.operation import Kept, Operation
from effects.extensions.asynchronous.primitives import async_done_p, async_start_p, async_update_p, is_asynchronous
from effects.lowering.holders import Extra, find_holder

MSG_USED_TWICE = (
    "The future of `{name}`, started at {start}, is {second} at {at}, and was {first} at {before} already. A future is "
    "used up by its update, by its done and by the loop that carries it. Keep the results of its done, go on with the "
    "future that came out of the update or the loop, or start the operation again."
)
MSG_NUMBER = (
    "The future of `{name}`, started at {start}, is used as a number by `{primitive}` at {at}. Its ticket says what is "
    "in flight, and nothing can be computed with it. Call `fx.async_done` first, and compute with the results."
)
MSG_CHOSEN = (
    "The future of `{name}`, started at {start}, is chosen by a `where` at {at}. The futures that are not chosen would "
    "never be done. Choose between the results of `fx.async_done`, or write a `jax.lax.cond` that does each future in "
    "both branches."
)
MSG_LANES = (
    "The future of `{name}`, started at {start}, meets a predicate that differs between the lanes of a `vmap` at {at}. "
    "Under `vmap` such a branch or loop runs for all lanes, and one operation is in flight for all of them. Call "
    "`fx.async_done` ahead of the branch or the loop, or loop over the lanes with `jax.lax.map`."
)
MSG_NEVER_DONE = (
    "The asynchronous operation `{name}` that starts at {start} is never done. Each start has one done in the same "
    "program, which frees the results. Call `fx.async_done` with the future, or leave out the start."
)
MSG_DROPPED_IN_LOOP = (
    "The asynchronous operation `{name}` that starts at {start} is dropped in the loop at {loop}: its future is "
    "neither done in the iteration nor carried to the next. An iteration ends its operations, or carries their futures "
    "to the next. Call `fx.async_done` in the body, or return the future as a part of what the loop carries."
)
MSG_ONE_BRANCH = (
    "The future of `{name}`, started at {start}, is {ended} at {at} in one branch of the `cond` or `switch` at "
    "{branch}, and not in another. Behind branches a future is the same whichever was taken. Do it in every branch, or "
    "return it from every branch and do it behind them."
)
MSG_BRANCH_RESULT = (
    "One branch of the `cond` or `switch` at {branch} returns the future of `{name}`, started at {start}, and another "
    "returns a number in its place. Behind branches a future is the same whichever was taken. Return a future from "
    "every branch."
)
MSG_EACH_ITERATION = (
    "The future of `{name}`, started at {start}, is {ended} at {at} in each iteration of the loop at {loop}, and comes "
    "from outside of it. A future is done once, and a loop may have many iterations. Do it ahead of the loop, or "
    "carry it and return the future of a new start."
)
MSG_NOT_CARRIED_ON = (
    "The loop at {loop} carries the future of `{name}`, started at {start}, and its body has a number in its place. A "
    "carried value is a future in every iteration or in none. Start an operation ahead of the loop, and return the "
    "future of one from its body."
)
MSG_LEAKED = (
    "The future of `{name}`, started at {start}, is returned from the program without being done. An operation in "
    "flight belongs to one call of a program, and ends with it. Return `fx.async_done(future)`."
)
MSG_REGION = (
    "The future of `{name}`, started at {start} {there}, is {ended} at {at} {here}. In a `jax.shard_map` each device "
    "starts and ends operations of its own, and outside of it the program has one for all devices. Call "
    "`fx.async_done` where the operation was started, and pass its results on."
)
MSG_FOREIGN = (
    "The value that is {ended} at {at} is no future of this program. A future is started and used up in one call of a "
    "function of `fx.jit`. Start the operation in the function, and pass its future on as it is."
)
MSG_OTHER_OPERATION = (
    "The future of `{name}`, started at {start}, is {ended} at {at} as one of {ends}, and was started as {was}. An "
    "operation is the same from its start to its done. Pass the future as its start returned it."
)
MSG_REFERENCE_UNDER_WAY = (
    "A reference of type {type} is used at {use}, between the start of `{name}` at {start} and its done at {done}. "
    "The operation writes to it in between, at a time that nothing says. Use the reference ahead of the start or "
    "behind the done, or let the operation write to another one."
)

_HANDS_ON = frozenset(
    {"pvary", "pcast", "copy", "name", "optimization_barrier", "sharding_constraint", "reshard"}
    | {"reduce_precision", "stop_gradient", "transpose"}
)
"""Primitives whose results are their operands, each in its place. A derivative, `vmap` and a region bind them."""

Path = tuple[tuple[int, int], ...]
"""For each `cond` or `switch` around an equation: the number of the visit, and of the branch."""

Place = tuple[int, ...]
"""The place of an equation, given by the equations around it. It is the same in all iterations of a loop."""


class Step(NamedTuple):
    """An equation at its turn in the run.

    Attributes:
        eqn: The equation.
        path: The branches that it is in.
        references: The references that it takes.
        flights: The operations that it starts, updates or ends.
    """

    eqn: Any
    path: Path
    references: Sequence[Reference]
    flights: Sequence[Flight]


@dataclasses.dataclass(eq=False)
class Flight:
    """An operation from where it is started.

    Attributes:
        operation: The operation that was started.
        start: The position of its start among the steps.
        place: The place of its start.
        region: The axes of the regions in which it was started.
    """

    operation: Operation
    start: int
    place: Place
    region: tuple[str, ...]


class End(NamedTuple):
    """The use that used up a future: as what, and in which line."""

    how: str
    where: str


@dataclasses.dataclass(eq=False, slots=True)
class FutureValue:
    """A future. Two are the same only if they are one object.

    Attributes:
        flights: The operations that it may be of.
        end: Its use, once it is used up.
    """

    flights: tuple[Flight, ...]
    end: End | None = None

    @property
    def is_needed(self) -> bool:
        """True if the future may be of an operation that must be done: one that is not of a derivative."""
        return not all(flight.operation.of_derivative for flight in self.flights)

    def use(self, how: str, where: str) -> None:
        if (end := self.end) is not None:
            shown = {"second": how, "at": where, "first": end.how, "before": end.where}
            raise future_error(MSG_USED_TWICE, self, **shown)
        self.end = End(how, where)


class Results(frozenset[Flight]):
    """The operations that write to references and from whose results a value was computed."""


class Reference(NamedTuple):
    """A reference, by the variable that it has where it comes into the program."""

    var: Any


Value = FutureValue | Results | Reference | None
"""A value of the run. None is anything else."""


def check_tickets(jaxpr: Any, run: Run | None = None) -> None:
    """Raises an error unless a program, a jaxpr with constants, uses each of its futures once, and no reference that an
    operation in flight writes to."""
    jaxpr = without_constants(jaxpr)
    for future in futures_in((run or Run()).walk(jaxpr, [None] * len(jaxpr.invars))):
        if future.end is None and future.is_needed:
            raise future_error(MSG_LEAKED, future)


def without_constants(jaxpr: Any) -> Any:
    """The jaxpr of a closed jaxpr, or the jaxpr itself."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def bodies_in(params: Any) -> list[Any]:
    """The jaxprs that an equation of these parameters holds."""
    return [*map(without_constants, _jax.jaxprs_in(params))]


def inside_region_of(eqn: Any) -> contextlib.AbstractContextManager[None]:
    """A context in which types are those of the region that an equation is, if it is one."""
    if eqn.primitive is not _jax.shard_map_p:
        return contextlib.nullcontext()
    return _jax.inside_region(*(eqn.params[name] for name in ("mesh", "newly_manual_axes", "check_vma")))


class Run:
    """One run of a program, with its notes.

    Attributes:
        steps: The steps, in the order of the program. A call or a loop without operations is one step.
        flights: The operations, each as often as a step starts it.
    """

    each_call = False
    """True if a function is walked at each of its calls, even if it takes and returns no futures."""

    # The reading of a program, overridden for programs that are not jaxprs.
    source_of: ClassVar[Callable[..., Any]] = staticmethod(_jax.source_of)
    is_reference: ClassVar[Callable[..., bool]] = staticmethod(_jax.is_reference)

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.flights: list[Flight] = []
        self._known: set[Any] = set()  # jaxprs without futures among inputs and outputs
        self._around: tuple[Any, ...] = ()  # the enclosing equations
        self._path: Path = ()
        self._visits = itertools.count()

    def between(self, flight: Flight, end: int) -> Iterator[int]:
        """The positions of the steps between a start and this end of it, without those of other branches."""
        ends = self.steps[flight.start].path, self.steps[end].path
        steps = range(flight.start + 1, end)
        return (at for at in steps if not any(exclude(self.steps[at].path, path) for path in ends))

    def walk(self, jaxpr: Any, args: Sequence[Value], own: Sequence[Value] = ()) -> list[Value]:
        """Returns a jaxpr's results. It must use up or return the futures that it starts, and its arguments `own`."""
        jaxpr = without_constants(jaxpr)
        apart = all(arg is None or isinstance(arg, Reference) for arg in args)
        if apart and jaxpr in self._known and not self.each_call:
            self._note(self._around[-1], args)
            return [None] * len(jaxpr.outvars)
        known = dict(zip(jaxpr.invars, args, strict=True))
        owned, foreign = [*futures_in(own)], {id(arg) for arg in args}

        def read(atom: Any) -> Value:
            value = None if hasattr(atom, "val") else known.get(atom)
            return Reference(atom) if value is None and self.is_reference(atom) else value

        for eqn in jaxpr.eqns:
            outs = self.apply(eqn, [read(atom) for atom in eqn.invars])
            known.update(zip(eqn.outvars, outs, strict=True))
            owned += (out for out in futures_in(outs) if id(out) not in foreign)
        outs = [read(atom) for atom in jaxpr.outvars]
        for future in owned:
            if future.end is None and future.is_needed and not any(out is future for out in outs):
                raise self._dropped(future)
        if apart and not any(outs):
            self._known.add(jaxpr)
        return outs

    def _dropped(self, future: FutureValue) -> errors.FutureError:
        for eqn in reversed(self._around):
            if eqn.primitive in (_jax.scan_p, _jax.while_p):
                return future_error(MSG_DROPPED_IN_LOOP, future, loop=self.source_of(eqn))
        return future_error(MSG_NEVER_DONE, future)

    def apply(self, eqn: Any, operands: Sequence[Value]) -> Sequence[Value]:
        primitive, has_operations = eqn.primitive, is_asynchronous(eqn)
        if primitive is async_start_p:
            return self._start(eqn, operands)
        if primitive in (async_update_p, async_done_p):
            return self._end(eqn, operands)
        may_run = has_operations or any(futures_in(operands))
        if not may_run or not (bodies_in(eqn.params) or find_holder(primitive) is not None):
            self._note(eqn, operands)
            return self._compute(eqn, operands)
        around, position = self._around, len(self.steps)
        self._around = (*around, eqn)
        if primitive is _jax.cond_p:
            outs = self._branch(eqn, operands)
        elif primitive in (_jax.scan_p, _jax.while_p):
            outs = self._loop(eqn, operands)
        else:
            outs = self._call(eqn, operands)
        self._around = around
        if not has_operations:
            del self.steps[position:]
            self._note(eqn, operands)
        return outs

    def _note(self, eqn: Any, operands: Sequence[Value], flights: tuple[Flight, ...] = ()) -> None:
        """Notes a step. Raises if it writes an operation's results to a reference that was used since the start."""
        references, here = [x for x in operands if isinstance(x, Reference)], len(self.steps)
        self.steps.append(Step(eqn, self._path, references, flights))
        for flight in (_results(operands) or ()) if references else ():
            for at in self.between(flight, here):
                if references[0] in self.steps[at].references:
                    shown = {"type": references[0].var.aval, "use": self.source_of(self.steps[at].eqn)}
                    shown |= {"name": flight.operation.name, "start": flight.operation.where}
                    raise errors.value_error(MSG_REFERENCE_UNDER_WAY.format(**shown, done=self.source_of(eqn)))

    def _compute(self, eqn: Any, operands: Sequence[Value]) -> Sequence[Value]:
        """The results of an equation that is not walked into: it hands futures on, or must take none."""
        name, futures = eqn.primitive.name, [*futures_in(operands)]
        if name in _HANDS_ON and len(operands) == len(eqn.outvars):
            return operands
        if futures:
            at = self.source_of(eqn, *reversed(self._around))
            lanes = any(flight.operation.lanes for future in futures for flight in future.flights)
            if name == "broadcast_in_dim" or (name == "select_n" and lanes):
                raise future_error(MSG_LANES, futures[0], at=at)
            text = MSG_CHOSEN if name == "select_n" else MSG_NUMBER
            raise future_error(text, futures[0], primitive=name, at=at)
        return [_results(operands)] * len(eqn.outvars)

    def _start(self, eqn: Any, operands: Sequence[Value]) -> Sequence[Value]:
        for future in futures_in(operands):
            raise future_error(MSG_NUMBER, future, primitive=eqn.primitive, at=self.source_of(eqn))
        place = (*map(id, self._around), id(eqn))
        flight = Flight(eqn.params["operation"], len(self.steps), place, self._region)
        self.flights.append(flight)
        self._note(eqn, operands, (flight,))
        return [FutureValue((flight,))]

    def _end(self, eqn: Any, operands: Sequence[Value]) -> Sequence[Value]:
        """An update or a done. The ticket is the last operand."""
        operation, future = eqn.params["operation"], operands[-1]
        where = str(operation.where)
        how = "done" if eqn.primitive is async_done_p else "updated"
        flights: tuple[Flight, ...] = ()
        if isinstance(future, FutureValue):
            self._check_region(future, how, where)
            future.use(how, where)
            flights, ends = future.flights, operation.computation
            for was in (flight.operation.computation for flight in flights):
                if was != ends:
                    raise future_error(MSG_OTHER_OPERATION, future, ended=how, at=where, was=was, ends=ends)
        elif not operation.of_derivative:
            raise errors.FutureError(MSG_FOREIGN.format(ended=how, at=where))
        self._note(eqn, operands, flights)
        if how == "updated":
            return [FutureValue(flights) if flights else None]
        written = Results(flight for flight in flights if flight.operation.into_reference)
        return [written or None] * len(eqn.outvars)

    @property
    def _region(self) -> tuple[str, ...]:
        """The axes of the regions around."""
        regions = (eqn.params["newly_manual_axes"] for eqn in self._around if eqn.primitive is _jax.shard_map_p)
        return tuple(axis for axes in regions for axis in sorted(map(str, axes)))

    def _check_region(self, future: FutureValue, how: str, where: str) -> None:
        """Raises if a future is used in another region. Values started outside of all regions are on each device, so a
        region may take them."""
        region, kept = future.flights[0].region, future.flights[0].operation.kind == Kept.kind
        if region == self._region or (kept and not region):
            return
        there, here = (_shown_region(axes) for axes in (region, self._region))
        raise future_error(MSG_REGION, future, there=there, here=here, ended=how, at=where)

    def _call(self, eqn: Any, operands: Sequence[Value]) -> Sequence[Value]:
        """Walks an equation that holds jaxprs and is neither a branch nor a loop."""
        in_place = functools.partial(self._walk_in_place, eqn)
        with inside_region_of(eqn):
            if (holder := find_holder(eqn.primitive)) is None:
                return in_place(*operands, **eqn.params)
            extra = Extra(in_place, lambda body, _: body, lambda body, _, args: ((), self.walk(body, args)))
            return holder(extra, *operands, **eqn.params)

    def _walk_in_place(self, eqn: Any, *operands: Value, **params: Any) -> Sequence[Value]:
        bodies = bodies_in(params)
        if [len(body.invars) for body in bodies] == [len(operands)]:
            return self.walk(bodies[0], operands)
        for body in bodies:
            self.walk(body, [None] * len(body.invars))
        return self._compute(eqn, operands)

    def _branch(self, eqn: Any, operands: Sequence[Value]) -> Sequence[Value]:
        where, visit, path = self.source_of(eqn), next(self._visits), self._path
        args = [*{id(future): future for future in futures_in(operands)}.values()]

        def in_state(ends: Sequence[End | None]) -> None:
            for future, end in zip(args, ends, strict=True):
                future.end = end

        before = [future.end for future in args]
        returned, after = [], []  # by branch, with the way in which it has used up incoming futures
        for number, branch in enumerate(eqn.params["branches"]):
            in_state(before)
            self._path = (*path, (visit, number))
            returned.append(self.walk(branch, operands[1:]))
            after.append([future.end for future in args])
        self._path = path
        # A branch uses up the futures that it returns, unless all branches return the same future at this position.
        outs = [joined(cases, MSG_BRANCH_RESULT, branch=where) for cases in zip(*returned, strict=True)]
        for values, ends in zip(returned, after, strict=True):
            in_state(ends)
            for value, out in zip(values, outs, strict=True):
                if isinstance(value, FutureValue) and value is not out:
                    value.use("returned by a branch", where)
            ends[:] = [future.end for future in args]
        for future, of_future in zip(args, zip(*after, strict=True), strict=True):
            used = [end for end in of_future if end is not None]
            if used and len(used) < len(after) and future.is_needed:
                raise future_error(MSG_ONE_BRANCH, future, ended=used[0].how, at=used[0].where, branch=where)
            future.end = used[0] if used else None
        return outs

    def _loop(self, eqn: Any, operands: Sequence[Value]) -> Sequence[Value]:
        params, where = eqn.params, self.source_of(eqn)
        if eqn.primitive is _jax.scan_p:
            condition, body, asked = None, params["jaxpr"], 0
            split, carried = _jax.read_scan(params)
        else:
            condition, body, asked = params["cond_jaxpr"], params["body_jaxpr"], params["cond_nconsts"]
            split = asked + params["body_nconsts"]
            carried = len(operands) - split
        outer, given = operands[asked:split], operands[split:]
        for future in futures_in(given):
            future.use("taken by a loop", where)
        values, results = given, given  # of an iteration: the carry, then the elements of xs or ys
        for _ in range(2):
            inner = [*map(fresh, values)]
            if condition is not None:
                args = [*operands[:asked], *inner]
                self._iterate(condition, args, args, where)
            results = self._iterate(body, [*outer, *inner], outer, where, own=inner)
            for future in futures_in(results):
                future.use("carried on by a loop", where)
            pairs = [*zip(values[:carried], results, strict=False)]
            for pair in pairs:
                joined(pair, MSG_NOT_CARRIED_ON, loop=where)
            values = [*(fresh(result or value) for value, result in pairs), *values[carried:]]
        if condition is not None:  # there may be no iteration
            return [joined(pair, MSG_NOT_CARRIED_ON, loop=where) for pair in zip(given, values, strict=True)]
        return [*values[:carried], *map(fresh, results[carried:])]

    def _iterate(
        self, jaxpr: Any, args: Sequence[Value], outer: Sequence[Value], loop: str, own: Sequence[Value] = ()
    ) -> list[Value]:
        """Walks the condition or the body of a loop, which must not use up any of the futures `outer`."""
        before = [(future, future.end) for future in futures_in(outer)]
        outs = self.walk(jaxpr, args, own)
        for future, end in before:
            if (used := future.end) is not end and used is not None:
                raise future_error(MSG_EACH_ITERATION, future, ended=used.how, at=used.where, loop=loop)
        return outs


def joined(values: Sequence[Value], text: str, **shown: Any) -> Value:
    """The value that is one of these. Raises the error `text` if some are futures to be done and others are not."""
    if all(value is values[0] for value in values):
        return values[0]
    futures = [*futures_in(values)]
    if not futures:
        return _results(values)
    if len(futures) < len(values) and any(future.is_needed for future in futures):
        raise future_error(text, futures[0], **shown)
    return FutureValue(tuple(dict.fromkeys(flight for future in futures for flight in future.flights)))


def fresh(value: Value) -> Value:
    """A new future of the same operations; any other value as it is."""
    return FutureValue(value.flights) if isinstance(value, FutureValue) else value


def futures_in(values: Iterable[Value]) -> Iterator[FutureValue]:
    return (value for value in values if isinstance(value, FutureValue))


def _results(values: Iterable[Value]) -> Results | None:
    """The operations whose results a value computed from these depends on, if any."""
    return Results(flight for value in values if isinstance(value, Results) for flight in value) or None


def exclude(one: Path, other: Path) -> bool:
    """Returns True if the two are in different branches of one `cond`, of which a program takes one."""
    branches = dict(other)
    return any(branches.get(visit, branch) != branch for visit, branch in one)


def future_error(text: str, future: FutureValue, **shown: Any) -> errors.FutureError:
    operation = future.flights[0].operation
    return errors.FutureError(text.format(name=operation.name, start=operation.where, **shown))


def _shown_region(axes: Sequence[str]) -> str:
    return f"in a `jax.shard_map` over {', '.join(map(repr, axes))}" if axes else "outside of any `jax.shard_map`"
