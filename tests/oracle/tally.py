"""What a chunk of cases exercised, and what failed in it."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.oracle.language import Case, kinds_of_labels, statements

if TYPE_CHECKING:
    from tests.oracle.devices.language import DeviceCase
    from tests.oracle.observe import Outcome


@dataclass
class Tally:
    """Counts of cases, programs, dispatches, and of everything in them by its kind."""

    sequences: int = 0
    programs: int = 0
    dispatches: int = 0
    rewritten: int = 0  # programs that ran with their kernels rewritten, too
    statements: collections.Counter[str] = field(default_factory=collections.Counter)
    fired: collections.Counter[str] = field(default_factory=collections.Counter)
    cases: collections.Counter[str] = field(default_factory=collections.Counter)
    errors: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)
    peak_kib: int = 0

    def count(self, case: Case | DeviceCase, outcomes: Sequence[Outcome]) -> None:
        """Counts a case, with what was expected of each of its threads."""
        programs = tuple(dict.fromkeys(run.program for run in case.runs))
        self.sequences += 1
        self.programs += len(programs)
        self.dispatches += len(case.runs)
        self.cases.update(case.kinds())
        for statement in statements(programs):
            self.statements.update(statement.kinds())
        effects = kinds_of_labels(programs)
        for outcome in outcomes:
            words = [line.split(" ", 1)[0] for line in outcome.lines]
            self.rewritten += outcome.rewritten
            self.fired.update(effects.get(word, "parts") for word in words)
            self.errors["raised by calls"] += sum(isinstance(state, str) for state in outcome.states)
            self.errors["raised by barriers"] += len(outcome.errors)

    def add(self, other: Tally) -> None:
        self.sequences += other.sequences
        self.programs += other.programs
        self.dispatches += other.dispatches
        self.rewritten += other.rewritten
        self.statements += other.statements
        self.fired += other.fired
        self.cases += other.cases
        self.errors += other.errors
        self.failures += other.failures
        self.peak_kib = max(self.peak_kib, other.peak_kib)

    def report(self, elapsed: float) -> str:
        """What the command prints at its end."""
        texts = [
            f"{self.programs} programs in {self.sequences} cases, {self.dispatches} dispatches",
            *[f"{self.rewritten} of them with their kernels rewritten, too"] * bool(self.rewritten),
            f"{elapsed:.0f} s, {self.programs / elapsed:.1f} programs/s, at most {self.peak_kib // 1024} MiB a process",
        ]
        for name in ("cases", "statements", "fired", "errors"):
            counts = getattr(self, name)
            texts.append(f"{name}: {', '.join(f'{kind} {count}' for kind, count in sorted(counts.items()))}")
        return "\n".join([*texts, f"failed: {len(self.failures)}"])
