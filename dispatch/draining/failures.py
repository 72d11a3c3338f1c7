"""What effects raised on the host and nobody has been told yet, program by program."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Collection

from effects import _errors as errors
from effects import _jax as compat
from effects._wire import UNTRACKED_THREAD
from effects.dispatch.streams.table import Streams

Place = tuple[int, int]
"""A program: the number of the thread that called it, and of its epoch."""

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
        self.programs: dict[Place, _OfProgram] = {}  # by program, in the order of their first failure
        self.calls: set[Place] = set()  # programs whose calls have not returned, and raise what ends them
        self.untracked_ended = False  # whether a callback has ever ended a program that JAX dispatched
        self.any_ended = False  # whether a callback has ended a program that may still have records to replay

    def __bool__(self) -> bool:
        return bool(self.programs)

    def add(self, place: Place, failure: BaseException) -> None:
        """Keeps a failure after which the program goes on."""
        with self._lock:
            program = self._of(place)
            if len(program.kept) < _KEPT:
                program.kept.append(failure)
            else:
                program.more += 1

    def end_program(self, place: Place, failure: BaseException, before: int) -> None:
        """Keeps the failure that ends the program."""
        with self._lock:
            program = self._of(place)
            if program.awaited is not None:  # another device of the same program
                program.kept.append(failure)
                return
            program.awaited, program.before = failure, before
            self.any_ended = True
            self.untracked_ended = self.untracked_ended or place[0] == UNTRACKED_THREAD

    def _of(self, place: Place) -> _OfProgram:
        if place not in self.programs:
            stream = self._streams.get(place[0])
            self.programs[place] = _OfProgram(thread=stream and stream.thread_of(place[1]))
        return self.programs[place]

    def has_ended(self, place: Place) -> bool:
        """Whether a callback has ended this program, and nobody has been told."""
        program = self.programs.get(place)
        return program is not None and program.awaited is not None

    def count_after_end(self, place: Place, replayed: int, cancelled: int = 0) -> None:
        """Counts what became of records of a program that a callback has ended."""
        with self._lock:
            program = self.programs.get(place)
            if program is not None and program.awaited is not None:
                program.after += replayed
                program.cancelled += cancelled

    def take_awaited(self, place: Place) -> BaseException | None:
        """The failure that ended this program."""
        with self._lock:
            program = self.programs.get(place)
            if program is None or program.awaited is None:
                return None
            failure = _finish_awaited(program)
            if not program.kept:
                del self.programs[place]
            self._look_for_ended()
        return failure

    def take(self, threads: Collection[int] | None = None) -> list[BaseException]:
        """All failures, or those of programs that these threads called, in order; but what a call is to raise."""
        taken: list[BaseException] = []
        with self._lock:
            for place in list(self.programs):
                thread = self.programs[place].thread
                if threads is None or (place[0] in threads and thread in (None, self._streams.this_thread())):
                    program = self.programs.pop(place)
                    kept = program.kept
                    if program.awaited is not None and place in self.calls:
                        self.programs[place] = dataclasses.replace(program, kept=[], more=0)
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
            compat.forget_failed_tokens(lambda text: errors.WAITED in text)

    def _look_for_ended(self) -> None:
        self.any_ended = any(program.awaited is not None for program in self.programs.values())


def _finish_awaited(program: _OfProgram) -> BaseException:
    failure, program.awaited = program.awaited, None
    assert failure is not None
    failure.add_note(
        errors.NOTE_PROGRAM_ENDED.format(before=program.before, after=program.after, cancelled=program.cancelled)
    )
    return failure
