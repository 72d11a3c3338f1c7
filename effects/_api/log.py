"""Structured logging from inside compiled programs."""

from __future__ import annotations

import dataclasses
import logging
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Never

from effects import _jax
from effects._model.content import NativeText, Report, described_by
from effects._model.line import line_of, write_lines
from effects._model.primitive import effect_p
from effects._model.record import Record, after_shard
from effects._model.registry import PROGRAM, Effect, register_effect
from effects._model.site import MSG_TRACER_IN_TEXT, Site, holds_tracer, take_arguments, where_called
from effects._model.text import Piece, Plan, Wrap, text_plan

MSG_LOG_EVENT = (
    "`fx.log` at {where} was given {event!r} as its event. An event is named by a non-empty string, and values are its "
    "fields. Write, say, `fx.log('step', loss=loss)`."
)
MSG_LOG_UNNAMED = (
    "`fx.log` at {where} was given {given} behind the event, without a name. An event has fields, each with its name. "
    "Write, say, `fx.log({event!r}, x=x)`."
)
MSG_LOG_LEVEL = (
    "`fx.log` at {where} was given the level {level!r}. A level is a whole number, as for `logging`, or the name that "
    "`logging` has for one. Pass, say, `level=logging.WARNING` or `level='warning'`."
)
MSG_LOG_FIELD = (
    "`fx.log` at {where} was given fields named {names}. Every log record has attributes of these names for itself. "
    "Choose other names, say `{first}_`."
)


LOG = register_effect(Effect("log", domain=PROGRAM))

LOGGER = logging.getLogger("effects")
"""Where events go by default. Its own level, if it has one, is the threshold below which nothing is recorded."""

RESERVED = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {
    "asctime",
    "device",
    "effect",
    "effects_record",
    "event",
    "fields",
    "fmt",
    "lane",
    "level",
    "message",
    "process",
    "taskName",
    "text",
    "thread",
    "time",
    "token",
    "where",
}
"""Names that a log record of Python's, or a `Record`, has for itself."""


@described_by("event")
@dataclasses.dataclass(frozen=True)
class Event(NativeText):
    """An event of `fx.log`."""

    event: str
    level: int
    fields: tuple[str, ...]  # their names, in the order in which they were written

    def in_order(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {name: fields[name] for name in self.fields}

    @property
    def labels(self) -> Mapping[str, Any]:
        return {"event": self.event, "level": self.level}

    def text(self, record: Record) -> str:
        shown = " ".join([self.event, *(f"{name}={value!s}" for name, value in record.fields.items())])
        return after_shard(record, shown)

    def is_shown(self, suppressed: bool, takes_lines: bool | None) -> bool:
        if suppressed:
            return False
        if _is_configured():
            return LOGGER.isEnabledFor(self.level)
        return (
            takes_lines is None
            and self.level >= max(LOGGER.level, logging.INFO, LOGGER.manager.disable + 1)
            and not LOGGER.disabled
        )

    asks_before_text = True

    @property
    def writes_text(self) -> bool:
        return not _is_configured()

    def native_plan(self, site: Site) -> Plan | None:
        plan = text_plan(site, line_of)
        if plan is None or any("\n" in piece.literal for piece in plan.pieces):
            return None
        begin, end = Piece("", wrap=Wrap.BEGIN), Piece("", wrap=Wrap.END_LINE)
        return plan._replace(pieces=[begin, *plan.pieces, end, Piece("\n")])

    def show(self, records: Iterable[Record], write: Callable[[str], None], report: Report) -> None:
        if _is_configured():
            for record in records:
                self._log(record)
        else:
            write_lines(records, line_of, write)

    def _log(self, record: Record) -> None:
        """Hands a record to Python's logging, as if the user's line had."""
        where, name = record.where, LOGGER.name
        function = where.function.rpartition(".")[2]  # as Python's logging has it
        extra = {**record.fields, "event": self.event, "effects_record": record}
        made = LOGGER.makeRecord(name, self.level, where.file, where.line, record.text, (), None, function, extra)
        LOGGER.handle(made)


def _is_configured() -> bool:
    """Whether Python's logging has a handler for events. That of absl does not count, since libraries that import absl
    install it, and not the user."""
    logger: logging.Logger | None = LOGGER
    while logger is not None:
        if any(not type(handler).__module__.startswith("absl.") for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


@_jax.for_users
def log(
    event: str,
    /,
    *unnamed: Never,
    level: int | str = logging.INFO,
    ordered: bool = True,
    per_shard: bool = False,
    **fields: Any,
) -> None:
    """Logs an event with fields when the program reaches this point, in program order.

    Goes to the handlers that `fx.add_handler` added, and to Python's `logging` under the logger `effects`, with the
    user's file, line and function. As long as `logging` has no handler, an event of the level `logging.INFO` or above
    is a line of the standard output, unless a handler takes it. An event below the level that the logger `effects` has
    of its own when the program is traced costs nothing: it does not become part of the program.

    Args:
        event: What happened.
        *unnamed: There are none: every field has a name.
        level: How much it matters: a number as for `logging`, or the name of one, such as `"warning"`.
        ordered: Whether the event must come in program order. Unordered events come when they come.
        per_shard: Whether each shard of sharded arrays is an event of its own, on the device that has it, without
            gathering. The record has the device and the shard's `index`.
        **fields: Pytrees of arrays; strings, numbers and None as they are.

    Raises:
        TypeError: while tracing, if the event is not a string, the level no number or name, or a field not a value.
        ValueError: while tracing, if a field has a name that every record has for itself.

    Example:
        >>> import effects as fx
        >>> step = fx.jit(lambda loss: fx.log("step", loss=loss))
        >>> with fx.capture() as records:
        ...     step(0.5)
        >>> records[0].event, records[0].fields
        ('step', {'loss': array(0.5, dtype=float32)})
    """
    if isinstance(level, str):
        level = logging.getLevelNamesMapping().get(level.upper(), level)  # type: ignore[assignment]
    if isinstance(level, numbers.Integral) and not isinstance(level, bool):
        level = int(level)  # NumPy's too
        if level < LOGGER.level:
            return
    where = where_called()
    if not isinstance(event, str) or not event:
        raise TypeError(MSG_LOG_EVENT.format(where=where, event=event))
    if holds_tracer(event):
        raise TypeError(MSG_TRACER_IN_TEXT.format(call="fx.log", where=where, text=event, path="its event"))
    if unnamed:
        given = "a value" if len(unnamed) == 1 else f"{len(unnamed)} values"
        raise TypeError(MSG_LOG_UNNAMED.format(where=where, event=event, given=given))
    if isinstance(level, bool) or not isinstance(level, int):
        raise TypeError(MSG_LOG_LEVEL.format(where=where, level=level))
    if taken := sorted(RESERVED & set(fields)):
        names = ", ".join(f"`{name}`" for name in taken)
        raise ValueError(MSG_LOG_FIELD.format(where=where, names=names, first=taken[0]))
    operands, leaves, tree = take_arguments((), fields, "fx.log", where)
    effect = LOG if ordered else LOG.unordered()
    content = Event(event, level, tuple(fields))
    effect_p.bind(*operands, site=Site(effect, content, leaves, tree, where, per_shard=bool(per_shard)))
