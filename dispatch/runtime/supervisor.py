"""Finding callbacks that deadlock: they wait for what cannot come before their own program ends.

Devices run one program over several of them at a time. If such a program waits for a callback, and the callback for a
computation over several devices, neither goes on. And XLA computes on so many threads, on CPUs: if programs that wait
for callbacks have them all, what the callbacks wait for is not begun. XLA does not tell, so we look where the threads
stand that run the functions.
"""

from __future__ import annotations

import dis
import functools
import gc
import inspect
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from time import monotonic
from types import CodeType, FrameType
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from effects import _errors as errors
from effects._api.log import LOGGER
from effects._jax import PjitFunction, array_of, devices_of, is_compiling
from effects._model.device import device_place
from effects._model.site import Site, Where
from effects._model.wire import PHASE, in_region
from effects.dispatch.runtime.beside import Beside, FunctionBeside
from effects.dispatch.runtime.failures import Failures, ProgramKey, log_failure
from effects.dispatch.runtime.observers import Observers
from effects.dispatch.runtime.output_tokens import FailedOnSome, failed_on_some_devices
from effects.dispatch.runtime.replay import answer_with
from effects.dispatch.runtime.streams import Stream, Streams
from effects.lowering.native_module import native

# Programs of `fx.jit` and those that JAX dispatches by itself, where they wait for each other's places in the order.
#
# A record of a program that JAX dispatched comes after the programs of `fx.jit` that were dispatched before it was
# published, since it is not known when its own was. If one of these waits for that very program, neither goes on: say
# it takes what another thread has asked for, and that waits for a callback. Which waits for which cannot be known. So
# when nothing has been computed for a while, such records pass.

MSG_PASSED = (
    "Effects of a program of `jax.jit` come ahead of programs of `fx.jit` that were called before: nothing had been "
    "computed for {seconds:g} seconds, and they waited for each other. The order of `jax.jit` beside `fx.jit` is that "
    "in which programs run, and a program that waits for a callback of another thread's runs late. Write `fx.jit` in "
    "both places, or wait for the one program before you call the other."
)

_PATIENCE_AT_STALL = 8.0
"""Seconds for which nothing must have been computed. XLA aborts the process after 40."""

_IDLE_AT_STALL = 0.1
"""The share of a processor's time below which nothing is computed."""


class Stall:
    """What was seen of records that are held up. The leader of the drain looks now and then."""

    def __init__(self, computed: Callable[[], float]) -> None:
        self._computed = computed
        self._since: tuple[float, float] | None = None  # when it was first seen, and what had been computed by then
        self._told = False

    def look(self, running: Mapping[int, Any]) -> None:
        """Lets records pass that are held up for good. `running`: functions of the user's."""
        if running or not native.is_untracked_held_up() or jax.default_backend() != "cpu":
            self._since = None
            return
        now, computed = monotonic(), self._computed()
        since, before = self._since or (now, computed)
        if computed - before > _IDLE_AT_STALL * (now - since) + 0.01:
            since, before = now, computed
        self._since = since, before
        if now - since >= _PATIENCE_AT_STALL and jax.process_count() == 1:
            self._since = None
            native.let_untracked_pass()
            LOGGER.log(logging.DEBUG if self._told else logging.WARNING, MSG_PASSED.format(seconds=_PATIENCE_AT_STALL))
            self._told = True


MSG_STUCK = (
    "The callback `{name}` at {where} waits for a computation over several devices, and its own program keeps these "
    "waiting for it. Devices run one program over several of them at a time, so neither could go on: the program was "
    "ended. Compute in the callback with NumPy or on one device, or ask for no results."
)
MSG_STARVED = (
    "The callback `{name}` at {where} waits for a computation that does not begin, and nothing is computed meanwhile. "
    "Programs that wait for callbacks, and its own is one, keep the devices, or all the threads on which XLA computes, "
    "as many as there are processors or CPU devices: the program was ended. Compute in the callback with NumPy, ask "
    "for no results, or set the environment variable `PJRT_NPROC` to a number of threads above that of devices."
)
MSG_WAITS_FOR_GPU = (
    "The callback `{name}` at {where} has been waiting for {seconds:.0f} seconds for what a GPU computes, and its own "
    "program runs on several. A GPU that has come to a collective of that program waits there for the one whose "
    "callback this is, and what the callback computes on it comes behind that: a deadlock, unless the computation is a "
    "long one. Compute in the callback with NumPy or on another device. Or call it outside of any `cond` and `while` "
    "of that `jax.shard_map`, and have no `while` with effects there: then devices go on together from it."
)
MSG_WAITS_FOR_LAUNCH = (
    "The callback `{name}` at {where} has been waiting for {seconds:.0f} seconds to compile or launch a program for a "
    "GPU. While its own program waits for it there, XLA cannot try out kernels on that GPU, as it does when it "
    "compiles a sum, for one. And when a compilation in any thread waits for that, XLA launches nothing on it: a "
    "deadlock, unless the compiler or the GPU is busy. Compile ahead of time what callbacks run, and what other "
    "threads run meanwhile. Or set `XLA_FLAGS=--xla_gpu_autotune_level=0` in the environment: then XLA tries out no "
    "kernels, and programs may be slower."
)

_LOOK = 0.2
"""Seconds between two looks, and for which a function must have been running before anybody looks."""

_PATIENCE = 1.0
"""Seconds for which a function must have stood at what cannot come."""

_IDLE_PATIENCE = 8.0
"""The same where it might come, but nothing is computed. XLA aborts the process after 40."""

_GPU_PATIENCE = 10.0
"""Seconds for which a function must have stood where it waits for a GPU, before that is logged."""

_COMPILER_PATIENCE = 60.0
"""The same where it waits for a compiler, and something is computed meanwhile: that itself, perhaps."""

_ARRAY_PATIENCE = 60.0
"""The same for one that does not stand still, or we do not know where, and has what cannot come in a variable."""

_HELD_PATIENCE = 0.02
"""Seconds for which a function must have stood where it waits, before it is taken to wait for a program of JAX's."""

_HELD_LONG = 1.0
"""Seconds after which one that runs is taken to do so."""

_IDLE = 0.1
"""The share of a processor's time below which nothing is computed."""

_COLLECTS_UNDER_LOCK = sys.version_info < (3, 12)
"""Whether objects that are made may have Python collect garbage at once, whatever locks are held."""

_ROOT = Path(__file__).parents[2]
_OURS = tuple(str(_ROOT / package) + os.sep for package in ("dispatch", "lowering"))
_WAITING = (*_OURS, *(str(Path(module).parent) + os.sep for module in (jax.__file__, np.__file__)))
"""Where code lies that may wait for arrays."""


class Running(NamedTuple):
    """A function of the user's that runs. A plain tuple where it is made, since that is at every callback."""

    site: Site
    key: ProgramKey
    token: tuple[int, ...]
    reply: int  # under which its program waits for it; 0 if it does not
    several: bool  # whether that program waits on several devices
    since: float  # by `time.monotonic`
    own: Stream | None  # of the thread that runs it: what it dispatches
    run: FunctionBeside | None = None  # of an update or a done: the asynchronous callback for which it waits

    @property
    def name(self) -> str:
        return self.site.content.title if self.run is None else self.run.name

    @property
    def where(self) -> Where:
        return self.site.where if self.run is None else self.run.where

    @property
    def stack(self) -> int | None:
        """The identity of the thread that shows where the function stands, if that is not the drain's own."""
        return None if self.run is None else self.run.thread

    def __str__(self) -> str:
        return f"the callback `{self.name}` at {self.where}, which runs"


class _Wait(NamedTuple):
    """What a thread was seen to wait for, and since when."""

    where: tuple[int, ...]  # the same while it does not move
    of: Literal["value", "launch", "compiler"]
    patience: float  # if devices are kept from what it waits for; infinite if they may not be
    on_cpu: bool  # whether nothing but this process's processors computes it
    since: float
    idle_since: float  # since when nothing has been computed
    cpu: float  # the time that had been computed by then

    def follow(self, first: _Wait | None) -> _Wait:
        """The wait as of when it began: `first` is what was seen before."""
        if first is None or (first.where, first.of, first.patience) != (self.where, self.of, self.patience):
            return self
        if self.cpu - first.cpu > _IDLE * (self.since - first.idle_since + _LOOK):
            return self._replace(since=first.since)
        return first


class Watch:
    """What was seen of functions that run.

    Args:
        observers: Know when something was last written.
    """

    def __init__(self, observers: Observers) -> None:
        self._observers = observers
        self.stall: Stall = Stall(self.computed)
        self._waits: dict[int, _Wait] = {}  # by the identity of their threads
        self._held: dict[int, _Wait] = {}  # the same, while something asked is held up
        self._held_since: float | None = None
        self._next = 0.0
        self._told: set[int] = set()  # the sites of functions that were found waiting for a GPU
        self._starved: set[int] = set()  # threads whose functions' programs were ended, since nothing was computed
        self._clocks: list[int] = []  # of the drain's threads that have begun: what each has computed

    def count_out_this_thread(self) -> None:
        """What the calling thread computes, one of the drain's, is no sign that anything goes on: to wait takes some
        time too, and where many wait for each other, more than a little. What a function computes shows by its stack.
        """
        if hasattr(time, "pthread_getcpuclockid"):
            self._clocks.append(time.pthread_getcpuclockid(threading.get_ident()))

    def computed(self) -> float:
        """The seconds that this process has computed, but for the drain's threads."""
        computed = time.process_time()
        for clock in self._clocks[:]:
            try:
                computed -= time.clock_gettime(clock)
            except OSError:  # the thread has ended
                self._clocks.remove(clock)
        return computed

    def find_stuck(self, running: Mapping[int, Running]) -> Iterator[tuple[int, Running, str]]:
        """Functions whose programs must end for anything to go on: their threads, and what to say.

        Args:
            running: The functions that run, by the identity of their threads.
        """
        now = monotonic()
        if now < self._next or not any(function.reply for function in running.values()):
            return
        self._next = now + _LOOK
        cpu = self.computed()
        seen = {
            thread: wait
            for thread, function in running.items()
            if now - function.since >= _LOOK
            and (wait := _wait(function.stack or thread, function, now, cpu)) is not None
        }
        self._waits = {thread: wait.follow(self._waits.get(thread)) for thread, wait in seen.items()}
        below = {thread: list(_below(thread, running)) for thread in running}
        # Where one program was ended already, those that its function has called meanwhile are no better off.
        self._starved &= running.keys()
        patience = _PATIENCE if self._starved else _IDLE_PATIENCE
        # What computes nothing may be waiting for another process, or for a function that does not wait.
        idle = all(thread in self._waits or len(below[thread]) > 1 for thread in running) and all(
            wait.on_cpu and now - wait.idle_since >= patience for wait in self._waits.values()
        )
        idle = idle and jax.process_count() == 1
        for thread, function in running.items():
            if not function.reply:
                continue
            waits = [self._waits[each] for each in below[thread] if each in self._waits]
            if function.several and any(now - wait.since >= wait.patience for wait in waits):
                yield thread, function, MSG_STUCK
            elif idle:
                self._starved.add(thread)
                yield thread, function, MSG_STARVED

    def find_waiting_for_gpus(self, running: Mapping[int, Running]) -> Iterator[str]:
        """What to say of functions that have waited for long for a GPU, after `find_stuck`. Of each line once: whether
        they wait for what cannot come, no one can tell, and to end their programs would not let the GPUs go on.

        Args:
            running: The functions that run, by the identity of their threads.
        """
        now = monotonic()
        for thread, wait in self._waits.items():
            function = running.get(thread)
            if function is None or wait.on_cpu or not function.reply:
                continue
            if wait.of == "value" and not function.several:  # what has been launched comes there
                continue
            seconds = now - wait.since
            is_busy = wait.of == "compiler" and now - wait.idle_since < _GPU_PATIENCE
            patience = _COMPILER_PATIENCE if is_busy else _GPU_PATIENCE
            if seconds < patience or function.site.id in self._told or jax.default_backend() == "cpu":
                continue
            self._told.add(function.site.id)
            message = MSG_WAITS_FOR_GPU if function.several and wait.of != "compiler" else MSG_WAITS_FOR_LAUNCH
            yield message.format(name=function.name, where=function.where, seconds=seconds)

    def find_waiting(self, running: Mapping[int, Running], suspended: Iterable[int], held_up: bool) -> set[int]:
        """Whose functions seem to wait for what a callback of a program gives that JAX has dispatched: the numbers of
        the threads whose streams are suspended for them.

        Args:
            running: The functions that run, by the identity of their threads.
            suspended: The numbers of all threads whose streams are suspended.
            held_up: Whether there is such a callback, which waits for functions that run.
        """
        if not held_up:
            self._held, self._held_since = {}, None
            return set()
        now = monotonic()
        seen = {thread: _wait(function.stack or thread, function, now, 0.0) for thread, function in running.items()}
        self._held = {thread: wait.follow(self._held.get(thread)) for thread, wait in seen.items() if wait is not None}
        self._held_since = self._held_since or now
        # Each function has its own time, and so has each write: many of them may take long, and wait for nothing.
        begun = {thread: max(self._held_since, function.since) for thread, function in running.items()}
        found = {running[thread].key[0] for thread, since in begun.items() if now - since >= _HELD_LONG}
        if now - max(self._held_since, self._observers.shown_at) >= _HELD_LONG:
            found |= {*suspended} - {function.key[0] for function in running.values()}
        stand = (thread for thread, wait in self._held.items() if now - wait.since >= _HELD_PATIENCE)
        return found | {running[thread].key[0] for thread in stand}


def _below(thread: int, running: Mapping[int, Running]) -> Iterator[int]:
    """A thread that runs a function, and those that run functions for programs which that function has called."""
    yield thread
    own = running[thread].own
    for other, function in running.items():
        if own is not None and other != thread and function.key[0] == own.thread:
            yield from _below(other, running)


def _wait(thread: int, function: Running, now: float, cpu: float) -> _Wait | None:
    """What the function waits for, as far as it can be seen."""
    innermost = frame = frames().get(thread)
    if innermost is None:
        return None

    def wait(awaited: list[Any], kept: bool, *where: int, compiles: bool = False) -> _Wait:
        platforms = {device.platform for array in awaited for device in array.sharding.device_set}
        on_cpu = (platforms or {jax.default_backend()}) == {"cpu"}
        patience = _PATIENCE if kept else float("inf")
        of: Any = "compiler" if compiles else "value" if awaited else "launch"
        return _Wait(where or (id(innermost), innermost.f_lasti), of, patience, on_cpu, now, now, cpu)

    if is_compiling(innermost) and jax.default_backend() != "cpu":  # XLA tries out what it compiles for a GPU there
        return wait([], False, compiles=True)
    # Python code that waits has in a variable what it waits for.
    while frame is not None and frame.f_code.co_filename.startswith(_WAITING):
        if awaited := _unready(_values(frame)):
            return wait(awaited, any(map(_is_over_several, awaited)))
        # Or it dispatches, which may wait for devices or threads too.
        if devices := devices_of(frame.f_locals.get("self")):
            return wait([], len(devices) > 1)
        frame = frame.f_back
    # Native code shows nothing but the line that called it.
    arrays = []
    while frame is not None and not frame.f_code.co_filename.startswith(_OURS):
        arrays += filter(_is_over_several, _unready(_values(frame)))
        frame = frame.f_back
    names = _names(innermost.f_code, innermost.f_lasti, innermost.f_lineno)
    called = list(_values_of(names, innermost))
    dispatches = any(each is jax.jit or isinstance(each, PjitFunction) for each in called)
    if arrays and dispatches:  # only so many programs are queued
        return wait(arrays, True)
    if "block_until_ready" in names and (awaited := _unready(jax.live_arrays())):
        return wait(awaited, all(map(_is_over_several, awaited)))
    if any(map(_is_of_numpy, called)):  # it reads arrays of one device where they lie
        awaited = [array for array in _unready(jax.live_arrays()) if not _is_over_several(array)]
        if awaited:
            return wait(awaited, False)
    if dispatches:
        return wait([], False)
    # What the function has called has effects, and it ends after these.
    own = function.own
    if own is not None and (awaited := _unready(output_token for _, output_token in list(own.running.values()))):
        return wait(awaited, any(map(_is_over_several, awaited)), own.thread, id(awaited[0]))
    return _Wait((id(arrays[0]),), "value", _ARRAY_PATIENCE, False, now, now, cpu) if arrays else None


def frames() -> dict[int, FrameType]:
    """Where each thread stands. On Python 3.11 that is a deadlock if Python collects garbage meanwhile: a thread's own
    variables, when they are freed, wait for the lock that is held (CPython's issue 106883)."""
    if not _COLLECTS_UNDER_LOCK or not gc.isenabled():
        return sys._current_frames()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        gc.enable()


def _values(frame: FrameType) -> Iterator[Any]:
    """What a frame has in variables, itself or in a list or tuple."""
    for value in list(frame.f_locals.values()):
        yield from value if isinstance(value, (list, tuple)) else (value,)


def _values_of(names: Iterable[str], frame: FrameType) -> Iterator[Any]:
    """What names stand for in a frame: variables, and attributes of these."""
    variables = [frame.f_locals.get(name, frame.f_globals.get(name)) for name in names]
    yield from variables
    for value in variables:
        if value is not None:
            yield from (inspect.getattr_static(value, name, None) for name in names)


def _unready(values: Iterable[Any]) -> list[jax.Array]:
    """Those of the values that are arrays which are not ready."""
    return [array for array in map(array_of, values) if array is not None and not _is_ready(array)]


def _is_ready(array: Any) -> bool:
    try:
        return array.is_ready()
    except RuntimeError:  # it was deleted
        return True


def _is_over_several(array: jax.Array) -> bool:
    return len(array.sharding.device_set) > 1


def _is_of_numpy(value: Any) -> bool:
    return value is np or (callable(value) and str(getattr(value, "__module__", "")).partition(".")[0] == "numpy")


@functools.lru_cache(maxsize=16)
def _names(code: CodeType, at: int, line: int) -> frozenset[str]:
    """What a line of code has named by where its frame stands."""
    return frozenset(
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.offset <= at
        and isinstance(instruction.argval, str)
        and instruction.positions is not None
        and instruction.positions.lineno == line
    )


# What is done about programs that cannot end by themselves.


def rescue(
    watch: Watch,
    functions: Mapping[int, Running],
    running: dict[int, Any],
    suspended: Collection[int],
    failures: Failures,
    beside: Beside,
) -> None:
    """Looks whether functions wait for what cannot come.

    Args:
        watch: What was seen of them before.
        functions: Those that run, by the identity of their threads.
        running: The same, as `Drain.running`.
        suspended: The numbers of the threads whose streams are suspended for functions.
        failures: What has failed so far.
        beside: Functions that run beside their programs.
    """
    _free_stuck(running, watch.find_stuck(functions), failures, beside)
    for message in watch.find_waiting_for_gpus(functions):
        LOGGER.warning(message)
    _let_asked_pass(watch, functions, suspended)
    watch.stall.look(functions)


def _free_stuck(
    running: dict[int, Any], stuck: Iterable[tuple[int, Running, str]], failures: Failures, beside: Beside
) -> None:
    """Fails programs that wait for a function which waits for what cannot come before they end. `stuck`: those that the
    watchdog has found, and why."""
    for thread, function, message in stuck:
        now = running.get(thread)
        if now is None or now[:4] != (function.site, function.key, function.token, function.reply):
            continue  # it has just ended
        failure = errors.EffectError(message.format(name=function.name, where=function.where))
        running[thread] = (*now[:3], 0, *now[4:])
        failures.end_program(function.key, failure, function.token)
        beside.fail(function.key)
        answer_with(function.reply, failure)
        if in_region(function.token[PHASE]):  # the other devices' functions do not begin before this one ends
            native.end_program(*function.key)


def _let_asked_pass(watch: Watch, functions: Mapping[int, Running], suspended: Collection[int]) -> None:
    """Lets the callbacks of programs that JAX has dispatched pass functions that wait for these programs."""
    for thread in watch.find_waiting(functions, suspended, bool(suspended) and native.is_asked_held_up()):
        native.let_asked_pass(thread)


# Programs that have failed on some of their devices and are not over on the others.

MSG_NOT_OVER = (
    "{failure} That was on {failed}, and the program has not ended on {others} since. A device that waits in a "
    "collective for one that has failed does not go on, and on CPUs XLA ends the process after a while. Fail on all "
    "devices, or return a value that says so."
)

_PATIENCE_OF_DEVICES = 5.0
"""Seconds for which a program must have failed on some devices, and not be over on others, before that is logged."""


class OtherDevices:
    """What is known of these programs. The leader of the drain looks for them now and then."""

    def __init__(self, streams: Streams, failures: Failures, fail: Callable[[ProgramKey], None]) -> None:
        self._streams = streams
        self._failures = failures
        self._fail = fail
        self._since: dict[ProgramKey, float] = {}  # when each was first seen; infinite once it is logged

    def look(self) -> None:
        """The others wait for what the devices that have failed would have done. In the order of effects these are left
        out, and exchanges fail, also those that were started since. If a callback has ended the program that is enough:
        the others' callbacks have their places, and are answered and counted there."""
        before, self._since = self._since, {}
        for failed in failed_on_some_devices(self._streams, native.any_operations()):
            program = failed.program
            for device in failed.devices:
                native.lose(*program, device)
            self._fail(program)
            if not self._failures.has_ended(program):
                native.end_program(*program)
            now = time.monotonic()
            since = before.get(program, now)
            if now - since >= _PATIENCE_OF_DEVICES:
                since = math.inf
                self._log(failed)
            self._since[program] = since

    def _log(self, failed: FailedOnSome) -> None:
        """XLA may end the process, so that no caller hears of the failure."""
        failure = self._failures.ending_of(failed.program) or failed.failure
        shown = failure if isinstance(failure, errors.EffectError) else errors.shown(failure)
        logged = errors.EffectError(
            MSG_NOT_OVER.format(failure=shown, failed=_named(failed.devices), others=_named(failed.others))
        )
        if isinstance(failure, errors.EffectError):
            vars(logged).update(vars(failure))
        logged.__cause__ = failure.__cause__
        log_failure(logged)


def _named(devices: list[int]) -> str:
    places = ", ".join(map(str, sorted(map(device_place, devices))))
    return f"device {places}" if len(devices) == 1 else f"devices {places}"
