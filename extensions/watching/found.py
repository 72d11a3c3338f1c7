"""Reactions to a bad value: an error, an event, or the end of the program."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from effects import _errors as errors
from effects import _jax
from effects._api.check import Check, End
from effects._api.log import LOG, Event
from effects._model.content import Report, described_by
from effects._model.filter import Filter
from effects._model.function import HostFunction
from effects._model.line import Line
from effects._model.operand import Operand, take_arguments
from effects._model.primitive import effect_p
from effects._model.record import Record
from effects._model.site import Site
from effects._model.where import Where
from effects._model.wire import EPOCH, PHASE, STREAM, in_region
from effects.extensions.watching import WATCH
from effects.extensions.watching.options import Watch, type_of
from effects.extensions.watching.tables import is_numeric

_WENT_ON = "{message} ({place}). The program went on after it."
STOPPED = f"{{message}} ({{place}}). `fx.watch` ended the program. {errors.WAITED}"
_NOT_FOUND = (
    "A value is bad, but no operation makes one when all are tested one by one, since the compiled program "
    "computes it in another way. Look for large values with `inf=True` or `when=`"
)


class BadOperand(NamedTuple):
    """An operand of an operation that made a bad value.

    Attributes:
        name: The user's name for it, if tracing knows one; else empty.
        type: Its type, such as `float32[2,3]`.
        value: Its element at the index of the result's first bad element; None if its shape differs.
        low: Its least element, of complex numbers the least magnitude.
        high: Its largest.

    Example:
        >>> import effects as fx, jax.numpy as jnp
        >>> watched = fx.watch(lambda x: jnp.sqrt(x), mode="stop")
        >>> try:
        ...     fx.jit(watched)(jnp.array([4.0, -1.0]))
        ... except fx.NonFinite as error:
        ...     print(error.operands[0])
        x: float32[2] in [-1, 4], -1 there
    """

    name: str
    type: str
    value: float | None
    low: float
    high: float

    def __str__(self) -> str:
        name = f"{self.name}: {self.type}" if self.name else self.type
        if self.low == self.high:
            return f"{name} = {self.low:.6g}"
        there = "" if self.value is None else f", {self.value:.6g} there"
        return f"{name} in [{self.low:.6g}, {self.high:.6g}]{there}"


class NonFinite(errors.CheckError):
    """An operation of a function that `fx.watch` watches made a bad value of good ones. `where` is its line.

    Attributes:
        operation: The name of the operation, as in a jaxpr.
        callers: The lines that called the function around that line, the nearest first.
        value: The bad value; of a complex number the magnitude.
        index: The index of the bad value in its array; if there are several, of the first.
        count: The number of bad elements of the array.
        operands: The operands of the operation, at most three.
        iteration: The iteration of each loop around it, the outermost first, counted from 0. In a loop that goes
            backward, the forward iteration that has the same elements.
        backward: True in a backward pass. The line is then the one whose derivative is computed.
    """

    operation: str = ""
    callers: tuple[Where, ...] = ()
    value: float = math.nan
    index: tuple[int, ...] = ()
    count: int = 0
    operands: tuple[BadOperand, ...] = ()
    iteration: tuple[int, ...] = ()
    backward: bool = False


NonFinite.__module__ = BadOperand.__module__ = "effects"

_OPERANDS = 3
"""The number of operands whose values a record has, at most."""


def read_fields(of: tuple[Any, ...], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record for users. `of`: `(operation, operands, results, backward)`, or empty if the operation is
    not known. An operand is `(name, type, has_shape_of_result)`, a result `(type, shape)`."""
    operation, operands, outs, backward = of or ("", (), (("", ()),), False)
    first, count = map(int, fields["at"])
    value, *numbers = map(float, fields["values"])
    ends = [*itertools.accumulate(math.prod(shape) for _, shape in outs)]  # the results are concatenated
    result = next(i for i, end in enumerate(ends) if first < end)
    type_, shape = outs[result]
    first -= ends[result - 1] if result else 0
    return {
        "operation": operation,
        "value": value,
        "type": type_,
        "index": tuple(map(int, np.unravel_index(first, shape))) if shape else (),
        "count": count,
        "operands": tuple(
            BadOperand(name, of, numbers[3 * j] if has_place else None, *numbers[3 * j + 1 : 3 * j + 3])
            for j, (name, of, has_place) in enumerate(operands)
        ),
        "iteration": tuple(map(int, fields["iteration"])),
        "backward": backward,
    }


def _text(fields: Mapping[str, Any]) -> str:
    if not fields["operation"]:
        return _NOT_FOUND
    index = f" at index {fields['index']}" if fields["index"] else ""
    others = f" and {errors.counted(fields['count'] - 1, 'more bad element')}" if fields["count"] > 1 else ""
    taken = f" from {', '.join(map(str, fields['operands']))}" if fields["operands"] else ""
    return f"`{fields['operation']}` made {fields['value']:.6g}{index} of {fields['type']}{others}{taken}"


def error_of(where: Where, fields: Mapping[str, Any], text: str, lane: tuple[int, ...], device: int) -> NonFinite:
    """The error at a line, with the fields that `read_fields` returns."""
    devices = (device,) if device >= 0 and jax.device_count() > 1 else ()
    numbers = ("iteration", fields["iteration"]), ("lane", lane), ("device", devices)
    place = [
        f"{where}, in `{where.function}`",
        where.called,
        "in the backward pass" if fields["backward"] else "",
        *(errors.numbered(*each) for each in numbers),
    ]
    message = _text(fields)
    failure = NonFinite(
        text.format(message=message, place=", ".join(filter(None, place))), message, str(where), lane, device
    )
    vars(failure).update({name: value for name, value in fields.items() if name != "type"})
    failure.callers, failure.effect = where.callers, WATCH.name
    return failure


_raised: dict[int, tuple[int, Any, NonFinite | None]] = {}
"""By stream, the last program with a raised bad value: its epoch, the place of the value in program order, and the
error if the value was found without a search. Only drain threads write it."""


def is_first_raised(token: Sequence[int], place: Any = (), failure: NonFinite | None = None) -> bool:
    """True if this is the first record of its program that is raised. Devices run on their own, so a record that
    arrives later may be earlier in program order: then its fields replace those of the raised error."""
    known = _raised.get(token[STREAM])
    if known is None or known[0] != token[EPOCH]:
        _raised[token[STREAM]] = token[EPOCH], place, failure
        return True
    _, other, raised = known
    if failure is not None and raised is not None and place < other:
        raised.args = failure.args
        vars(raised).update(vars(failure))
        _raised[token[STREAM]] = token[EPOCH], place, raised
    return False


def place_of(order: tuple[Any, ...], iterations: Iterable[Any]) -> list[Any]:
    """The place of an operation in program order, see `Found.order`."""
    numbers = iter(iterations)
    return [_SIGNS[each] * next(numbers) if each in _SIGNS else each for each in order]


_SIGNS = {"+": 1, "-": -1}


class Finding(NamedTuple):
    """A bad value that a search has found."""

    place: list[Any]  # in program order
    device: int  # -1 outside of per-device regions
    where: Where | None
    of: tuple[Any, ...]  # as `fields`, an argument of `read_fields`
    fields: Mapping[str, Any]


searches: dict[int, list[Finding]] = {}
"""By number of a search, its findings."""


@described_by("watch")
@dataclasses.dataclass(frozen=True)
class Found(Check):
    """A bad value that is raised, the first of each call of a program.

    Attributes:
        order: The position of the operation, after those of the equations around it. The position of a loop or branch
            is followed by the number of its body. "+" and "-" stand for the number of an iteration, forward and
            backward.
    """

    of: tuple[Any, ...] = ()  # see `read_fields`
    search: int = 0  # the number of the search that made it and reads its records; 0: none
    place: tuple[Any, ...] = ()  # lane and device, if the record has none
    order: tuple[Any, ...] = ()

    def in_order(self, fields: dict[str, Any]) -> dict[str, Any]:
        return fields if self.search else read_fields(self.of, fields)

    def text(self, record: Record) -> str:
        return _text(read_fields(self.of, record.fields) if self.search else record.fields)

    def show(self, records: Iterable[Record], write: Callable[[str], None], report: Report) -> None:
        for record in records:
            if self.search:
                device = record.device if in_region(record.token[PHASE]) else -1
                place = place_of(self.order, map(int, record.fields["iteration"]))
                searches[self.search].append(Finding(place, device, record.where, self.of, record.fields))
                continue
            lane, device = self.place or (record.lane, record.device)
            failure = error_of(record.where, record.fields, _WENT_ON, tuple(lane), device)
            place = place_of(self.order, record.fields["iteration"]), device
            if self.place or is_first_raised(record.token, place, failure):
                report(failure)


@described_by("watch_log")
@dataclasses.dataclass(frozen=True)
class FoundEvent(Event):
    """A bad value that is logged."""

    of: tuple[Any, ...] = ()
    place: tuple[Any, ...] = ()

    def in_order(self, fields: dict[str, Any]) -> dict[str, Any]:
        read = read_fields(self.of, fields)
        place = dict(zip(("in_lane", "on_device"), self.place, strict=False))
        return {**read, "operands": [*map(str, read["operands"])], **place}

    def text(self, record: Record) -> str:
        return f"{self.event} {_text(record.fields)}"

    def native_plan(self, site: Site) -> None:
        return None


def ending(function: Callable[..., Any]) -> End:
    """A content that ends the program with the error that this function raises."""
    message, one = Line("a bad value"), jax.tree.structure(0)
    return End(HostFunction(function, name="fx.watch"), (_NOTHING,), one, pass_record=True, message=message)


_NOTHING = Operand((), np.dtype(np.int32), np.dtype(np.int32))
_EVENT = "non_finite"


def bind_found(
    watch: Watch,
    eqn: Any,
    where: Where,
    found: Any,
    names: Sequence[str],
    operands: Sequence[Any],
    outs: Sequence[Any],
    around: Sequence[Any],
    order: tuple[Any, ...],
    bad: Sequence[Any],
) -> None:
    """Records the operands and results of an equation where `found` holds. `around`: the iterations of the loops;
    `bad`: masks of the bad elements of its results; if empty, the watch computes them."""
    bad = [flags for flags, out in zip(bad, outs, strict=False) if is_numeric(_jax.typeof(out))]
    name = eqn.primitive.name
    outs = [out for out in outs if is_numeric(_jax.typeof(out))]
    shown = [(each, x) for each, x in zip(names, operands, strict=True) if is_numeric(_jax.typeof(x))][:_OPERANDS]
    shape = outs[0].shape
    of = (
        name,
        tuple((each, type_of(x), np.shape(x) == shape) for each, x in shown),
        tuple((type_of(out), tuple(out.shape)) for out in outs),
        watch.backward or "transpose" in str(eqn.source_info.name_stack),
    )
    taken = [x for _, x in shown]

    def record(*given: Any) -> Any:
        fields = _fields(watch, name, given[: len(taken)], given[len(taken) : len(taken) + len(outs)], bad)
        fields["iteration"] = jnp.stack(given[len(taken) + len(outs) :]) if around else jnp.zeros(0, np.int32)
        return bind_fields(watch, where, of, fields, order=order)

    def nothing(*_: Any) -> list[Any]:
        return [_jax.as_per_device(jnp.int32(0))] if watch.mode == "stop" and not watch.search else []

    jax.lax.cond(found, record, nothing, *taken, *outs, *around)


def _fields(
    watch: Watch, name: str, operands: Sequence[Any], outs: Sequence[Any], bad: Sequence[Any]
) -> dict[str, Any]:
    real = jax.dtypes.canonicalize_dtype(np.float64)

    def flat(x: Any) -> Any:
        x = jnp.asarray(x).reshape(-1)
        return (jnp.abs(x) if jnp.issubdtype(x.dtype, jnp.complexfloating) else x).astype(real)

    bad = bad or [watch.is_bad(out, name) for out in outs]
    flags = [jnp.zeros(out.size, bool) if b is None else b.reshape(-1) for out, b in zip(outs, bad, strict=True)]
    is_bad, values = jnp.concatenate(flags), jnp.concatenate([*map(flat, outs)])
    first = jnp.argmax(is_bad).astype(np.int32)
    numbers = [values[first]]
    for x in map(flat, operands):
        known = [x[jnp.minimum(first, x.size - 1)], x.min(), x.max()] if x.size else [np.nan] * 3
        numbers += [jnp.asarray(number, real) for number in known]
    return {"at": jnp.stack([first, is_bad.sum(dtype=np.int32)]), "values": jnp.stack(numbers)}


def bind_fields(
    watch: Watch,
    where: Where,
    of: tuple[Any, ...],
    fields: Any,
    place: tuple[Any, ...] = (),
    order: tuple[Any, ...] = (),
) -> Any:
    """Records the fields that `read_fields` reads."""
    operands, leaves, tree = take_arguments((), fields, "fx.watch", where)
    content: Any = Found("fx.watch" if watch.search else _EVENT, of=of, search=watch.search, place=place, order=order)
    effect = LOG if watch.mode == "log" and not watch.search else WATCH

    def stop(*, record: Record, **fields: Any) -> NoReturn:
        raise error_of(record.where, read_fields(of, fields), STOPPED, record.lane, record.device)

    level = Filter()
    if watch.mode == "log" and not watch.search:
        level = Filter(level=logging.ERROR)
        content = FoundEvent(_EVENT, logging.ERROR, tuple(fields), of=of, place=place)
    elif watch.mode == "stop" and not watch.search:
        content = ending(stop)
    return effect_p.bind(*operands, site=Site(effect, content, leaves, tree, where, filter=level))
