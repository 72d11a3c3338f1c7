"""What becomes of records: text is written, events are logged, functions are called, and observers see them all.

Runs in a drain thread, in the context of the program's call.
"""

from __future__ import annotations

import contextvars
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from effects import _errors as errors
from effects._model.host_call import take_results
from effects._model.record import Record, Records, records_of
from effects._model.site import Site
from effects._wire import INDEX, UNTRACKED_THREAD
from effects.dispatch.draining.failures import Failures, ProgramKey
from effects.dispatch.draining.observers import Capture, Observers, captures
from effects.lowering.host.native import native

MSG_FOREIGN_CALLBACK = (
    "The program calls back the function `{name}` of another process. A function cannot travel with a program: its "
    "name can. Register it under one name in both processes, with `@fx.register_callback('some.name')`."
)
MSG_REPLAY = (
    "The effect `{effect}` at {where}, in {function}, could not be carried out on the host: {error}. It was replayed "
    "in its place in the order, and the effects after it went on. Correct what the cause below says."
)
MSG_CALLBACK = (
    "The callback `{name}` at {where}, in {function}, raised {error}. It ran in its place in the order, and "
    "the effects after it went on, since nothing waited for it. Correct what the cause below says."
)
MSG_AWAITED_CALLBACK = (
    "The callback `{name}` at {where}, in {function}, raised {error}. "
    + errors.WAITED
    + " Correct what the cause below says."
)
MSG_OUTPUT_CLOSED = (
    "Text of `print` could not be written: the output that was in force when the program was called is closed, and so "
    "is the present `sys.stdout`. Printed lines go to the `sys.stdout` of the call. Call `fx.effects_barrier()` before "
    "closing it."
)


_ONCE = ((),)
"""The lanes of what has none."""


class Call(NamedTuple):
    """What was in force when a program was called. A plain tuple where it is made, since that is at every dispatch."""

    caller: native.Caller  # the jitted function
    stdout: TextIO | None  # where its lines go
    context: contextvars.Context  # in which its effects are replayed


Settle = Callable[[ProgramKey], None]
"""Waits for the effects of what a function of the user's has called, on behalf of the program that called it."""

_OUTSIDE = native.Caller("a program outside fx.jit")


def outside_epochs() -> Call:
    """What is in force for a record of a program that JAX dispatched: the present."""
    return Call(_OUTSIDE, sys.stdout, contextvars.copy_context())


class Replay:
    """Replays what came from one program."""

    def __init__(
        self,
        failures: Failures,
        observers: Observers,
        call: tuple[native.Caller, TextIO | None, contextvars.Context],
        key: ProgramKey,
        settle: Settle | None = None,
    ):
        self._failures = failures
        self._observers = observers
        self._call = call
        self._key = key
        self._settle = settle

    def text(self, text: str) -> None:
        """Lines that native code has formatted."""
        try:
            self._call[2].run(self._write, text)
        except BaseException as error:
            self._fail(error, None)

    def records(self, records: Records) -> None:
        """Records that call nothing."""
        try:
            self._call[2].run(self._show, records)
        except BaseException as error:
            self._fail(error, None)

    def function(
        self, site: Site, token: tuple[int, ...], device: int, payload: Any, awaited: bool
    ) -> list[np.ndarray] | BaseException | None:
        """Runs a callback, once or lane by lane. Returns its results, or what it raised if a program waits for it."""
        try:
            # A copy: what a function sets in its context is its own.
            return self._call[2].copy().run(self._run, site, token, device, payload)
        except BaseException as error:
            if not awaited:
                self._fail(error, site)
                return None
            failure = _failure(MSG_AWAITED_CALLBACK, error, self._call[0].name, site)
            self._failures.end_program(self._key, failure, token[INDEX])
            return failure

    # In the context of the call.

    def _run(self, site: Site, token: tuple[int, ...], device: int, payload: Any) -> list[np.ndarray]:
        if site.num_dynamic_sizes:
            site = site.of_record(payload)
        call: Any = site.content.call  # the record says that it is of one
        fn = call.function.fn
        if fn is None:
            raise RuntimeError(MSG_FOREIGN_CALLBACK.format(name=call.function.name))
        observed = self._observers.handlers or self._observers.captures
        values = site.read(payload)
        lanes: Iterable[tuple[int, ...]] = _ONCE
        results: list[np.ndarray] = []
        calls_lanes = False
        if site.lanes:
            if call.is_vectorized and site.active(payload) is None:
                values = site.all_lanes(values, call.vmap_method or "")
            else:
                calls_lanes = True
                lanes = site.lanes_of(payload)
                results = [np.zeros(result.shape, result.stored) for result in site.results or ()]
        for lane in lanes:
            args, kwargs = site.arguments(site.of_lane(values, lane) if calls_lanes else values)
            if observed or call.pass_record:
                record = Record(site, token, device, lane, payload)
                if observed:
                    self._observe([record])
                if call.pass_record:
                    kwargs = {**kwargs, "record": record}
            try:
                returned = fn(*args, **kwargs)
            except BaseException as error:
                if call.results is not None:
                    raise
                self._fail(error, site)  # the other lanes go on
            else:
                if call.prints:
                    if not (observed and any(capture.suppress for capture in self._captures())):
                        self._write(returned)
                elif call.results is not None and not calls_lanes:
                    results = take_results(call, site.where, returned, site.results or ())
                elif call.results is not None:  # at once: the function may have one array for all lanes
                    taken = take_results(call, site.where, returned, call.results)
                    for all_lanes, of_one in zip(results, taken, strict=True):
                        all_lanes[lane] = of_one
            finally:
                if self._settle is not None:
                    self._settle(self._key)
        return results

    def _show(self, records: Records) -> None:
        suppressed = False
        if self._observers.handlers or self._observers.captures:
            self._observe(records)
            suppressed = any(capture.suppress for capture in self._captures())
        if not any(site.content.is_shown(suppressed) for site in records.sites()):
            return
        for site, token, device, payload in records.parts():
            try:
                if site.content.is_shown(suppressed):
                    site.content.show(records_of(site, token, device, payload), self._write)
            except Exception as error:
                self._fail(error, site)

    def _write(self, text: str) -> None:
        for out in (self._call[1], sys.stdout):
            if out is None or not getattr(out, "closed", False):
                if out is not None:
                    out.write(text)
                return
        raise ValueError(MSG_OUTPUT_CLOSED)

    def _observe(self, records: Records | list[Record]) -> None:
        for capture in self._captures():
            capture.records.extend(records)
        for handler in self._observers.handlers:
            handler.take(records, lambda failure: self._failures.add(self._key, failure))

    def _captures(self) -> tuple[Capture, ...]:
        # What JAX dispatched does not say which thread called it.
        return self._observers.captures if self._key[0] == UNTRACKED_THREAD else captures.get()

    def _fail(self, error: BaseException, site: Site | None) -> None:
        is_call = site is not None and site.content.call is not None
        message = MSG_CALLBACK if is_call else MSG_REPLAY
        self._failures.add(self._key, _failure(message, error, self._call[0].name, site))


def _failure(message: str, error: BaseException, function: str, site: Site | None) -> errors.EffectError:
    failure = errors.EffectError(
        message.format(
            effect=site.effect.name if site else "print",
            name=site.content.title if site else "",
            where=site.where if site else "its call",
            function=f"`{function}`",
            error=errors.shown(error),
        )
    )
    failure.__cause__ = error.with_traceback(_from_user(error))
    return failure


_OURS = str(Path(errors.__file__).parent) + os.sep
"""Where our own code lies."""


def _from_user(error: BaseException) -> Any:
    """The traceback without our own frames, if the user's are in it."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_OURS):
        traceback = traceback.tb_next
    return traceback or error.__traceback__
