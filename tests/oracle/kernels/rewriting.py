"""Cases in a second way: kernels write their effects to a log, as compiled ones do, and JAX simulates that.

What they give and show must be the same. A kernel that waits for what callbacks return cannot be rewritten, nor one
whose grid has a size that only data says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tests.oracle.compare import check
from tests.oracle.kernels.kernel import Kernel
from tests.oracle.language import Case, Program, statements
from tests.oracle.observe import Outcome
from tests.oracle.rings import drops
from tests.oracle.statements.callback import Callback
from tests.oracle.statements.calls import Call


def check_both_ways(case: Case, check: Callable[[Case], Outcome] = check) -> list[Outcome]:
    """Checks a case as it is, and with those kernels rewritten that can be.

    Args:
      case: the case.
      check: what checks each.

    Returns:
      What was expected of each.
    """
    again = rewritten(case)
    return [check(case), *([check(again)] if again.rewritten else [])]


def rewritten(case: Case) -> Case:
    """The case with all programs rewritten that can be."""
    programs = frozenset(run.program for run in case.runs if _can_be_rewritten(run.program))
    # A log is one record: what a full ring drops of it is more than it counts.
    return dataclasses.replace(case, rewritten=programs, rings="wait" if drops(case) else case.rings)


def _can_be_rewritten(program: Program) -> bool:
    waiting: set[str] = set()  # functions that do
    for function in program.functions:
        if _waits(function, waiting):
            waiting.add(function.name)
    kernels = [s for s in statements(program) if isinstance(s, Kernel)]
    return bool(kernels) and not any(kernel.dynamic is not None or _waits(kernel, waiting) for kernel in kernels)


def _waits(tree: object, waiting: set[str]) -> bool:
    """Whether something in there waits for the host, given the functions that do."""
    return any(
        (isinstance(s, Callback) and s.awaited) or (isinstance(s, Call) and s.function in waiting)
        for s in statements(tree)
    )
