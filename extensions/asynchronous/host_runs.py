"""Functions of asynchronous callbacks: each runs in a separate thread while its program continues.

The function's effects are held back until the drain reaches its done in program order. There the effects appear, and
the program, which waits, gets the function's results.
"""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import threading
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Any, NamedTuple

import jax
import numpy as np

from effects import _errors as errors
from effects._model.callback import HostCall, take_results
from effects._model.function import HostFunction, register_callback
from effects._model.record import Record, number_of_device, site_of
from effects._model.where import Where
from effects._model.wire import EPOCH, PLAIN_THREAD, STREAM, Kind, stream_of, thread_of
from effects.dispatch.runtime.background import MSG_NO_THREAD, Workers
from effects.dispatch.runtime.beside import Beside
from effects.dispatch.runtime.failures import HostRunFailed, ProgramKey
from effects.dispatch.runtime.runtime import runtime
from effects.dispatch.runtime.streams import Stream
from effects.extensions.asynchronous.primitives import DONE_FUNCTION
from effects.lowering.native_module import native

MSG_NEVER_DONE = (
    "{count} of {function} {were} started and never done{where}. Each start has one done in the same program, and "
    "without it the results are lost. Call `fx.async_done` with each future."
)
MSG_UNKNOWN_RUN = (
    "An asynchronous callback is done that was not started, or was done before. A future is done once, in the program "
    "that started it. Call `fx.async_done` once per future, and keep the results."
)
MSG_DEVICE_FAILED = (
    "An asynchronous operation has no result. Its values come from a device whose program has failed. Correct the "
    "error that this program raises."
)

_REMEMBERED = 4096
"""The begun functions that are remembered for each program and device, to tell a second done from one ahead of its
start."""

_LOOK = 0.05
"""The interval in seconds at which a done without its start polls the program for a failure."""


class _Key(NamedTuple):
    thread: int
    epoch: int
    device: int
    number: int
    lane: int  # of the start's lanes, in C order


class HostRuns(Beside):
    """The functions that have begun and whose done has not come. Drain threads add and take, under `_lock`."""

    def __init__(self) -> None:
        self._workers = Workers("effects-async")
        self._runs: dict[_Key, RunningHostCall] = {}
        self._unended: dict[int, RunningHostCall] = {}  # by identity: runs whose function has not returned
        self._awaited: dict[int, RunningHostCall] = {}  # by drain thread's identity: the run for which it waits
        # By program and device: the numbers of the newest started functions, ended ones included.
        self._begun: dict[tuple[int, ...], collections.deque[int]] = {}
        self._lock = threading.Lock()
        self._came = threading.Condition(self._lock)

    def start(self, function: HostFunction, records: Iterable[Record]) -> None:
        """Starts the function, with the record of each lane."""
        # All lanes are added in one step: see the README.
        runs: dict[_Key, RunningHostCall] = {}
        try:
            for record in records:
                args, number = record.args
                site = site_of(record)
                lane = np.ravel_multi_index(record.lane, site.lanes) if record.lane else 0
                key = _key(record, int(number), int(lane))
                runs[key] = RunningHostCall(function, site.content.title, site.where, args, key.thread)
        finally:
            with self._came:
                self._runs |= runs
                self._unended |= {id(run): run for run in runs.values()}
                if runs:
                    name = f"{site.content.title} at {site.where}"
                    native.note(Kind.OPERATION, _noted(key), device=number_of_device(record), text=name)
                    self._begun.setdefault(key[:3], collections.deque(maxlen=_REMEMBERED)).append(key.number)
                self._came.notify_all()
            for run in runs.values():
                try:
                    self._workers.run(lambda run=run: self._run(run))
                except RuntimeError:  # of `Thread.start`
                    run.error = RuntimeError(MSG_NO_THREAD)
                    self._run(run)

    def _run(self, run: RunningHostCall) -> None:
        with runtime.streams.nested_here() as stream:
            stream.hold(run.caller)
            run.begin(stream)
            run.run()
            del self._unended[id(run)]

    def unended(self) -> list[RunningHostCall]:
        """The calls whose function has not returned."""
        return [run for run in self._unended.copy().values() if not run.ended]

    def wait(self, timeout: float | None) -> bool:
        """Returns True if all functions return in time. Those of failed programs do not count: they may never
        return."""
        deadline = None if timeout is None else monotonic() + timeout
        for run in self.unended():
            left = None if deadline is None else max(0.0, deadline - monotonic())
            given_up = run.stream is not None and run.stream.thread in runtime.failures.abandoned
            if not given_up and not run.wait_for_end(left):
                return False
        return True

    def awaited_by(self, drain_thread: int) -> RunningHostCall | None:
        """The call that this drain thread waits for, if any."""
        return self._awaited.get(drain_thread)

    def _take(self, key: _Key, device: int) -> RunningHostCall:
        """`device`: its number in native code."""
        # The start comes from one device's thread; the done may come earlier, from a faster device's.
        while True:
            with self._came:
                if (run := self._runs.pop(key, None)) is not None:
                    return run
                begun = self._begun.get(key[:3], ())
            if (started := native.started_operations(key.thread, key.epoch, device)) is None:
                raise RuntimeError(MSG_DEVICE_FAILED)
            if not 0 < key.number <= started or key.number in begun:
                raise RuntimeError(MSG_UNKNOWN_RUN)
            native.set_offer_urgent()  # another drain thread takes the start
            with self._came:
                self._came.wait_for(lambda: key in self._runs, _LOOK)

    def done(self, ticket: Any, *, record: Record) -> Any:
        key = _key(record, int(ticket[0]) << 12 | int(ticket[1]), int(ticket[2]))
        run = self._take(key, number_of_device(record))
        native.set_offer_urgent()  # the function may wait for the drain
        stream = run.wait_for_stream()
        # In a run file the records of the function's own calls have this place, earlier ones included.
        native.note(Kind.BEGUN, record.token, site_of(record).id, number_of_device(record), f"{stream.thread} held")
        self._awaited[threading.get_ident()] = run
        try:
            stream.let_go()
            run.wait_for_end()
            runtime.drain.wait_for_nested(stream, (thread_of(record.token[STREAM]), record.token[EPOCH]))
        finally:
            del self._awaited[threading.get_ident()]
        native.note(Kind.OPERATION_DONE, _noted(key), device=number_of_device(record))
        call = site_of(record).content
        assert isinstance(call, HostCall)
        try:
            if run.error is not None:
                raise run.error
            call = dataclasses.replace(call, function=HostFunction(None, DONE_FUNCTION, run.name, True))
            taken = take_results(call, run.result, call.results or ())
            return jax.tree.unflatten(jax.tree.structure(run.result), taken)  # elsewhere `tree` is only a text
        except BaseException as error:
            raise HostRunFailed(run.name, run.where) from error

    def are_exchanging(self) -> bool:
        return native.any_operations()

    def fail(self, program: ProgramKey) -> None:
        """Fails the operations of a program that has failed on one of its devices: the other devices get nothing from
        it."""
        if native.any_operations():
            native.fail_operations(*program, MSG_DEVICE_FAILED)

    def end(self, finished: list[tuple[int, int, int]]) -> None:
        """Drops what ended programs have not done. `finished` has their epochs as (thread, first, count)."""
        if native.any_operations():
            for thread, first, count in finished:
                for epoch in range(first, first + count) if thread != PLAIN_THREAD else ():
                    self._end((thread, epoch & 0xFFFFFFFF))

    def _end(self, program: ProgramKey) -> None:
        not_done = native.end_operations(*program)
        with self._lock:
            left = [self._runs.pop(key) for key in [*self._runs] if key[:2] == program]
            for begun in [key for key in self._begun if key[:2] == program]:
                del self._begun[begun]
        has_failed = not_done is None or program in runtime.failures.unended
        for run in left:
            stream = run.wait_for_stream()
            if has_failed:  # its effects would have come after the failure
                runtime.failures.abandon(stream.thread)
                self._workers.run(lambda run=run: self._forget(run))
            stream.let_go()
        if not has_failed and (count := not_done + len(left)):
            call = runtime.streams[program[0]].calls.get(program[1])
            message = _never_done(count, "a program" if call is None else f"`{call[0].name}`", left)
            runtime.failures.add(program, errors.EffectError(message), stops=False)

    def end_plain(self) -> str:
        with self._lock:
            left = [self._runs.pop(key) for key in [*self._runs] if key.thread == PLAIN_THREAD]
        for run in left:
            run.wait_for_stream().let_go()
        return _never_done(len(left), "programs outside `fx.jit`", left) if left else ""

    def _forget(self, run: RunningHostCall) -> None:
        """Waits for an abandoned function and for its programs."""
        run.wait_for_end()
        thread = run.wait_for_stream().thread
        runtime.drain.wait_for_nested(run.wait_for_stream(), None)
        runtime.failures.forget_abandoned(thread)


def _key(record: Record, number: int, lane: int) -> _Key:
    thread = thread_of(record.token[STREAM])
    # All programs that JAX dispatches number their operations as one.
    epoch = 0 if thread == PLAIN_THREAD else record.token[EPOCH]
    return _Key(thread, epoch, record.device, number, lane)


def _noted(key: _Key) -> tuple[int, ...]:
    """The numbers by which a run file names an operation."""
    return stream_of(key.thread), key.epoch, 0, key.number


def _never_done(count: int, program: str, runs: Sequence[RunningHostCall]) -> str:
    """The message for `count` operations of a program that were never done, of which `runs` run functions."""
    where = f", the first at {runs[0].where}" if runs else ""
    operations = errors.counted(count, "asynchronous operation")
    return MSG_NEVER_DONE.format(count=operations, function=program, were=errors.were(count), where=where)


class RunningHostCall:
    """One call of a function. The thread that runs it writes, and the drain thread of its done waits.

    `stream` is the stream of the programs that the function calls. `thread` is the identity of the thread that runs the
    function, None before it has begun and once it has `ended`. `caller` is the number of the thread that called the
    program.
    """

    def __init__(self, function: HostFunction, name: str, where: Where, args: Any, caller: int) -> None:
        self._function, self._args, self._context = function, args, contextvars.copy_context()
        self.name: str = name
        self.where: Where = where
        self.caller: int = caller
        self.stream: Stream | None = None
        self.thread: int | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.ended: bool = False
        self._changed = threading.Condition()

    def __str__(self) -> str:
        return f"the asynchronous callback `{self.name}` at {self.where}, which runs"

    def begin(self, stream: Stream) -> None:
        with self._changed:
            self.stream, self.thread = stream, threading.get_ident()
            self._changed.notify_all()

    def run(self) -> None:
        """Calls the function, unless there is an error already."""
        try:
            assert self._function.fn is not None
            if self.error is None:
                self.result = self._context.run(self._function.fn, *self._args)
        except BaseException as error:
            self.error = error
        with self._changed:
            self.ended, self.thread = True, None
            self._changed.notify_all()

    def wait_for_stream(self) -> Stream:
        with self._changed:
            self._changed.wait_for(lambda: self.stream is not None)
        assert self.stream is not None
        return self.stream

    def wait_for_end(self, timeout: float | None = None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.ended, timeout)


host_runs: HostRuns = HostRuns()
register_callback(DONE_FUNCTION)(host_runs.done)
runtime.drain.run_beside(host_runs)
