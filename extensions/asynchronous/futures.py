"""Every future is used up once: an abstract run of a whole program.

In it the only values are futures, each with what has become of it, and everything else is nothing. Calls are walked
with the futures that they take. Branches begin with the same state and must end with the same. A loop's body has
futures of its own for what is carried, and must use those up or carry them on.

A derivative has zeros where a future does not depend on what is differentiated: they stand for a future of zeros, which
need not be done. Nor need a future that JAX started for a derivative: the last iteration of a transposed loop starts an
operation of which nothing asks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from effects import _errors as errors
from effects import _jax
from effects.extensions.asynchronous.operation import TICKET_LENGTH, Kept, Operation
from effects.extensions.asynchronous.primitives import ASYNC, async_done_p, async_start_p, async_update_p
from effects.extensions.asynchronous.ties import is_asynchronous
from effects.lowering.holders import Extra, find_holder
from effects.lowering.summary import summarize

# What the abstract run of `futures.py` has in place of values: futures, zeros of a derivative, and nothing.

MSG_USED_TWICE = (
    "The future of `{name}`, started at {start}, is {second} at {at}, and was {first} at {before} already. A future is "
    "used up by its update, by its done and by the loop that carries it. {remedy}"
)
_REMEDIES = {
    "done": "Keep the results of the first done, or start the operation again.",
    "updated": "Go on with the future that the update returned.",
    "taken": "Go on with the future that came out of there.",
}
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

_HANDS_ON = frozenset(
    {"pvary", "pcast", "copy", "name", "optimization_barrier", "sharding_constraint", "reshard"}
    | {"reduce_precision", "stop_gradient", "transpose"}
)
"""Primitives whose results are their operands, each in its place. A derivative, `vmap` and a region bind them."""

_KEEPS_ZEROS = frozenset({"broadcast_in_dim", "select_n", "convert_element_type", "reshape", "squeeze", "mul", "add"})
"""Primitives that make zeros of nothing but zeros."""


class End(NamedTuple):
    """How a future was used up and where, and what to do about a second use."""

    how: str
    where: str
    remedy: str


@dataclasses.dataclass(eq=False, slots=True)
class FutureValue:
    """A future of the abstract run. Two are the same only if they are one object.

    Attributes:
        operation: What was started; None if all that is known is that a derivative may have zeros there.
        is_needed: Whether something is in flight for certain, which must be done.
        end: How it was used up.
        goes_on_from: How the future was used up that goes on as this one.
        region: The axes of the region in which it was started.
    """

    operation: Operation | None
    is_needed: bool = True
    end: End | None = None
    region: tuple[str, ...] = ()
    goes_on_from: End | None = None

    def passed_on(self) -> FutureValue:
        """The future that goes on as another one."""
        return FutureValue(self.operation, self.is_needed, region=self.region, goes_on_from=self.end)

    def use(self, how: str, where: str, remedy: str) -> None:
        if (end := self.end) is not None:
            shown = {"second": how, "at": where, "first": end.how, "before": end.where}
            raise future_error(MSG_USED_TWICE, self, **shown, remedy=_REMEDIES[end.remedy])
        self.end = End(how, where, remedy)


class Zeros:
    """The ticket of a future of zeros, which may be done any number of times, or not at all."""


ZEROS = Zeros()
Value = FutureValue | Zeros | None
"""A value of the abstract run. None is anything but a ticket."""


def compute(eqn: Any, operands: Sequence[Value], around: Sequence[Any]) -> Sequence[Value]:
    """What is no operation's and holds no jaxprs: it makes zeros, hands tickets on, or must have none."""
    name = eqn.primitive.name
    futures = [*futures_in(operands)]
    if name in _HANDS_ON and len(operands) == len(eqn.outvars):
        return operands
    if futures:
        at = _jax.source_of(eqn, *reversed(around))
        lanes = any(future.operation is not None and future.operation.lanes for future in futures)
        if name == "broadcast_in_dim" or (name == "select_n" and lanes):
            raise future_error(MSG_LANES, futures[0], at=at)
        if name == "select_n":
            raise future_error(MSG_CHOSEN, futures[0], at=at)
        raise future_error(MSG_NUMBER, futures[0], primitive=name, at=at)
    values = eqn.invars[1:] if name == "select_n" else eqn.invars
    if name in _KEEPS_ZEROS and all(
        operand is ZEROS or is_zero(getattr(atom, "val", None))
        for operand, atom in zip(operands[-len(values) :], values, strict=True)
    ):
        return [ZEROS]
    return [None] * len(eqn.outvars)


def futures_in(values: Iterable[Value]) -> Iterable[FutureValue]:
    return (value for value in values if isinstance(value, FutureValue))


def joined(given: Value, result: Value) -> Value:
    """What comes out of a loop."""
    futures = [*futures_in([given, result])]
    if not futures:
        return result if given is result else None
    operation = next((future.operation for future in futures if future.operation is not None), None)
    return FutureValue(operation, any(future.is_needed for future in futures), region=futures[0].region)


def is_ticket(aval: Any) -> bool:
    """Whether a value of this type may be a ticket."""
    shape = getattr(aval, "shape", ())
    return bool(shape) and shape[-1] == TICKET_LENGTH and aval.dtype == np.float32


def is_ticket_of(var: Any) -> bool:
    return is_ticket(var.aval)


def is_zero(value: Any) -> bool:
    return isinstance(value, (int, float, np.ndarray, np.generic)) and not np.any(value)


def future_error(text: str, future: FutureValue, **shown: Any) -> errors.FutureError:
    operation = future.operation
    name, start = (operation.name, operation.where) if operation else ("a derivative", "a line that is not known")
    return errors.FutureError(text.format(name=name, start=start, **shown))


MSG_NEVER_DONE = (
    "The asynchronous operation `{name}` that starts at {start}{updated} is never done. What is started "
    "is done once in the same program, for its results are kept until then. Call `fx.async_done` with the future, or "
    "leave out the start."
)
MSG_DROPPED_IN_LOOP = (
    "The asynchronous operation `{name}` that starts at {start}{updated} is dropped in the loop at {loop}: its future "
    "is neither done in the iteration nor carried to the next. What an iteration has under way it ends, or carries on. "
    "Call `fx.async_done` in the body, or return the future as a part of what the loop carries."
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
    "The loop at {loop} carries the future of `{name}`, started at {start}, and its body has a number in its place. "
    "What a loop carries is a future in every iteration or in none. Start an operation ahead of the loop, and return "
    "the future of one from its body."
)
MSG_LEAKED = (
    "The future of `{name}`, started at {start}, is returned from the program without being done. What is in flight "
    "belongs to one call of a program, and is gone when it ends. Return `fx.async_done(future)`."
)
MSG_REGION = (
    "The future of `{name}`, started at {start} {there}, is {ended} at {at} {here}. In a `jax.shard_map` each device "
    "starts and ends operations of its own, and outside of it the program has one for all devices. Do it where it was "
    "started, and pass its results on."
)
MSG_FOREIGN = (
    "What is {ended} at {at} is no future of this program. A future is started and used up in one call of a function "
    "of `fx.jit`. Start the operation in the function, and pass its future on as it is."
)


def check_futures(jaxpr: Any) -> None:
    """Raises `FutureError` unless a program, a jaxpr with constants, uses each of its futures once."""
    if ASYNC in summarize(jaxpr).effects:
        for future in futures_in(_Run().walk(jaxpr, [None] * len(jaxpr.in_avals))):
            if future.end is None and future.is_needed:
                raise future_error(MSG_LEAKED, future)


class _Run:
    """One abstract run."""

    def __init__(self) -> None:
        self._calls: list[Any] = []  # equations in whose functions the walk is
        self._loops: list[str] = []  # those whose bodies are being walked
        self._region: tuple[str, ...] = ()  # the axes of the one that is being walked
        self._apart: dict[Any, list[Value]] = {}  # jaxprs that take and return no futures, and what they return

    def walk(self, jaxpr: Any, args: Sequence[Value], own: Sequence[Value] = ()) -> list[Value]:
        """What a jaxpr returns. It must use up or return the futures that it starts, and `own` among its arguments."""
        apart = not any(args)
        if apart and jaxpr in self._apart:
            return self._apart[jaxpr]
        inner = jaxpr.jaxpr if _jax.is_closed(jaxpr) else jaxpr
        known: dict[Any, Value] = {var: arg for var, arg in zip(inner.invars, args, strict=True) if arg is not None}
        owned, foreign = [*futures_in(own)], {id(arg) for arg in args}

        def read(atom: Any) -> Value:
            if not hasattr(atom, "val"):
                return known.get(atom)
            return ZEROS if is_ticket(atom.aval) and is_zero(atom.val) else None

        for eqn in inner.eqns:
            operands = [read(atom) for atom in eqn.invars]
            if not (any(operands) or (eqn.effects and is_asynchronous(eqn)) or any(map(is_ticket_of, eqn.outvars))):
                continue
            outs = self._apply(eqn, operands)
            known.update((var, out) for var, out in zip(eqn.outvars, outs, strict=True) if out is not None)
            owned += (out for out in futures_in(outs) if id(out) not in foreign)
        outs = [read(atom) for atom in inner.outvars]
        self._check_ends(owned, outs)
        if apart and not any(outs):
            self._apart[jaxpr] = outs
        return outs

    def _check_ends(self, owned: Sequence[FutureValue], outs: Sequence[Value]) -> None:
        """Futures that a jaxpr has started, or was handed for good, are used up or returned."""
        for future in owned:
            if future.end is None and future.is_needed and not any(out is future for out in outs):
                before = future.goes_on_from
                updated = f" and is updated at {before.where}" if before and before.how == "updated" else ""
                if self._loops:
                    raise future_error(MSG_DROPPED_IN_LOOP, future, updated=updated, loop=self._loops[-1])
                raise future_error(MSG_NEVER_DONE, future, updated=updated)

    def _apply(self, eqn: Any, operands: Sequence[Value]) -> Sequence[Value]:
        primitive, params = eqn.primitive, eqn.params
        if primitive is async_start_p:
            if (future := next(futures_in(operands), None)) is not None:
                raise future_error(MSG_NUMBER, future, primitive=primitive, at=_jax.source_of(eqn))
            operation = params["operation"]
            return [FutureValue(operation, is_needed=not operation.of_derivative, region=self._region)]
        if primitive in (async_update_p, async_done_p):
            return self._end(eqn, operands)
        if primitive is _jax.cond_p:
            return self._branch(eqn, operands)
        if primitive is _jax.scan_p:
            consts, carry = _jax.read_scan(params)
            return self._loop(eqn, params["jaxpr"], operands[:consts], operands[consts:], carry)
        if primitive is _jax.while_p:
            asked, split = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
            outs = self._loop(eqn, params["body_jaxpr"], operands[asked:split], operands[split:], len(operands) - split)
            self._ask(eqn, operands[:asked], outs)
            return outs
        if any(_jax.jaxprs_in(params)) or find_holder(primitive) is not None:
            return self._call(eqn, operands)
        return compute(eqn, operands, self._calls)

    def _end(self, eqn: Any, operands: Sequence[Value]) -> Sequence[Value]:
        """An update or a done. The ticket is the last operand."""
        where, future = str(eqn.params["operation"].where), operands[-1]
        how = "done" if eqn.primitive is async_done_p else "updated"
        if future is None:
            raise errors.FutureError(MSG_FOREIGN.format(ended=how, at=where))
        if isinstance(future, Zeros):
            following: Value = future
        else:
            self._check_region(future, how, where)
            future.use(how, where, how)
            following = future.passed_on()
        results: list[Value] = [None] * len(eqn.outvars)
        return results if how == "done" else [following, *results[1:]]

    def _check_region(self, future: FutureValue, how: str, where: str) -> None:
        """Values that are started outside of a region are on each of its devices, which take them as they are."""
        kept = future.operation is None or isinstance(future.operation, Kept)
        if future.region == self._region or (kept and not future.region):
            return
        there, here = (_shown_region(axes) for axes in (future.region, self._region))
        raise future_error(MSG_REGION, future, there=there, here=here, ended=how, at=where)

    def _call(self, eqn: Any, operands: Sequence[Value]) -> Sequence[Value]:
        """What holds jaxprs and is no branch and no loop."""
        self._calls.append(eqn)
        try:
            return self._walk_call(eqn, operands)
        finally:
            self._calls.pop()

    def _walk_call(self, eqn: Any, operands: Sequence[Value]) -> Sequence[Value]:
        if eqn.primitive is _jax.shard_map_p:
            return self._in_region(eqn, operands)
        if (holder := find_holder(eqn.primitive)) is None:
            return self._walk_in_place(eqn, eqn.params, operands)
        extra = Extra(
            lambda *operands, **params: self._walk_in_place(eqn, params, operands),
            lambda body, _: body,
            lambda body, _, args: ((), self.walk(body, args)),
        )
        return holder(extra, *operands, **eqn.params)

    def _in_region(self, eqn: Any, operands: Sequence[Value]) -> Sequence[Value]:
        around, params = self._region, eqn.params
        self._region = (*around, *sorted(map(str, params["newly_manual_axes"])))
        try:
            with _jax.inside_region(params["mesh"], params["newly_manual_axes"], params["check_vma"]):
                return self._walk_in_place(eqn, params, operands)
        finally:
            self._region = around

    def _walk_in_place(self, eqn: Any, params: Any, operands: Sequence[Value]) -> Sequence[Value]:
        bodies = list(_jax.jaxprs_in(params))
        inputs = [len((body.jaxpr if _jax.is_closed(body) else body).invars) for body in bodies]
        if inputs == [len(operands)]:
            return self.walk(bodies[0], operands)
        for body, count in zip(bodies, inputs, strict=True):
            self.walk(body, [None] * count)
        return compute(eqn, operands, self._calls)

    def _branch(self, eqn: Any, operands: Sequence[Value]) -> Sequence[Value]:
        where = _jax.source_of(eqn)
        args = list({id(future): future for future in futures_in(operands)}.values())
        before = [future.end for future in args]
        results, ends = [], []
        for branch in eqn.params["branches"]:
            for future, end in zip(args, before, strict=True):
                future.end = end
            results.append(self.walk(branch, operands[1:]))
            ends.append([future.end for future in args])
        # Each branch hands on what it returns; what all of them return in the same place stays itself.
        outs: list[Value] = []
        for cases in zip(*results, strict=True):
            if not any(cases) or all(case is cases[0] for case in cases):
                outs.append(cases[0])
                continue
            futures = [*futures_in(cases)]
            if not all(cases) and futures:
                raise future_error(MSG_BRANCH_RESULT, futures[0], branch=where)
            out = next((future for future in futures if future.operation is not None), None)
            is_needed = any(future.is_needed for future in futures)
            one = out or next(iter(futures), FutureValue(None))
            outs.append(FutureValue(one.operation, is_needed, region=one.region) if all(cases) else None)
            for case, after in zip(cases, ends, strict=True):
                if isinstance(case, FutureValue):
                    self._hand_on(case, args, after, where)
        for future, after in zip(args, zip(*ends, strict=True), strict=True):
            used = [end for end in after if end is not None]
            if used and len(used) < len(after) and future.is_needed:
                raise future_error(MSG_ONE_BRANCH, future, ended=used[0].how, at=used[0].where, branch=where)
            future.end = used[0] if used else None
        return outs

    def _hand_on(self, future: FutureValue, args: Sequence[FutureValue], after: list[End | None], where: str) -> None:
        """A branch returns a future, which goes on as another. If it came in, only this branch has used it up so."""
        at = next((at for at, arg in enumerate(args) if arg is future), None)
        if at is not None:
            future.end = after[at]
        future.use("returned by a branch", where, "taken")
        if at is not None:
            after[at] = future.end

    def _ask(self, eqn: Any, consts: Sequence[Value], carry: Sequence[Value]) -> None:
        """A loop's condition, which uses up nothing: it is asked once more than the body runs."""
        before = [(future, future.end) for future in futures_in([*consts, *carry])]
        self.walk(eqn.params["cond_jaxpr"], [*consts, *carry])
        self._check_constants(before, _jax.source_of(eqn))

    def _loop(
        self, eqn: Any, body: Any, consts: Sequence[Value], values: Sequence[Value], carried: int
    ) -> Sequence[Value]:
        """`values` are what is carried and then what has one element for each iteration."""
        where = _jax.source_of(eqn)
        before = [(future, future.end) for future in futures_in(consts)]
        for future in futures_in(values):
            future.use("taken by a loop", where, "taken")
        self._loops.append(where)
        values = list(values)
        while True:
            inner = [value.passed_on() if isinstance(value, FutureValue) else value for value in values]
            results = self.walk(body, [*consts, *inner], own=inner)
            # Zeros that are carried are a number, or the future of a derivative: what the body makes of them tells.
            unlike = [at for at in range(carried) if values[at] is ZEROS and results[at] is not ZEROS]
            if not unlike:
                break
            for at in unlike:
                values[at] = None if results[at] is None else FutureValue(None, is_needed=False, region=self._region)
        self._loops.pop()
        outs: list[Value] = []
        for at, result in enumerate(results):
            given = values[at] if at < carried else result
            if (future := next(futures_in([given, result]), None)) is not None and None in (given, result):
                raise future_error(MSG_NOT_CARRIED_ON, future, loop=where)
            if isinstance(result, FutureValue):
                result.use("carried on by a loop", where, "taken")
            outs.append(joined(given, result))
        self._check_constants(before, where)
        return outs

    def _check_constants(self, before: Iterable[tuple[FutureValue, End | None]], loop: str) -> None:
        for future, end in before:
            if future.end is not end and (used := future.end) is not None:
                raise future_error(MSG_EACH_ITERATION, future, ended=used.how, at=used.where, loop=loop)


def _shown_region(axes: Sequence[str]) -> str:
    return f"in a `jax.shard_map` over {', '.join(map(repr, axes))}" if axes else "outside of any `jax.shard_map`"
