"""Checks: conditions that must hold whenever the program reaches them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from effects import _errors as errors
from effects import _jax
from effects._model.callback import HostCall
from effects._model.content import Content, Report, described_by
from effects._model.dependency import add_dependency
from effects._model.effect import PROGRAM, Effect, host_effect, register_effect
from effects._model.filter import ALWAYS, Filter, choose
from effects._model.function import HostFunction, register_callback
from effects._model.line import Line, check_format
from effects._model.operand import Operand, take_arguments
from effects._model.primitive import bind_where, effect_p
from effects._model.record import Record
from effects._model.site import Site
from effects._model.where import Where, where_called

_PAGE = "docs/guide/callbacks.md#check-values"
MSG_PREDICATE = (
    "`{call}` at {where} was given {predicate} as its predicate. A predicate is a boolean, or an array of booleans, "
    "{rule}. Write a comparison, say `{example}`."
)
MSG_CHECK_FAILED = "{message} ({place}). The program went on after this check."

CHECK = register_effect(Effect("check", domain=PROGRAM))


@described_by("check")
class Check(Line):
    """The message of a check. Only failed checks have records."""

    def line(self, record: Record) -> str:
        return Content.line(self, record)

    def native_plan(self, site: Site) -> None:
        return None

    def is_shown(self, suppressed: bool, takes_lines: bool | None) -> bool:
        return True

    def show(self, records: Iterable[Record], write: Callable[[str], None], report: Report) -> None:
        for record in records:
            report(check_error(record, MSG_CHECK_FAILED))


def check_error(record: Record, text: str) -> errors.CheckError:
    """The error of a failed check, from its record and a text with fields `place` and `message`. The error keeps the
    message but not the record's values."""
    message, grid = errors.beginning(record.text), record.grid or ()
    device = (record.device,) if record.device >= 0 and jax.device_count() > 1 else ()
    shown = map(errors.numbered, ("lane", "device", "grid index"), (record.lane, device, grid))
    where = record.where
    place = ", ".join(filter(None, [f"{where}", f"in `{where.function}`", where.called, *shown]))
    text = text.format(place=place, message=message.removesuffix("."))
    failure = errors.CheckError(text, message, str(where), record.lane, record.device, grid)
    failure.effect, failure.token = record.effect, record.token
    return failure


@_jax.for_users
def check(
    predicate: Any,
    fmt: str | None = None,  # None is refused, with an example
    /,
    *args: Any,
    level: int | str | None = None,
    logger: str | None = None,
    every: int | None = None,
    first: int | None = None,
    min_seconds: float | None = None,
    when: Any = None,
    effect: Effect | str | None = None,
    **kwargs: Any,
) -> None:
    """Checks that a predicate holds when the program reaches this point. If it does not, that is an error.

    A failed check is recorded with its message, in program order with prints, and raised as `CheckError` at the next
    call or barrier, as exceptions of callbacks are. A check that holds records nothing.

    A failed check ends neither its program nor the effects after it, which are evidence of what went wrong. Use
    `fx.error_if` if a program must not continue.

    Args:
        predicate: A boolean, or an array of booleans, all of which must hold. Under `vmap` each lane has a check of its
            own. A predicate that is known while tracing is decided then: True leaves nothing in the program.
        fmt: The message, a format as for `fx.print`.
        *args: Values for the format's positional fields: pytrees of arrays; strings, numbers and None as they are,
            and of other objects the text that they have while tracing.
        level: The level of a failure: a number as for `logging`, or a name such as `"warning"`. The failure is not
            raised if its level is below the logger's when the program gets here. None: it follows no logger.
        logger: The name of the logger whose level counts, `effects` by default.
        every: A number n: the first failure is raised, and each n-th after it.
        first: The maximum number of failures raised, on each device of a `jax.shard_map`.
        min_seconds: The minimum number of seconds since the last failure that was raised.
        when: A boolean, which the program may compute: if it is false, nothing is checked.
        effect: A registered `fx.Effect`, or its name, in place of `check`. Its order domain is then that of the check.
        **kwargs: Values for the format's named fields.

    Raises:
        TypeError, ValueError: while tracing, if the predicate is not boolean, an argument is an object with a traced
            value inside that the format shows, or one of `level` to `when` is not as described.
        FormatError: while tracing, if format and arguments do not fit together.

    Example:
        >>> import effects as fx, jax
        >>> @fx.jit
        ... def root(x):
        ...     fx.check(x >= 0, "x = {} has no root", x)
        ...     return jax.numpy.sqrt(x)
        >>> _ = root(-1.0)
        >>> try:
        ...     fx.effects_barrier()
        ... except fx.CheckError as error:
        ...     print(error.message)
        x = -1.0 has no root
    """
    where = where_called()
    asked = choose("fx.check", where, level, logger, every, first, min_seconds, needs_level=False)
    chosen = host_effect("fx.check", where, effect, CHECK, ordered=True)
    check_at(where, predicate, fmt, args, kwargs, asked, when, chosen)


def check_at(
    where: Where,
    predicate: Any,
    fmt: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    asked: Filter = ALWAYS,
    when: Any = None,
    effect: Effect = CHECK,
) -> None:
    """A check at this line of the user's."""
    holds = truth_of(predicate, where, _all, "fx.check", "all of which must hold", "fx.check(x > 0, 'x = {}', x)")
    operands, leaves, tree = take_arguments(args, kwargs, "fx.check", where, takes_objects=True)
    fmt, leaves, record_fields = check_format("fx.check", fmt, leaves, tree, where)
    site = Site(effect, Check(fmt, record_fields=record_fields), leaves, tree, where, filter=asked)

    def fail(*operands: Any) -> None:
        bind_where(when, operands, site, "fx.check")

    if not isinstance(holds, bool):
        jax.lax.cond(holds, lambda *_: None, fail, *operands)
    elif not holds:
        fail(*operands)


def _all(x: Any) -> Any:
    # Compiled kernels have no reduction of booleans.
    return x.astype(np.int32).min() != 0 if _jax.is_in_kernel() else x.all()


def truth_of(predicate: Any, where: Where, together: Callable[[Any], Any], call: str, rule: str, example: str) -> Any:
    """The truth of a predicate, reduced by `together` if it is an array: a bool if it is known now, else a traced
    scalar."""
    if _jax.is_reference(predicate):
        predicate = predicate[...]  # a copy of its present value
    if isinstance(predicate, (bool, np.bool_)):
        return bool(predicate)
    if not isinstance(predicate, (jax.Array, np.ndarray)) or predicate.dtype != bool:
        shown = f"an array of {predicate.dtype}" if hasattr(predicate, "dtype") else errors.shown(predicate)
        raise errors.type_error(
            MSG_PREDICATE.format(call=call, where=where, predicate=shown, rule=rule, example=example)
        )
    with jax.transfer_guard("allow"):  # the user's guard is not for our transfer
        truth = together(predicate) if predicate.ndim else predicate
        return truth if isinstance(truth, _jax.Tracer) else bool(truth)


# `fx.error_if`: ends a program whose values are wrong.

T = TypeVar("T")

MSG_NOT_AN_ARRAY = (
    "`fx.error_if` at {where} was given {value} of type `{type}` as the value that it returns, or in it. What it "
    "returns is there only if the program goes on, which arrays and numbers can be. Pass the arrays that the program "
    "goes on with."
)
MSG_ENDED = f"{{message}} ({{place}}). {errors.ENDED}"
MSG_ENDED_ELSEWHERE = (
    "The predicate is true on another device, whose error has the values of {fmt!r} ({where}, in `{function}`). "
    f"{errors.ENDED} Devices that wait for each other all end it."
)
_NOTHING = Operand((), np.dtype(np.int32), np.dtype(np.int32))


@register_callback("effects.error_if")
def _end(*args: Any, record: Record, **kwargs: Any) -> NoReturn:
    raise check_error(record, MSG_ENDED)


@described_by("error_if")
@dataclasses.dataclass(frozen=True)
class End(HostCall):
    """The message of `fx.error_if`, and the function that ends the program with it."""

    raises_itself = True
    always_ends = True

    message: Line = dataclasses.field(kw_only=True)
    all_end: bool = dataclasses.field(kw_only=True, default=False)
    """True if all devices of a region come here if the predicate is true on one: devices with no lane here end too."""

    @property
    def title(self) -> str:
        return self.function.name.replace("effects.", "fx.", 1)  # also that of `fx.watch(mode="stop")`

    def describe(self) -> dict[str, Any]:
        described = {"error_if": self.message.describe(), **super().describe()}
        return {**described, "all_end": True} if self.all_end else described

    @classmethod
    def from_description(cls, description: Mapping[str, Any], read_operand: Callable[[Any], Operand]) -> End:
        call = HostCall.from_description(description, read_operand)
        known = {field.name: getattr(call, field.name) for field in dataclasses.fields(call)}
        message = Line.from_description(description["error_if"], read_operand)
        return cls(**known, message=message, all_end=description.get("all_end", False))

    @property
    def runs_with_empty_mask(self) -> bool:
        return self.all_end

    def without_lanes(self, where: Where) -> errors.CheckError:
        text = MSG_ENDED_ELSEWHERE.format(where=where, function=where.function, fmt=self.message.fmt)
        failure = errors.CheckError(text, self.message.fmt, str(where))
        failure.effect = CHECK.name
        return failure

    @property
    def labels(self) -> Mapping[str, Any]:
        return self.message.labels

    def text(self, record: Record) -> str:
        return self.message.text(record)


@_jax.for_users
def error_if(
    x: T,
    predicate: Any,
    fmt: str | None = None,  # None is refused, with an example
    /,
    *args: Any,
    **kwargs: Any,
) -> T:
    """Returns `x`, or ends the program here: if a predicate is true, the call of the program raises `CheckError`.

    The program waits at this point, in program order, only if the predicate is true. Effects before this point are
    carried out, later ones are not. Operations on the returned value run only if the program continues.

    In a `jax.shard_map` with collectives the devices reduce the predicate, in an additional collective, and all end the
    program if one does. Inside of a `cond` or `while` they do not, since not all devices may reach the call.

    Args:
        x: A pytree of arrays and numbers, which is returned. Derivatives pass through.
        predicate: A boolean, or an array of booleans, none of which may hold. Under `vmap` each lane has its own.
        fmt: The message, a format as for `fx.print`.
        *args: Values for the format's positional fields: pytrees of arrays; strings, numbers and None as they are,
            and of other objects the text that they have while tracing.
        **kwargs: Values for the format's named fields.

    Returns:
        `x`.

    Raises:
        TypeError: while tracing, if the predicate is not boolean, an argument is an object with a traced value inside
            that the format shows, or `x` has something else than arrays and numbers.
        FormatError: while tracing, if format and arguments do not fit together.

    Example:
        >>> import effects as fx, jax
        >>> @fx.jit
        ... def root(x):
        ...     x = fx.error_if(x, x < 0, "x = {} has no root", x)
        ...     return jax.numpy.sqrt(x)
        >>> root(4.0)
        Array(2., dtype=float32, weak_type=True)
        >>> try:
        ...     root(-1.0)
        ... except fx.CheckError as error:
        ...     print(error.message)
        x = -1.0 has no root
    """
    where = where_called()
    is_wrong = truth_of(
        predicate,
        where,
        lambda x: x.any(),
        "fx.error_if",
        "none of which may hold",
        "x = fx.error_if(x, x < 0, 'x = {}', x)",
    )
    leaves, structure = jax.tree.flatten(x)
    for leaf in leaves:
        if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, int, float, complex)) or _jax.is_reference(leaf):
            shown = errors.shown(leaf)
            raise errors.type_error(MSG_NOT_AN_ARRAY.format(where=where, value=shown, type=type(leaf).__name__))
    operands, arguments, tree = take_arguments(args, kwargs, "fx.error_if", where, takes_objects=True)
    fmt, arguments, record_fields = check_format("fx.error_if", fmt, arguments, tree, where)
    function, one = HostFunction.of(_end), jax.tree.structure(0)
    content = End(function, (_NOTHING,), one, pass_record=True, message=Line(fmt, record_fields=record_fields))
    site = Site(CHECK, content, arguments, tree, where)
    if is_wrong is False:
        return x

    def end(*operands: Any) -> Any:
        return effect_p.bind(*operands, site=site)[0]

    operands = [*map(jax.lax.stop_gradient, operands)]
    if is_wrong is True:
        ended = end(*operands)
    else:
        ended = jax.lax.cond(is_wrong, end, lambda *_: _jax.as_per_device(jnp.int32(0)), *operands)
    return jax.tree.unflatten(structure, add_dependency([ended], [jnp.asarray(leaf) for leaf in leaves]))
