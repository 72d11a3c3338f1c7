"""The supervisor: reports what waits when nothing moves, and breaks cycles that it can name.

Its one clock runs while something waits and nothing has been published, replayed, answered or computed. After
`stall_seconds` it logs what waits. After `stall_fail_seconds` the youngest program that waits for a callback is ended,
if every callback that runs waits for what JAX computes. Such a deadlock comes about on CPUs: devices run one program
over several of them at a time, and XLA's pool has a fixed number of threads, which may all be in programs that wait for
callbacks.

`let_others_go_on` is here too: it lets devices continue after one of them has failed.
"""

from __future__ import annotations

import dis
import gc
import inspect
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from effects import _errors as errors
from effects._config import config
from effects._jax import PjitFunction
from effects._model.device import device_place
from effects._model.filter import LOGGER
from effects._model.site import Site
from effects._model.where import Where
from effects._model.wire import PHASE, ProgramTraits, in_region
from effects.dispatch.runtime.background import Background
from effects.dispatch.runtime.beside import Beside, FunctionBeside
from effects.dispatch.runtime.failures import Failures, ProgramKey
from effects.dispatch.runtime.output_tokens import failed_on_some_devices, unready_devices
from effects.dispatch.runtime.replay import answer_with
from effects.dispatch.runtime.streams import Stream, Streams, traits_of
from effects.lowering.native_module import native

if TYPE_CHECKING:
    from effects.dispatch.runtime.drain import Drain

STALLED = "Nothing has moved for {seconds:.3g} s, while this waits:\n{waits}"
WAITS = "This waits:\n{waits}"
DEADLOCK = (
    "A deadlock: the callback `{name}` at {where} waits for what JAX computes, and its program waits for the callback. "
    "Such a program keeps its devices, and on CPUs the threads on which XLA computes, so that nothing has moved for "
    "{seconds:.3g} s and this call of the program was ended. Compute with NumPy, on another device or ahead of time, "
    "ask for no results, or set the environment variable `PJRT_NPROC` to a number of threads above that of devices. "
    "This waited:\n{waits}"
)

_BUSY = 0.1
"""The share of a processor's time from which on something is computed."""

_COLLECTS_UNDER_LOCK = sys.version_info < (3, 12)
"""True if the creation of an object may collect garbage at once, with any locks held: before Python 3.12."""

_OURS = str(Path(__file__).parents[2]) + os.sep  # the package, which has the other folders by links
_JAX = str(Path(jax.__file__).parent) + os.sep

_READERS = {"asarray", "array", "block_until_ready"}
"""The names of functions that read an array of JAX's without Python code of JAX's."""


other_waits: list[Callable[[Iterable[FrameType]], Iterable[str]]] = []
"""Functions of extensions that return lines for the list of what waits, given the frames of all threads."""


class Running(NamedTuple):
    """A function of the user's that runs. A plain tuple where it is made, since that is at every callback."""

    site: Site
    key: ProgramKey
    token: tuple[int, ...]
    reply: int  # of the reply that its program awaits; 0 if it does not
    since: float  # by `time.monotonic`
    own: Stream | None  # of the thread that runs it: the programs that it dispatches
    run: FunctionBeside | None = None  # of an update or a done: the awaited asynchronous callback

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
    """Something that waits."""

    what: str
    says: str = ""
    alike: tuple[Any, ...] = ()  # waits with equal keys are counted as one; if empty, the key is `what` and `says`
    stack: tuple[str, ...] = ()


def _counted(waits: Iterable[_Wait]) -> Iterator[str]:
    """The lines of what waits: of those that say the same, the first one's and how many others there are."""
    groups: dict[tuple[Any, ...], list[_Wait]] = {}
    for wait in waits:
        groups.setdefault((wait.alike or wait[:2], wait.stack), []).append(wait)
    for first, *others in groups.values():
        more = f" (and {len(others)} more like it)" if others else ""
        yield f"- {first.what}{more}{first.says}"
        yield from first.stack


class Supervisor:
    """The clock, and the thread that has it. Drain threads and the user's are only looked at."""

    def __init__(self, streams: Streams, failures: Failures, drain: Drain) -> None:
        self._streams = streams
        self._failures = failures
        self._drain = drain
        self._wake = threading.Event()
        self._has_stopped = False
        self._seen: Any = None  # the state that changes with any progress
        self._since = self._looked = 0.0  # the time of the last progress, and of the last look
        self._computed: dict[int, float] = {}  # CPU times at that look, of the process (0) and the drain's threads
        self._clocks: dict[int, int] = {}  # by thread identity
        self._is_said = False
        self._is_on_cpu = self._is_alone = False
        config.listen(lambda _: self._wake.set())

    def start(self) -> None:
        """Called once the drain runs."""
        # Called here only: at the end of the process JAX has removed its backends, and would create one.
        self._is_on_cpu, self._is_alone = jax.default_backend() == "cpu", jax.process_count() == 1
        threading.Thread(target=self._run, name="effects-supervisor", daemon=True).start()

    def stop(self) -> None:
        self._has_stopped = True
        self._wake.set()

    def _run(self) -> None:
        while True:
            pause = min(config.stall_seconds / 4, 2.5)
            self._wake.wait(pause)
            self._wake.clear()
            if self._has_stopped:
                return
            try:
                self._look(pause)
            except Exception as error:  # the user's objects may raise when inspected
                _log(str(error))

    def add_clock(self) -> None:
        """Adds the clock of the calling thread, which is one of the drain's."""
        if hasattr(time, "pthread_getcpuclockid"):
            self._clocks[threading.get_ident()] = time.pthread_getcpuclockid(threading.get_ident())

    def _compute_since(self) -> float:
        """The seconds for which the process has computed since the last look. To wait takes some time too, and with
        many threads more than a little, so that the time of drain threads that wait does not count."""
        before, self._computed = self._computed, {0: time.process_time()}
        for thread, clock in [*self._clocks.items()]:
            try:
                self._computed[thread] = time.clock_gettime(clock)
            except OSError:  # the thread has ended
                self._clocks.pop(thread, None)
        stacks = frames()
        waiting = [each for each in self._computed if each in stacks and _is_ours(stacks[each])]
        spent = {thread: seconds - before.get(thread, 0.0) for thread, seconds in self._computed.items()}
        return spent[0] - sum(spent[thread] for thread in waiting)

    def _look(self, pause: float) -> None:
        now, seen = monotonic(), self._what_moves()
        if seen is None or self._drain.asks_person:
            self._seen = None
            return
        is_busy = self._compute_since() > _BUSY * (now - self._looked)
        was_held = now - self._looked > 2 * pause + 1  # the process or this thread was stopped
        self._looked = now
        if seen != self._seen or is_busy or was_held:
            self._seen, self._since, self._is_said = seen, now, False
            return
        seconds = now - self._since
        if seconds >= config.stall_seconds and not self._is_said:
            self._is_said = True
            _log(STALLED.format(seconds=seconds, waits=self._waits()))
        if seconds >= config.stall_fail_seconds and (youngest := self._find_circle()) is not None:
            self._end_program_of(*youngest, seconds)

    def _what_moves(self) -> Any:
        """A value that changes when something is published, replayed, answered or over. None if nothing waits."""
        running = self._drain.running.copy()
        plain = native.plain_has_ended(native.plain_opened())
        still = [newest[0] for stream in self._streams.all() if (newest := stream.running_newest()) is not None]
        if plain and not running and not still and not any(stream.calls for stream in self._streams.all()):
            return None
        if not self._is_on_cpu and not any(function[_REPLY] for function in running.values()):
            return None  # a GPU's work takes no CPU time
        # Not the functions themselves, which must be freed with their programs.
        since = {thread: function[_SINCE] for thread, function in running.items()}
        return since, still, native.stats(), [*map(id, self._drain.beside.unended())]

    # The text: the waiting parts, with stacks. The cause is left to the reader.

    def waits(self) -> str:
        """Returns what waits, now; no text if nothing is seen to."""
        return WAITS.format(waits=waits) if (waits := self._waits()) else ""

    def _waits(self) -> str:
        functions, stacks = self._drain.running_functions(), frames()
        waits = [*self._shown_programs(functions)]
        if not native.plain_has_ended(native.plain_opened()):
            waits.append(_Wait("effects of programs that `fx.jit` has not made", ", which are not visible yet"))
        for thread, function in sorted(functions.items(), key=lambda each: each[1].since):
            stack = _shown_stack(stacks.get(function.stack or thread))
            age = f", which has run for {monotonic() - function.since:.0f} s{' and is at:' * bool(stack)}"
            what = f"the callback `{function.name}` at {function.where}"
            waits.append(_Wait(what, age, (what,), (*stack,)))
        for run in self._drain.beside.unended():
            if all(function.run is not run for function in functions.values()):
                waits.append(_Wait(str(run), stack=(*_shown_stack(stacks.get(run.thread or 0)),)))
        for thread in self._showing(functions, stacks):
            stack = _shown_stack(stacks[thread]) or ["      native code"]
            says = ", which has been given an effect and is at:"
            waits.append(_Wait("a handler or an output", says, stack=(*stack,)))
        lines = [line for shown in other_waits for line in shown(stacks.values())]
        return "\n".join([*_counted(waits), *lines])

    def _shown_programs(self, functions: dict[int, Running]) -> Iterator[_Wait]:
        failed = {
            each.program: each for each in failed_on_some_devices(self._streams, self._drain.beside.are_exchanging())
        }
        for stream in self._streams.all():
            for number, call in (calls := [*stream.calls.items()])[:1]:
                key, traits = (stream.thread, number), traits_of(stream, number)
                _, output_token = stream.running.get(number, (None, None))
                if output_token is not None and (devices := unready_devices(output_token)):
                    says = [f"runs on {_named(devices)}"]
                elif number in stream.unreturned():
                    says = ["its call has not returned"]
                else:
                    says = ["its effects are not visible yet"]
                for function in functions.values():
                    if function.key == key:
                        says.append(f"{'waits for' if function.reply else 'has called'} its callback `{function.name}`")
                    if function.own is stream:
                        says.append(f"was called by the callback `{function.name}`")
                if (some := failed.get(key)) is not None:
                    failure = self._failures.ending_of(key) or some.failure
                    shown = failure if isinstance(failure, errors.EffectError) else errors.shown(failure)
                    says.append(f"has failed on {_named(some.devices)}: {shown}")
                shown = shown_program(stream, number, call[0].name, traits)
                yield _Wait(f"the program {shown}", f": {'; '.join(says)}", (call[0].name, traits, *says))
            if len(calls) > 1:
                yield _Wait(f"and {len(calls) - 1} programs of thread {stream.thread} behind it")
            if not calls and (newest := stream.running_newest()) is not None:
                number, caller, output_token = newest
                devices = [] if output_token is None else unready_devices(output_token)
                if devices or output_token is None:
                    runs = f"runs on {_named(devices)}" if devices else "its call has not returned"
                    shown, says = shown_program(stream, number, caller.name, caller.traits), "its effects are visible"
                    yield _Wait(f"the program {shown}", f": {runs}; {says}", (caller.name, caller.traits, runs))

    def _showing(self, functions: dict[int, Running], stacks: dict[int, FrameType]) -> list[int]:
        """The drain's threads that write text or call handlers: they neither run functions nor wait for a batch."""
        threads = [thread for thread in self._drain.threads() if thread not in functions and thread in stacks]
        return [thread for thread in threads if stacks[thread].f_code not in self._drain.idle_code]

    # Breaking a circle.

    def _find_circle(self) -> tuple[int, Running] | None:
        """The youngest function whose program waits for it, and its thread, if all functions that run wait for JAX. A
        slow function, and those that wait for it, are left alone. None where GPUs or other processes may compute, which
        does not show here."""
        if not (self._is_on_cpu and self._is_alone):
            return None
        functions, stacks = self._drain.running_functions(), frames()
        if self._showing(functions, stacks):
            return None
        for thread, function in functions.items():
            has_called = function.own is not None and bool(function.own.calls)  # and waits for it at its end
            if not has_called and not _waits_for_jax(stacks.get(function.stack or thread)):
                return None
        awaited = [(thread, each) for thread, each in functions.items() if each.reply]
        return max(awaited, key=lambda each: each[1].since, default=None)

    def _end_program_of(self, thread: int, function: Running, seconds: float) -> None:
        nested = function.own
        called = [] if nested is None else [(number, traits_of(nested, number)) for number in [*nested.calls]]
        waits, now = self._waits(), self._drain.running.get(thread)
        if now is None or now[:_SINCE] != function[:_SINCE]:
            return  # the function has just ended
        message = DEADLOCK.format(name=function.name, where=function.where, seconds=seconds, waits=waits)
        failure = errors.EffectError(message)
        self._drain.running[thread] = (*now[:_REPLY], 0, *now[_REPLY + 1 :])
        self._failures.end_program(function.key, failure)
        # A callback of what the function has called would take the thread that is free now, and might go as deep. What
        # it calls from now on is refused: see `Drain.runs_in_ended_program`.
        for number, traits in called:
            if nested is not None and (traits is None or traits.awaits_results):
                self._failures.stop((nested.thread, number), errors.EffectError(message))
        Background(lambda: answer_with(function.reply, failure)).start()  # the program's continuation may run there
        if in_region(function.token[PHASE]):  # the other devices' functions begin only after this one
            native.end_program(*function.key)


_REPLY, _SINCE = map(Running._fields.index, ("reply", "since"))


def _log(text: str) -> None:
    """Logs a warning in a separate thread: a function that is stuck may hold the lock of a handler of `logging`."""
    Background(lambda: LOGGER.warning(text)).start()


def _named(devices: list[int]) -> str:
    places = ", ".join(map(str, sorted(map(device_place, devices))))
    return f"device {places}" if len(devices) == 1 else f"devices {places}"


def shown_program(stream: Stream, number: int, name: str, traits: ProgramTraits | None) -> str:
    """A program that has not ended: its effects, and the custom calls whose handlers may not have answered."""
    effects, handlers = (traits.effects, traits.handlers) if traits is not None else ((), ())
    calls = f", custom calls: {', '.join(handlers)}" if handlers else ""
    return f"`{name}` (thread {stream.thread}, dispatch {number}, effects: {', '.join(effects) or 'unknown'}{calls})"


# The stacks of threads.


def frames() -> dict[int, FrameType]:
    """The innermost frame of each other thread. On Python 3.11 it is a deadlock if Python collects garbage meanwhile: a
    thread's own variables, when they are freed, wait for the lock that is held (CPython's issue 106883)."""
    collects = _COLLECTS_UNDER_LOCK and gc.isenabled()
    if collects:
        gc.disable()
    try:
        found = sys._current_frames()
    finally:
        if collects:
            gc.enable()
    found.pop(threading.get_ident(), None)  # else the frame and the result would be a reference cycle
    return found


def _shown_stack(innermost: FrameType | None) -> list[str]:
    """The user's part of a stack."""
    stack = [frame for frame, _ in traceback.walk_stack(innermost)] if innermost is not None else []
    ours = [at for at, frame in enumerate(stack) if frame.f_code.co_filename.startswith(_OURS)]
    users = [
        (frame, frame.f_lineno)
        for frame in (stack[: ours[-1]] if ours else stack)
        if not frame.f_code.co_filename.startswith((_OURS, _JAX))
    ]
    shown = traceback.StackSummary.extract(iter(reversed(users))).format()
    return [f"    {line}" for each in shown for line in each.rstrip().split("\n")]


def _waits_for_jax(innermost: FrameType | None) -> bool:
    """True if a function is in code of JAX's or ours, or in a native call by which JAX or NumPy reads arrays. JAX has
    no hook for the latter, and only the call in the user's code tells a function that waits for an array from one that
    sleeps."""
    if innermost is None:
        return False
    if _is_ours(innermost) or innermost.f_code.co_filename.startswith(_JAX):
        return bool(_shown_stack(innermost))  # otherwise the thread is in native code of its own
    names = _names_called(innermost)
    values = [innermost.f_locals.get(name, innermost.f_globals.get(name)) for name in names]
    values += [inspect.getattr_static(value, name, None) for value in values if value is not None for name in names]
    return bool(names & _READERS) or any(issubclass(type(value), PjitFunction) for value in values)


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OURS)


def _names_called(frame: FrameType) -> set[str]:
    """The names in the call at which a frame stands."""
    instructions = [*dis.get_instructions(frame.f_code)]
    call = next((each.positions for each in instructions if each.offset == frame.f_lasti), None)
    if call is None or call.lineno is None or call.end_lineno is None:
        return set()
    begin, end = (call.lineno, call.col_offset or 0), (call.end_lineno, call.end_col_offset or 0)
    return {
        each.argval
        for each in instructions
        if isinstance(each.argval, str)
        and (at := each.positions) is not None
        and at.lineno is not None
        and begin <= (at.lineno, at.col_offset or 0) <= end
    }


# Programs that have failed on some devices and still run on others.


def let_others_go_on(streams: Streams, failures: Failures, beside: Beside) -> None:
    """Lets the other devices continue, which wait for the failed ones. The order of effects leaves the failed devices
    out, and exchanges fail, also those that were started since. A program that a callback has ended is not ended again:
    the other devices' callbacks are answered and counted in their places. The drain's leader calls this."""
    for failed in failed_on_some_devices(streams, beside.are_exchanging()):
        for device in failed.devices:
            native.lose(*failed.program, device)
        beside.fail(failed.program)
        if not failures.has_ended(failed.program):
            native.end_program(*failed.program)
