"""Checks: conditions that must hold whenever the program gets there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from effects import _errors as errors
from effects import _jax
from effects._api.registry import register_effect
from effects._model.arguments import take_arguments
from effects._model.content import Report, described_by
from effects._model.effect import PROGRAM, Effect
from effects._model.format import check_format
from effects._model.line import Line
from effects._model.primitive import effect_p
from effects._model.record import Record
from effects._model.site import Site
from effects._model.where import Where, where_called

MSG_PREDICATE = (
    "`{call}` at {where} was given {predicate} as its predicate. A predicate is a boolean, or an array of booleans, "
    "{rule}. Write a comparison, say `{example}`."
)
RULE, EXAMPLE = "all of which must hold", "fx.check(x > 0, 'x = {}', x)"
MSG_CHECK_FAILED = "{message} ({place}). The program went on after this check."

CHECK = register_effect(Effect("check", domain=PROGRAM))


@described_by("check")
@dataclasses.dataclass(frozen=True)
class Check(Line):
    """The message of a check. Its records are those of checks that failed."""

    def describe(self) -> dict[str, Any]:
        described = super().describe()
        return {"check": described.pop("line"), **described}

    @classmethod
    def from_description(cls, description: Mapping[str, Any], read_operand: Any) -> Check:
        return super().from_description({"line": description["check"], **description}, read_operand)

    def native_plan(self, site: Site) -> None:
        return None

    def yields_to(self, takes_lines: bool) -> bool:
        return False

    def is_shown(self, suppressed: bool) -> bool:
        return True

    def show(self, records: Iterable[Record], write: Callable[[str], None], report: Report) -> None:
        for record in records:
            report(check_error(record, MSG_CHECK_FAILED))


def check_error(record: Record, text: str) -> errors.CheckError:
    """What a record of a check is raised as, with this text for `place` and `message`. It keeps its message, and none
    of its values."""
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
def check(predicate: Any, fmt: str, /, *args: Any, **kwargs: Any) -> None:
    """Checks that a predicate holds when the program reaches this point. If it does not, that is an error.

    A check that fails is recorded with its message, in program order with prints, and raised as `CheckError` at the
    next call or barrier, as what callbacks raise is. A check that holds records nothing.

    A failed check ends neither its program nor its program's effects: those after it are evidence of what went wrong.
    Use `fx.error_if` where a program must not go on.

    Args:
        predicate: A boolean, or an array of booleans, all of which must hold. Under `vmap` each lane has a check of its
            own. What is known while tracing is decided then: True leaves nothing in the program.
        fmt: The message, a format as for `fx.print`.
        *args: Values for the format's positional fields: pytrees of arrays; strings, numbers and None as they are,
            and of other objects the text that they have while tracing.
        **kwargs: Values for the format's named fields.

    Raises:
        TypeError: while tracing, if the predicate is not boolean, or an argument is an object with a traced value
            inside that the format shows.
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
    check_at(where_called(), predicate, fmt, args, kwargs)


def check_at(where: Where, predicate: Any, fmt: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A check that stands at this line of the user's."""
    holds = truth_of(predicate, where, _all, "fx.check", RULE, EXAMPLE)
    operands, leaves, tree = take_arguments(args, kwargs, "fx.check", where, takes_objects=True)
    fmt, leaves, of_record = check_format("fx.check", fmt, leaves, tree, where)
    site = Site(CHECK, Check(fmt, of_record=of_record), leaves, tree, where)

    def fail(*operands: Any) -> None:
        effect_p.bind(*operands, site=site)

    if not isinstance(holds, bool):
        jax.lax.cond(holds, lambda *_: None, fail, *operands)
    elif not holds:
        fail(*operands)


def _all(x: Any) -> Any:
    # Compiled kernels have no reduction of booleans.
    return x.astype(np.int32).min() != 0 if _jax.is_in_kernel() else x.all()


def truth_of(predicate: Any, where: Where, together: Callable[[Any], Any], call: str, rule: str, example: str) -> Any:
    """Whether a predicate is true, or what `together` says of an array's: a bool where that is known now, else a scalar
    of the program's."""
    if _jax.is_reference(predicate):
        predicate = predicate[...]  # what it holds now
    if isinstance(predicate, (bool, np.bool_)):
        return bool(predicate)
    if not isinstance(predicate, (jax.Array, np.ndarray)) or predicate.dtype != bool:
        shown = f"an array of {predicate.dtype}" if hasattr(predicate, "dtype") else errors.shown(predicate)
        raise TypeError(MSG_PREDICATE.format(call=call, where=where, predicate=shown, rule=rule, example=example))
    with jax.transfer_guard("allow"):  # the guard is for the user's transfers; this one is ours
        truth = together(predicate) if predicate.ndim else predicate
        return truth if isinstance(truth, _jax.Tracer) else bool(truth)
