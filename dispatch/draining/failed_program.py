"""What effects of one program raised on the host, and what became of the others."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from effects import _errors as errors
from effects.dispatch.draining.failure_log import SourceLine
from effects.dispatch.draining.left_out import LeftOut
from effects.dispatch.streams.table import UserThread


@dataclasses.dataclass
class FailedProgram:
    """Its failures that no caller has been given yet."""

    kept: list[BaseException] = dataclasses.field(default_factory=list)
    # Of each line in `kept`: how many failures more were only counted, and what the newest of them said.
    lines: dict[SourceLine, tuple[int, str]] = dataclasses.field(default_factory=dict)
    awaited: BaseException | None = None  # what ended the program; not among `kept`
    elsewhere: bool = False  # whether that was on another device, which may be one of another process
    before: int | None = None  # effects of the program before that, if it is known
    first: BaseException | None = None  # of all of them; it says what became of the effects after it
    stopped: bool = False  # whether these are not carried out
    left_out: LeftOut = dataclasses.field(default_factory=LeftOut)
    after: int = 0  # records that were replayed after `awaited` all the same
    cancelled: int = 0  # callbacks after it that were asked for and did not run
    bytes: int = 0  # held by the exceptions in `kept`
    logged: bool = False  # whether its first failure was
    thread: UserThread | None = None  # what stands for the thread that called it, where streams are not one thread's
    stack: Any = None  # from where it was called, if that is kept

    def finish(self, failure: BaseException, ended: bool) -> None:
        """Has a failure say what became of the effects around it. `ended`: whether it has ended the program."""
        notes, counts = [], {}
        if ended and self.before:
            counts["before"] = self.before
            notes.append(errors.NOTE_BEFORE.format(before=errors.counted(self.before, "effect")))
        if failure is self.first and self.left_out:
            counts["not_carried_out"] = total = self.left_out.total()
            notes.append(errors.NOTE_LEFT_OUT.format(left_out=self.left_out, were=errors.were(total)))
            if isinstance(failure, errors.EffectError):
                # A nested program's failure has stopped that of the callback too.
                failure.not_carried_out = {**Counter(failure.not_carried_out) + self.left_out.by_effect()}
        if ended and not self.stopped and self.after:
            counts["replayed"] = self.after
            replayed = {"replayed": errors.counted(self.after, "effect"), "were": errors.were(self.after)}
            notes.append(errors.NOTE_REPLAYED.format(**replayed))
        if ended and not self.stopped and self.cancelled:
            counts["cancelled"] = self.cancelled
            notes.append(errors.NOTE_CANCELLED.format(cancelled=errors.counted(self.cancelled, "callback")))
        if isinstance(failure, errors.EffectError):
            failure.counts = {**Counter(failure.counts) + Counter(counts)}
            failure._say(*notes)
