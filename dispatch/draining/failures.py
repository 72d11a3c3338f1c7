"""What effects raised on the host and no caller has been given yet, program by program."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Collection

from effects import _errors as errors
from effects import _jax
from effects._wire import UNTRACKED_THREAD
from effects.dispatch.draining.background import in_main_thread, uninterrupted
from effects.dispatch.streams.table import Streams

ProgramKey = tuple[int, int]
"""A call of a program: the number of the thread that called it, and of its epoch."""

_KEPT = 100
"""How many failures of one program are kept; the others are counted. A loop may fail in every iteration."""


@dataclasses.dataclass
class _OfProgram:
    kept: list[BaseException] = dataclasses.field(default_factory=list)
    more: int = 0
    awaited: BaseException | None = None  # what ended the program; not among `kept`
    before: int = 0  # effects of the program before it
    after: int = 0  # records replayed after it
    cancelled: int = 0  # callbacks after it that were asked for and did not run
    thread: object = None  # what stands for the thread that called it, where streams are not one thread's


class Failures:
    """Each is handed out once. Written by drain threads, taken by those that wait for programs."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._lock = threading.Lock()
        self.programs: dict[ProgramKey, _OfProgram] = {}  # by program, in the order of their first failure
        self.calls: set[ProgramKey] = set()  # programs whose calls have not returned, and raise what ends them
        self.untracked_ended = False  # whether a callback has ever ended a program that JAX dispatched
        self.raising: list[BaseException] = []  # the main thread's: taken, and not yet raised by the barrier that did
        self.any_ended = False  # whether a callback has ended a program that may still have records to replay

    def __bool__(self) -> bool:
        return bool(self.programs or self.raising)

    def add(self, key: ProgramKey, failure: BaseException) -> None:
        """Keeps a failure after which the program goes on."""
        with self._lock:
            program = self._of(key)
            if len(program.kept) < _KEPT:
                program.kept.append(failure)
            else:
                program.more += 1

    def end_program(self, key: ProgramKey, failure: BaseException, before: int) -> None:
        """Keeps the failure that ends the program."""
        with self._lock:
            program = self._of(key)
            if program.awaited is not None:  # another device of the same program
                program.kept.append(failure)
                return
            program.awaited, program.before = failure, before
            self.any_ended = True
            self.untracked_ended = self.untracked_ended or key[0] == UNTRACKED_THREAD

    def _of(self, key: ProgramKey) -> _OfProgram:
        if key not in self.programs:
            stream = self._streams.get(key[0])
            self.programs[key] = _OfProgram(thread=stream and stream.thread_of(key[1]))
        return self.programs[key]

    def has_ended(self, key: ProgramKey) -> bool:
        """Whether a callback has ended this program, and no caller has been given its failure."""
        program = self.programs.get(key)
        return program is not None and program.awaited is not None

    def count_after_end(self, key: ProgramKey, replayed: int, cancelled: int = 0) -> None:
        """Counts what became of records of a program that a callback has ended."""
        with self._lock:
            program = self.programs.get(key)
            if program is not None and program.awaited is not None:
                program.after += replayed
                program.cancelled += cancelled

    def take_awaited(self, key: ProgramKey) -> BaseException | None:
        """The failure that ended this program."""
        with self._lock:
            program = self.programs.get(key)
            if program is None or program.awaited is None:
                return None
            failure = _finish_awaited(program)
            if not program.kept:
                del self.programs[key]
            self._look_for_ended()
        return failure

    def raise_taken(self, threads: Collection[int] | None) -> None:
        """Raises all failures, or those of programs that these threads called. An interrupt on the way loses none."""
        raising = self.raising if in_main_thread() else []
        this = self._streams.this_thread()
        uninterrupted(lambda: raising.extend(self.take(threads, this)))
        if not raising:
            return
        error = raising[0]
        if len(raising) > 1:
            error = BaseExceptionGroup("Several effects could not be carried out on the host.", raising)
        try:
            raise error
        except BaseException as raised:
            if raised is error:  # it is under way: an interrupt that comes now has it as its context
                raising.clear()
            raise

    def take(self, threads: Collection[int] | None = None, this: object = None) -> list[BaseException]:
        """All failures, or those of programs that these threads called, in order; but what a call is to raise.

        `this` stands for the thread that takes them, if that is not the calling one.
        """
        taken: list[BaseException] = []
        with self._lock:
            for key in list(self.programs):
                thread = self.programs[key].thread
                if threads is None or (key[0] in threads and thread in (None, this or self._streams.this_thread())):
                    program = self.programs.pop(key)
                    kept = program.kept
                    if program.awaited is not None and key in self.calls:
                        self.programs[key] = dataclasses.replace(program, kept=[], more=0)
                    elif program.awaited is not None:
                        kept = [_finish_awaited(program), *kept]
                    if program.more:
                        kept[-1].add_note(errors.NOTE_MANY_FAILURES.format(count=program.more))
                    taken += kept
            self._look_for_ended()
        return taken

    def keep_from_jax(self) -> None:
        """What a callback raised in a program that JAX dispatched, we report: JAX is not to report it again in a later
        one."""
        if self.untracked_ended:
            self.untracked_ended = False
            _jax.forget_failed_tokens(lambda text: errors.WAITED in text)

    def _look_for_ended(self) -> None:
        self.any_ended = any(program.awaited is not None for program in self.programs.values())


def _finish_awaited(program: _OfProgram) -> BaseException:
    failure, program.awaited = program.awaited, None
    assert failure is not None
    failure.add_note(
        errors.NOTE_PROGRAM_ENDED.format(before=program.before, after=program.after, cancelled=program.cancelled)
    )
    return failure
