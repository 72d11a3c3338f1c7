"""The observers of records besides the output: captures and handlers."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterable
from typing import Any

from effects import _errors as errors
from effects._api.callback import CALLBACK
from effects._api.check import CHECK
from effects._api.log import LOG
from effects._model.function import function_name
from effects._model.record import Record, Records
from effects._model.site import Site
from effects.dispatch.runtime.failures import traceback_from_user
from effects.lowering.native_module import native

MSG_HANDLER_FAILED = (
    "The handler `{handler}` raised {error} for {records}. An error of a handler is reported once, and later records "
    "still reach all handlers. Correct the handler, or call `fx.remove_handler`."
)


class Capture:
    """The list of records that `fx.capture` fills from its thread's programs."""

    def __init__(self, suppress: bool):
        self.records: list[Record] = []
        self.suppress = suppress


captures: contextvars.ContextVar[tuple[Capture, ...]] = contextvars.ContextVar("effects_captures", default=())
"""The captures around a call, the outermost first. Part of the context in which the call's effects are replayed."""


class Handler:
    """A handler that was added."""

    def __init__(self, handler: Any, effects: frozenset[str] | None):
        self.handler = handler
        self.takes_lines: bool = getattr(handler, "takes_lines", False)  # it replaces the output
        self._effects = effects
        self._many: Callable[[Iterable[Record]], Any] | None = getattr(handler, "handle_many", None)
        self._one: Callable[[Record], Any] = handler.handle if hasattr(handler, "handle") else handler
        self._has_failed = False
        self._users: list[int] = []  # the drain threads that deliver to it; they add and remove themselves
        self._is_removed = False
        self._to_close = [True]  # the thread that takes this closes the handler
        self._close_when_idle = False

    def takes(self, site: Site) -> bool:
        """True if the handler gets the records of this site."""
        return self._effects is None or site.effect.name in self._effects

    def wants_lines(self) -> bool:
        """True if the handler also gets records that native code could show without Python."""
        return self._effects is None or bool(self._effects - _NEVER_NATIVE)

    def take(self, records: Records | list[Record], report: Callable[[BaseException], None]) -> None:
        """Gives the handler the records of its effects, unless it has been removed. Its first error is reported."""
        self._users.append(me := threading.get_ident())  # before the check for removal: see `remove`
        try:
            if not self._is_removed:
                self._take(records, report)
        finally:
            self._users.remove(me)
            if self._close_when_idle and not self._users:
                try:
                    self.close()
                except BaseException as error:
                    self._report(error, None, report)

    def _take(self, records: Records | list[Record], report: Callable[[BaseException], None]) -> None:
        if isinstance(records, Records):
            records = records.of_sites(self.takes)
            is_empty = not records.sites()
        else:
            records = [record for record in records if self._effects is None or record.effect in self._effects]
            is_empty = not records
        if is_empty:
            return
        if self._many is not None:
            try:
                self._many(records)
            except BaseException as error:
                self._report(error, None, report)
            return
        for record in records:
            try:
                self._one(record)
            except BaseException as error:
                self._report(error, record, report)

    def _report(self, error: BaseException, record: Record | None, report: Callable[[BaseException], None]) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        records = "a batch of records" if record is None else f"a record of `{record.effect}` at {record.where}"
        handler = function_name(self.handler)
        text = MSG_HANDLER_FAILED.format(handler=handler, error=errors.shown(error), records=records)
        failure = errors.EffectError(text)
        failure.__cause__ = error.with_traceback(traceback_from_user(error))
        report(failure)

    @property
    def is_busy(self) -> bool:
        """True if a thread is giving the handler records."""
        return bool(self._users)

    def remove(self) -> None:
        """Marks the handler as removed, so that no thread begins another delivery. A delivering thread first adds
        itself to `_users` and then reads `_is_removed`; the remover first sets `_is_removed` and then reads `_users`.
        So one of the two sees the other."""
        self._is_removed = True

    def close_when_idle(self) -> None:
        """Closes the handler as soon as no thread is giving it records: here, or in the last of these threads."""
        self._close_when_idle = True
        if not self._users:
            self.close()

    def close(self) -> None:
        """Lets the handler write its kept records. A second call does nothing."""
        try:
            self._to_close.pop()
        except IndexError:
            return
        if callable(close := getattr(self.handler, "close", None)):
            close()


_NEVER_NATIVE = {LOG.name, CALLBACK.name, CHECK.name}
"""Effects whose content has no native plan. Of others it is not known: to take one out of here costs some speed."""


class Observers:
    """The captures and handlers in force. Changed under the lock. The tuples are replaced as a whole, which does not
    disturb a drain thread that iterates over one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._needs_time = False  # true if native code notes the times of records
        self.captures: tuple[Capture, ...] = ()  # the observers of all threads
        self.handlers: tuple[Handler, ...] = ()

    def add(self, observer: Capture | Handler) -> None:
        with self._lock:
            if isinstance(observer, Capture):
                self.captures = (*self.captures, observer)
            else:
                self.handlers = (*self.handlers, observer)
            self._tell_native()
            native.raise_attention()

    def remove(self, observer: Capture | Handler) -> bool:
        """Removes an observer. Returns True if it was there."""
        with self._lock:
            known = observer in self.captures or observer in self.handlers
            self.captures = tuple(capture for capture in self.captures if capture is not observer)
            self.handlers = tuple(handler for handler in self.handlers if handler is not observer)
            if isinstance(observer, Handler):
                observer.remove()
            self._tell_native()
        return known

    def _tell_native(self) -> None:
        watched = bool(self.captures or self.handlers)
        if watched != self._needs_time:
            self._needs_time = watched
            native.need_time(watched)
        native.show_python(bool(self.captures) or any(handler.wants_lines() for handler in self.handlers))
