"""`fx.capture` and `fx.add_handler`: looking at records."""

from __future__ import annotations

import contextlib
from typing import Any, Generic, TypeVar

from effects import _errors as errors
from effects import _removed
from effects._jax import is_being_traced
from effects._model.effect import effect_names
from effects._model.record import Record
from effects.dispatch.runtime.observers import Capture, Handler, captures
from effects.dispatch.runtime.runtime import MSG_WHILE_TRACING, effects_barrier, runtime
from effects.lowering.native_module import native

_PAGE = "docs/reference/handlers.md"
MSG_HANDLER = (
    "`add_handler` was given {handler}, which has no method `handle` and cannot be called. A handler takes one "
    "`Record` at a time. Pass a function of a record, or an object with `handle(record)`."
)
MSG_HANDLER_CLASS = (
    "`add_handler` was given the class `{name}`. A handler is an object, which a class only makes. Write "
    "`fx.add_handler({name}(...))`."
)
MSG_HANDLER_TOKEN = (
    "`remove_handler` was given {token}, which was not added, or was removed already. A handler is removed once. Pass "
    "the handler itself, or the token that `add_handler` returned for it."
)


def capture(suppress: bool = False) -> contextlib.AbstractContextManager[list[Record]]:
    """Collects the records of the calling thread's effects in a `with` block, in the order in which they happen.

    At the end of the block is a barrier: the list is complete then, and what effects raised is raised. Before that, it
    has the records so far. Unordered records may have other places in the list than in the output. Captures nest, and
    each gets all records. The calling thread of programs that `jax.jit` dispatched is unknown, so every open capture
    gets their records.

    Args:
        suppress: Whether prints and logs of the block are kept from the output. Handlers and callbacks get theirs.

    Example:
        >>> import effects as fx
        >>> with fx.capture(suppress=True) as records:
        ...     fx.jit(lambda x: fx.print("x = {}", x))(1)
        >>> [record.text for record in records]
        ['x = 1']
    """
    if is_being_traced():
        raise errors.runtime_error(MSG_WHILE_TRACING.format(call="fx.capture"))
    mine = Capture(suppress)
    before: list[tuple[Capture, ...]] = []

    def begin() -> list[Record]:
        runtime.waiting.for_thread()  # records that native code shows and records for Python must not mix
        before.append(captures.get())
        runtime.observers.add(mine)
        captures.set((*before[-1], mine))
        return mine.records

    def end(failed: bool) -> None:
        if failed:
            runtime.waiting.for_thread()  # the block's own error takes precedence
        else:
            effects_barrier()

    def undo() -> None:
        if before:
            captures.set(before[-1])
        runtime.observers.remove(mine)

    return native.WithBlock(begin, end, undo)


H = TypeVar("H")


class AddedHandler(Handler, Generic[H]):
    """A handler that `add_handler` has added. A `with` block gives the handler, and removes it at the end."""

    handler: H

    def __enter__(self) -> H:
        return self.handler

    def __exit__(self, *exception: object) -> None:
        if self in runtime.observers.handlers:
            remove_handler(self)


@_removed.without_arguments("fx.add_handler", "after_error")
def add_handler(handler: H, effects: Any = None) -> AddedHandler[H]:
    """Gives records to a handler from now on, or for the time of a `with` block.

    Args:
        handler: A function of one `Record`, or an object with `handle(record)`. If it has `handle_many(records)`, it
            gets sequences of records instead, which cost nothing until they are looked at; `close()` is called when it
            is removed, and when the process ends. With an attribute `takes_lines` that is true it shows the lines of
            the prints that it gets, and they are not written to the output. Handlers run in threads of the drain, in
            program order; records of several threads' programs, and unordered ones, may come in several threads at the
            same time.
        effects: Names of effects, or objects of `Effect`, whose records it gets; by default all.

    Returns:
        What `remove_handler` takes. In a `with` block it gives the handler, and removes it at the end.

    Raises:
        TypeError: if it can neither be called nor has a method `handle`.

    Example:
        >>> import effects as fx
        >>> with fx.add_handler(fx.ListHandler(), effects="print") as kept:
        ...     fx.jit(lambda x: fx.print("x = {}", x))(1)
        x = 1
        >>> [record.text for record in kept.records]
        ['x = 1']
    """
    takes_records = callable(getattr(handler, "handle", None)) or callable(handler)
    if isinstance(handler, type):
        raise errors.type_error(MSG_HANDLER_CLASS.format(name=handler.__qualname__))
    if not takes_records:
        raise errors.type_error(MSG_HANDLER.format(handler=errors.shown(handler)))
    added = AddedHandler(handler, None if effects is None else effect_names(effects))
    runtime.waiting.for_thread()
    try:
        runtime.observers.add(added)
    except BaseException:  # an interrupt: the caller would never get the function that removes the handler
        runtime.observers.remove(added)
        raise
    return added


def remove_handler(token: Any) -> None:
    """Gives no more records to a handler, and closes it. It has then got the records of all earlier effects of the
    calling thread.

    Other threads' programs may be giving it records. Then it is closed when they have: this waits for it, unless it is
    called by a handler or a callback.

    Args:
        token: What `add_handler` returned, or the handler itself: if it was added several times, as it was last.

    Raises:
        ValueError: if the handler is not there.

    Example:
        >>> import effects as fx
        >>> added = fx.add_handler(print)
        >>> fx.remove_handler(added)
    """
    runtime.waiting.for_thread()
    added = next(
        (added for added in reversed(runtime.observers.handlers) if added is token or added.handler is token), None
    )
    if added is None or not runtime.observers.remove(added):
        raise errors.value_error(MSG_HANDLER_TOKEN.format(token=errors.shown(token)))
    if not native.is_nested():
        try:
            while added.is_busy and not runtime.drain.wait(lambda: not added.is_busy, _LOOK):
                pass
        except BaseException:
            added.close_when_idle()
            raise
    added.close_when_idle()


_LOOK = 0.005
"""The interval in seconds at which to check that no thread still delivers records to a handler; nothing notifies of
that."""
