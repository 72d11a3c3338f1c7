"""Structured logging from inside compiled programs."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Never

from effects import _errors as errors
from effects import _jax
from effects._model.content import NativeText, Report, described_by
from effects._model.effect import PROGRAM, Effect, host_effect, register_effect
from effects._model.filter import LOGGER, choose
from effects._model.line import write_lines
from effects._model.operand import MSG_TRACER_IN_TEXT, holds_tracer, take_arguments
from effects._model.plan import Piece, Plan, Wrap
from effects._model.primitive import bind_where
from effects._model.record import Record, after_shard
from effects._model.site import Site
from effects._model.text import text_plan
from effects._model.where import where_called

_PAGE = "docs/guide/logging.md"
MSG_LOG_EVENT = (
    "`fx.log` at {where} was given {event!r} as its event. An event is named by a non-empty string, and values are its "
    "fields. Write, say, `fx.log('step', loss=loss)`."
)
MSG_LOG_UNNAMED = (
    "`fx.log` at {where} was given {given} behind the event, without a name. An event has fields, each with its name. "
    "Write, say, `fx.log({event!r}, x=x)`."
)
MSG_LOG_FIELD = (
    "`fx.log` at {where} was given fields named {names}. Every log record has attributes of these names for itself. "
    "Choose other names, say `{first}_`."
)


LOG = register_effect(Effect("log", domain=PROGRAM))

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
"""Names of attributes of Python's log records or of `Record`, which no field may have."""


@described_by("event")
@dataclasses.dataclass(frozen=True)
class Event(NativeText):
    """An event of `fx.log`."""

    event: str
    level: int
    fields: tuple[str, ...]  # the names of fields, in the order in which they were written
    logger: str = LOGGER.name

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
        logger = logging.getLogger(self.logger)
        if _is_configured(logger):
            return logger.isEnabledFor(self.level)
        return (
            takes_lines is None and self.level >= max(logging.INFO, logger.manager.disable + 1) and not logger.disabled
        )

    asks_before_text = True

    @property
    def writes_text(self) -> bool:
        return not _is_configured(logging.getLogger(self.logger))

    def native_plan(self, site: Site) -> Plan | None:
        plan = text_plan(site, lambda record: self.line(record).removesuffix("\n"))
        if plan is None or any("\n" in piece.literal for piece in plan.pieces):
            return None
        begin, end = Piece("", wrap=Wrap.BEGIN), Piece("", wrap=Wrap.END_LINE)
        return plan._replace(pieces=[begin, *plan.pieces, end, Piece("\n")])

    def show(self, records: Iterable[Record], write: Callable[[str], None], report: Report) -> None:
        if _is_configured(logger := logging.getLogger(self.logger)):
            for record in records:
                self._log(logger, record)
        else:
            write_lines(records, self.line, write)

    def _log(self, logger: logging.Logger, record: Record) -> None:
        """Hands a record to Python's logging, as if the user's line had."""
        where, name = record.where, self.logger
        function = where.function.rpartition(".")[2]  # as Python's logging has it
        extra = {**record.fields, "event": self.event, "effects_record": record}
        made = logger.makeRecord(name, self.level, where.file, where.line, record.text, (), None, function, extra)
        logger.handle(made)


def _is_configured(of: logging.Logger) -> bool:
    """True if Python's logging has a handler for a logger's events. The handler of absl does not count: it comes with
    the import of absl, often by a library, and is not the user's choice."""
    logger: logging.Logger | None = of
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
    level: int | str = "info",
    logger: str | None = None,
    ordered: bool = True,
    per_shard: bool = False,
    every: int | None = None,
    first: int | None = None,
    min_seconds: float | None = None,
    when: Any = None,
    effect: Effect | str | None = None,
    **fields: Any,
) -> None:
    """Logs an event with fields when the program reaches this point, in program order.

    The event goes to the handlers that `fx.add_handler` added, and to Python's `logging` under the logger `effects`,
    with the user's file, line and function. If `logging` has no handler, an event of the level `logging.INFO` or above
    becomes a line of the standard output, unless a handler takes it. An event below the level that the logger has when
    the program gets there is not recorded.

    Args:
        event: The name of the event.
        *unnamed: None are allowed: every field has a name.
        level: The level of the event: a number as for `logging`, or a name such as `"warning"`. The event is left out
            if its level is below the logger's when the program gets here.
        logger: The name of the logger that gets the event, `effects` by default.
        ordered: True if the event must come in program order. An unordered event may come at any time.
        per_shard: True to log an event for each shard of sharded arrays, on the shard's device, without a gather. The
            record has the device and the shard's `index`.
        every: A number n: the first event is logged, and each n-th after it, over loops and calls of the program. A
            `vmap` counts once for all lanes.
        first: The maximum number of events logged, on each device of a `jax.shard_map`.
        min_seconds: The minimum number of seconds since the last event that was logged. So it depends on time.
        when: A boolean, which the program may compute: if it is false, nothing is logged, as in a `cond`.
        effect: A registered `fx.Effect`, or its name, in place of `log`. Its order domain is then that of the event.
        **fields: Pytrees of arrays; strings, numbers and None as they are.

    Raises:
        TypeError, ValueError: while tracing, if the event is not a string, if a field is not a value or has the name of
            an attribute of records, or if one of `level` to `when` is not as described.

    Example:
        >>> import effects as fx
        >>> step = fx.jit(lambda loss: fx.log("step", loss=loss))
        >>> with fx.capture() as records:
        ...     step(0.5)
        >>> records[0].event, records[0].fields
        ('step', {'loss': array(0.5, dtype=float32)})
    """
    where = where_called()
    if not isinstance(event, str) or not event:
        raise errors.type_error(MSG_LOG_EVENT.format(where=where, event=event))
    if holds_tracer(event):
        raise errors.type_error(MSG_TRACER_IN_TEXT.format(call="fx.log", where=where, text=event, path="its event"))
    if unnamed:
        given = "a value" if len(unnamed) == 1 else f"{len(unnamed)} values"
        raise errors.type_error(MSG_LOG_UNNAMED.format(where=where, event=event, given=given))
    if taken := sorted(RESERVED & set(fields)):
        names = ", ".join(f"`{name}`" for name in taken)
        raise errors.value_error(MSG_LOG_FIELD.format(where=where, names=names, first=taken[0]))
    operands, leaves, tree = take_arguments((), fields, "fx.log", where)
    chosen = host_effect("fx.log", where, effect, LOG, ordered)
    asked = choose("fx.log", where, level, logger, every, first, min_seconds)
    content = Event(event, asked.level, tuple(fields), asked.logger)
    site = Site(chosen, content, leaves, tree, where, per_shard=bool(per_shard), filter=asked)
    bind_where(when, operands, site, "fx.log")
