"""Failures of effects on the host that no caller has been given yet, by program."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import re
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from effects import _errors as errors
from effects import _jax
from effects._config import config
from effects._model.filter import LOGGER
from effects._model.site import Site
from effects._model.wire import (
    PLAIN_THREAD,
    Kind,
    stream_of,
)
from effects.dispatch.runtime.background import in_main_thread, uninterrupted
from effects.dispatch.runtime.streams import Streams, UserThread
from effects.lowering.native_module import native

# Reporting failures without raising them, and many at one line as one. A program may go on for long before a call or a
# barrier raises its failure, so the failure is logged meanwhile.

SourceLine = tuple[str, str, type]
"""The line of a failure in the user's source, the jitted function, and its type."""


_numbers = itertools.count()


def log_failure(failure: BaseException) -> None:
    """Logs the failure of an effect at the user's line, with its cause. Raises nothing.

    The record has the attributes of `EffectError`, as far as they are known.
    """
    of = failure if isinstance(failure, errors.EffectError) else errors.EffectError()
    file, line = re.fullmatch(r"(.*?)(?:(?::|, line )(\d+))?", of.where).groups()  # type: ignore[union-attr]
    known = {name: getattr(of, name) for name in ("where", "function", "effect", "device", "lane", "token")}
    cause = failure.__cause__
    caused = (type(cause), cause, cause.__traceback__) if cause is not None and not is_one_line(failure) else None
    try:
        if LOGGER.isEnabledFor(logging.ERROR):
            made = LOGGER.makeRecord(
                LOGGER.name, logging.ERROR, file, int(line or 0), str(failure), (), caused, known["function"], known
            )
            LOGGER.handle(made)
    except BaseException as error:  # a handler's error: the caller must see it
        failure.add_note(f"It could not be logged: {errors.shown(error)}.")


def is_one_line(failure: BaseException) -> bool:
    """True if the failure is reported by its text, without the cause: the reader of a pipe has gone away."""
    cause = failure.__cause__
    return isinstance(cause, BrokenPipeError) and cause.__traceback__ is None


def line_of(failure: BaseException) -> SourceLine:
    """The line of a failure."""
    of = failure if isinstance(failure, errors.EffectError) else errors.EffectError()
    return of.where, of.function, type(failure)


def first_of_each_line(failures: Iterable[BaseException]) -> list[BaseException]:
    """The first failure of each line, which stands for the others at its line and has their notes, each once."""
    lines: dict[SourceLine | int, list[BaseException]] = {}
    for failure in failures:
        if isinstance(failure, errors.EffectError):
            failure._number = next(_numbers)
        line = line_of(failure)
        lines.setdefault(line if line[0] else id(failure), []).append(failure)
    for first, *others in lines.values():
        if isinstance(first, errors.EffectError):
            first._others = tuple(failure for failure in others if isinstance(failure, errors.EffectError))
        notes = [note for failure in (first, *others) for note in getattr(failure, "__notes__", ())]
        for note in dict.fromkeys(notes[len(getattr(first, "__notes__", ())) :]):
            first.add_note(note)
    return [first for first, *_ in lines.values()]


# A failure keeps as little alive as possible until a barrier raises it.
#
# A traceback keeps frames, and frames keep the operands of the function that raised, and their callers' frames. So
# frames are cleared as soon as they have ended. An exception's arguments stay.


def chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, its causes and contexts, and the exceptions of a group."""
    seen: set[int] = set()
    queue: list[BaseException | None] = [error]
    while queue:
        one = queue.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            queue += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def clear_frames(error: BaseException) -> list[FrameType]:
    """Clears the frames of an exception's tracebacks. Returns the outermost frames, whose callers may still run."""
    tracebacks = [one.__traceback__ for one in chain(error) if one.__traceback__ is not None]
    for each in tracebacks:
        traceback.clear_frames(each)
    return [each.tb_frame for each in tracebacks]


def clear_callers(frame: FrameType | None) -> None:
    """Clears a frame and its callers, up to the first that still runs."""
    while frame is not None:
        try:
            frame.clear()
        except RuntimeError:
            return
        frame = frame.f_back


_OURS = str(Path(errors.__file__).parent) + os.sep
"""The folder of our own code."""


def traceback_from_user(error: BaseException) -> Any:
    """The traceback without our own frames at its beginning."""
    left = error.__traceback__
    while left is not None and left.tb_frame.f_code.co_filename.startswith(_OURS):
        left = left.tb_next
    return left


# Effects that were recorded but not carried out: their counts, by kind and line.


class LeftOut:
    """Counts of effects that were left out, by effect and by the user's line, in the order in which they came."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, site: Site, count: int) -> None:
        """Counts effects of one site; a lane counts as one."""
        if count:
            key = site.effect.name, str(site.where)
            with self._lock:
                self._counts[key] = self._counts.get(key, 0) + count

    def total(self) -> int:
        return sum(self._counts.values())

    def by_effect(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for (effect, _), count in self._counts.items():
            counts[effect] += count
        return counts

    def __str__(self) -> str:
        """The number of effects of each name, and the line of the first."""
        counts = [f"{count} `{effect}`" for effect, count in self.by_effect().items()]
        first = next(iter(self._counts))[1]
        return (
            f"{counts[0]} effect, at {first}"
            if self.total() == 1
            else f"{' and '.join(counts)} effects, from {first} on"
        )


_SHOWN = 8


def shown_list(things: Iterable[Any]) -> str:
    """The text of the first few things, and how many more there are."""
    shown = [str(thing) for thing in things]
    more = [f"{len(shown) - _SHOWN} more"] if len(shown) > _SHOWN else []
    return ", ".join([*shown[:_SHOWN], *more])


# The failures of one program's effects, and the fate of its other effects.


@dataclasses.dataclass(eq=False, repr=False)
class FailedProgram:
    """A program's failures that no caller has been given yet."""

    kept: list[BaseException] = dataclasses.field(default_factory=list)
    # By line of `kept`: the number of further failures, and the newest one's text.
    lines: dict[SourceLine, tuple[int, str]] = dataclasses.field(default_factory=dict)
    awaited: BaseException | None = None  # the failure that ended the program; not among `kept`
    elsewhere: bool = False  # true if `awaited` was on another device, perhaps of another process
    first: BaseException | None = None  # the first failure; its note counts the effects left out after it
    stopped: bool = False  # true if later effects are not carried out
    left_out: LeftOut = dataclasses.field(default_factory=LeftOut)
    logged: bool = False  # true if its first failure was logged
    thread: UserThread | None = None  # the `UserThread` of its call, if threads share the stream
    stack: Any = None  # the stack of its call, if stacks are kept

    def finish(self, failure: BaseException) -> None:
        """Notes in a failure which effects were left out after it."""
        if failure is not self.first or not self.left_out or not isinstance(failure, errors.EffectError):
            return
        # A nested program's failure has also stopped the callback's program.
        failure.not_carried_out = {**Counter(failure.not_carried_out) + self.left_out.by_effect()}
        failure._say(errors.NOTE_LEFT_OUT.format(left_out=self.left_out, were=errors.were(self.left_out.total())))


Owner = tuple[int, UserThread | None]
"""The owner of failures: the number of a stream's thread, and the calling thread if threads share the stream."""

ProgramKey = tuple[int, int]
"""A call of a program: the number of the thread that called it, and of its epoch."""
Taker = tuple[UserThread, bool]
"""A thread that takes failures, and True if it replays a function meanwhile."""

_KEPT = 100
"""The most failures of one program that are kept, the first at each line aside. The others are counted: a loop may fail
in every iteration."""

_KEPT_OF_ALL = 1000
"""The most failures of all programs that are kept, one of each thread's aside. Without a barrier, failing programs
could add any number."""

_UNRAISED = 1.0
"""Seconds after which a failure is logged that no caller has been given: a program may run for hours."""


class HostRunFailed(Exception):
    """Raised by the done of an asynchronous callback, with the function's name and the line that started it. The cause
    is the function's exception."""


def _note(key: ProgramKey, failure: BaseException) -> None:
    """Notes a failure in the run file that is open."""
    text = errors.reason(failure).encode(errors="replace").decode()
    native.note(Kind.FAILED, (stream_of(key[0]), key[1], 0, 0), text=text)


class Failures:
    """The failures of all programs. Each is raised once. Drain threads add, threads that wait for programs take."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._lock = threading.Lock()
        self.programs: dict[ProgramKey, FailedProgram] = {}  # by program, in the order of their first failure
        # Programs that a failure has stopped or ended, and that may still publish. They keep their failures until their
        # end, so that the report is complete.
        self.unended: set[ProgramKey] = set()
        # Streams of functions that run for a failed program: their effects would have come after the failure.
        self.abandoned: set[int] = set()
        # By owner: the numbers of kept and of only counted failures.
        self._kept: Counter[Owner] = Counter()
        self._more: Counter[Owner] = Counter()
        # The lines whose failures were logged since a caller last got any.
        self._logged: dict[Owner, set[SourceLine]] = {}
        self._timer: threading.Timer | None = None  # the thread that logs failures, while there are any
        self.frames: dict[int, list[FrameType]] = {}  # by drain thread: the frames whose callers may still run
        self.plain_ended: bool = False  # true if a callback has ended a program that JAX dispatched
        self._taking = threading.Lock()  # held while failures of host functions are taken
        self.raising: list[BaseException] = []  # of the main thread: taken, but not yet raised

    def __bool__(self) -> bool:
        return bool(self.programs or self.raising)

    def add(self, key: ProgramKey, failure: BaseException, *, stops: bool = True, logged: bool = False) -> None:
        """Keeps a failure that does not end its program.

        Args:
            key: The program.
            failure: The failure of one of its effects.
            stops: True if the program's later effects are not carried out, where `after_error` says so.
            logged: True if JAX has logged the failure.
        """
        self.frames.setdefault(threading.get_ident(), []).extend(clear_frames(failure))
        _note(key, failure)
        with self._lock:
            program, line = self._of(key), line_of(failure)
            program.logged |= logged
            if line in program.lines and len(program.kept) >= _KEPT:
                program.lines[line] = program.lines[line][0] + 1, errors.reason(failure)
            elif self._kept[owner := (key[0], program.thread)] and self._kept.total() >= _KEPT_OF_ALL:
                self._more[owner] += 1
            else:
                program.kept.append(failure)
                program.lines.setdefault(line, (0, ""))
                self._kept[owner] += 1
            if stops:
                self._note_failed(key, program, failure)
            if not program.kept and program.awaited is None and key not in self.unended:
                del self.programs[key]
            self._log_later()

    def take_from_host_functions(self) -> None:
        """Keeps the failures of GPUs' host functions, whose programs continue. Called ahead of the programs' ends."""
        with self._taking:
            failed = [
                ((thread, epoch), errors.EffectError(text)) for thread, epoch, text in native.take_host_failures()
            ]
            for key, failure in failed:
                self.add(key, failure)
            native.taken_host_failures()  # until here, another thread waits for `_taking`, and then finds them
        for text in native.take_warnings():
            LOGGER.warning(text)

    def _log_later(self) -> None:
        """Has failures logged if no caller is given them soon. The caller holds the lock."""
        if self._timer is None:
            self._timer = threading.Timer(_UNRAISED, self._log_unraised)
            self._timer.daemon = True
            with contextlib.suppress(RuntimeError):  # the interpreter reports them at its end
                self._timer.start()

    def _log_unraised(self) -> None:
        """Logs the first failure of each program, but only one of each line until a caller is given it."""
        unraised = []
        with self._lock:
            self._timer = None
            for (thread, _), program in self.programs.items():
                if program.kept and not program.logged:
                    program.logged = True
                    lines, line = self._logged.setdefault((thread, program.thread), set()), line_of(program.kept[0])
                    if line not in lines:
                        lines.add(line)
                        unraised.append(program.kept[0])
        for failure in unraised:
            log_failure(failure)

    def clear_frames(self) -> None:
        """Clears the frames that called raising functions, once these frames have returned. A drain thread calls it."""
        for frame in self.frames.pop(threading.get_ident(), ()):
            clear_callers(frame)

    def end_program(self, key: ProgramKey, failure: BaseException, *, elsewhere: bool = False) -> None:
        """Keeps the failure that ends the program. `elsewhere`: another device is the cause. Its own failure comes in
        its place in the order, or never from another process; until then the program's effects continue."""
        _note(key, failure)
        with self._lock:
            program = self._of(key)
            if program.awaited is not None and (elsewhere or not program.elsewhere):  # `awaited` stays
                program.kept += [] if elsewhere else [failure]
                return
            program.awaited, program.elsewhere = failure, elsewhere
            if not elsewhere:
                self._note_failed(key, program, failure)
            if key[0] == PLAIN_THREAD:
                self.plain_ended = True
                return
            self.unended.add(key)
            stopped = program.stopped
        if stopped:
            native.end_together(*key)

    def stop(self, key: ProgramKey, failure: BaseException) -> None:
        """Keeps a failure, and carries out no more effects of the program, whatever `after_error` says."""
        self.add(key, failure)
        with self._lock:
            self._of(key).stopped = True
            self.unended.add(key)

    def _note_failed(self, key: ProgramKey, program: FailedProgram, failure: BaseException) -> None:
        program.first = program.first or failure
        if stops_after_error(key):
            program.stopped = True
            self.unended.add(key)

    def _of(self, key: ProgramKey) -> FailedProgram:
        if key not in self.programs:
            stream = self._streams.get(key[0])
            self.programs[key] = FailedProgram(
                thread=stream and stream.thread_of(key[1]), stack=stream and stream.stacks.get(key[1])
            )
        native.raise_attention()  # makes the next call look
        return self.programs[key]

    def abandon(self, thread: int) -> None:
        """Leaves out all further effects of the stream of a function whose program has failed."""
        self.abandoned.add(thread)
        native.raise_attention()

    def forget_abandoned(self, thread: int) -> None:
        """Forgets that a stream was abandoned: nothing more comes of it."""
        self.abandoned.discard(thread)

    def names(self, thread: int) -> bool:
        """True if anything is kept of the programs that this thread called."""
        return thread in self.abandoned or any(key[0] == thread for key in [*self.programs])

    def has_stopped(self, key: ProgramKey) -> bool:
        """True if effects of this program are not carried out any more."""
        if key not in self.unended:
            return key[0] in self.abandoned
        return (program := self.programs.get(key)) is not None and program.stopped

    def leave_out(self, key: ProgramKey, site: Site, count: int) -> None:
        """Counts effects that were not carried out because an effect of the program had failed."""
        with self._lock:
            if (program := self.programs.get(key)) is not None:
                program.left_out.add(site, count)

    def end_stopped(self, key: ProgramKey) -> None:
        """Ends a program by the failure that stopped its effects: it waits for an effect that is not carried out."""
        with self._lock:
            program = self.programs.get(key)
            if program is not None and (program.awaited is None or program.elsewhere) and program.first is not None:
                owner, line = (key[0], program.thread), line_of(program.first)
                if program.first in program.kept:
                    program.kept.remove(program.first)
                    self._kept[owner] -= 1
                elif (more := program.lines.get(line, (0, ""))) and more[0]:  # it was only counted, at its line
                    program.lines[line] = more[0] - 1, more[1]
                else:
                    self._more[owner] -= 1
                program.awaited, program.elsewhere = program.first, False

    def has_ended(self, key: ProgramKey) -> bool:
        """True if a callback has ended this program, and its failure has not been raised."""
        return self.ending_of(key) is not None

    def ending_of(self, key: ProgramKey) -> BaseException | None:
        """The failure by which a callback has ended this program, if it has not been raised."""
        return program.awaited if (program := self.programs.get(key)) is not None else None

    def drop_ended(self, epochs: Iterable[tuple[int, int, int]]) -> None:
        """Drops epochs (thread, first, count), which are about to end, from `unended`: nothing more comes of them."""
        if self.unended:
            with self._lock:
                for thread, first, count in epochs:
                    for key in [*self.unended]:
                        if key[0] == thread and (key[1] - first) & 0xFFFFFFFF < count:
                            self.unended.remove(key)
                            program = self.programs.get(key)
                            if program is not None and not program.kept and program.awaited is None:
                                del self.programs[key]

    def take_awaited(self, key: ProgramKey) -> BaseException | None:
        """Takes the failure that ended this program; None if there is none."""
        with self._lock:
            program = self.programs.get(key)
            if program is None or program.awaited is None:
                return None
            failure, program.awaited = program.awaited, None
            program.finish(failure)
            if not program.kept:
                del self.programs[key]
        return failure

    def raise_taken(self, threads: Collection[int] | None) -> None:
        """Raises all failures, or those of programs that these threads called."""
        taker = self._taker()
        self._raise(lambda: self.take(threads, taker))

    def raise_first(self, thread: int) -> None:
        """Raises the failures of the first failed program that the calling thread called under this number."""
        if any(owner[0] == thread for owner in list(self._kept)):
            taker = self._streams.this_thread(), True
            self._raise(lambda: self.take({thread}, taker, only_first=True))

    def _raise(self, take: Callable[[], list[BaseException]]) -> None:
        """Raises the failures that `take` returns. An interrupt on the way loses none."""
        raising = self.raising if in_main_thread() else []
        uninterrupted(lambda: raising.extend(first_of_each_line(take())))
        if not raising:
            return
        for failure in raising:
            if isinstance(failure, errors.EffectError):
                if failure._stack is not None:
                    failure.__traceback__ = _jax.traceback_of(failure._stack)
                for each in failure.failures:
                    each._stack = None
        first = raising[0].__traceback__
        error = raising[0] if len(raising) == 1 else errors.group_of(raising).with_traceback(first)
        try:
            raise error
        except BaseException as raised:
            if raised is error:  # raised by now: it becomes the context of a later interrupt
                raising.clear()
            raise

    def _taker(self) -> Taker:
        return self._streams.this_thread(), native.is_nested()

    def take(
        self,
        threads: Collection[int] | None = None,
        taker: Taker | None = None,
        *,
        unended: bool = False,
        only_first: bool = False,
    ) -> list[BaseException]:
        """Takes failures in order: of all programs, or of those that these threads called. A taker that replays no
        function also takes those of threads that have ended. Leaves a failure that a call will raise and, unless
        `unended`, those of a program that may still count effects.

        `taker`: the thread that takes them, if it is not the calling one. `only_first`: those of one program only.
        """
        taker = taker or self._taker()
        taken: list[BaseException] = []
        with self._lock:
            for key in list(self.programs):
                stream = self._streams.get(key[0])
                if key in self.unended and not unended and stream is not None and key[1] in stream.calls:
                    continue
                if threads is None or self._is_for(key, threads, *taker):
                    taken += self._take(key)
                if only_first and taken:
                    break
        return taken

    def _is_for(self, key: ProgramKey, threads: Collection[int], taker: UserThread, is_nested: bool) -> bool:
        thread = self.programs[key].thread
        if key[0] in threads and (thread is None or thread is taker):
            return True
        return not is_nested and self._streams.has_ended(key[0], thread)

    def _raises_at_call(self, key: ProgramKey) -> bool:
        """True if the call of this program has not returned, and raises the failure that ends it."""
        stream = self._streams.get(key[0])
        return stream is not None and key[1] in stream.entering

    def _take(self, key: ProgramKey) -> list[BaseException]:
        self.unended.discard(key)
        program = self.programs.pop(key)
        taken = program.kept
        owner = key[0], program.thread
        self._kept[owner] -= len(taken)
        if program.awaited is not None and self._raises_at_call(key):
            self.programs[key] = dataclasses.replace(program, kept=[], lines={})
        elif program.awaited is not None:
            taken = [program.awaited, *taken]
        for failure in taken:
            if isinstance(failure, errors.EffectError):
                failure._stack = program.stack
            if failure is program.first or failure is program.awaited:
                program.finish(failure)
        for line, failure in {line_of(failure): failure for failure in taken}.items():  # the newest of each line
            more, newest = program.lines.get(line, (0, ""))
            if more and isinstance(failure, errors.EffectError):
                failure._more = failure._more[0] + more, newest
        if taken:
            self._logged.pop(owner, None)
        if taken and self._kept[owner] <= 0:
            del self._kept[owner]
            if count := self._more.pop(owner, 0):
                more = {"more": errors.counted(count, "more effect"), "were": errors.were(count)}
                taken[-1].add_note(errors.NOTE_MORE_PROGRAMS.format(**more))
        if self._timer is not None and not self.programs:
            self._timer.cancel()
            self._timer = None
        return taken

    def keep_from_jax(self) -> None:
        """Keeps JAX from reporting a callback's failure again in a later program, if JAX dispatched the one that
        failed. We report that failure."""
        if self.plain_ended:
            self.plain_ended = False
            _jax.forget_failed_tokens(lambda text: errors.WAITED in text or errors.ENDED in text)


def stops_after_error(key: ProgramKey) -> bool:
    """True if a failure stops the effects of this program. Not if JAX dispatched it: there it is not known which
    effects are of one program."""
    return config.after_error == "stop" and key[0] != PLAIN_THREAD
