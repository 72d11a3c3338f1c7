"""What the abstract run of `futures.py` has in place of values: futures, zeros of a derivative, and nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from effects import _errors as errors
from effects import _jax
from effects._model.operation import TICKET_LENGTH, Operation

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
