"""The checks of many slips, side by side, and what the command prints."""

from __future__ import annotations

import dataclasses
import queue
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.mutants.copy import Copy, NotFound, Verdict
from tests.mutants.slip import Slip

Say = Callable[[str], None]


def print_at_once(text: str) -> None:
    print(text, flush=True)


def chosen(slips: Sequence[Slip], names: Sequence[str]) -> list[Slip]:
    """Those of these names, or of these parts; all if none is named."""
    return [slip for slip in slips if not names or {slip.name, slip.name.partition(".")[0]} & set(names)]


def run(
    slips: Sequence[Slip],
    jobs: int = 1,
    make_copy: Callable[[Path], Copy] = Copy,
    say: Say = print_at_once,
    at_random: bool = False,
) -> int:
    """Tries every slip, says what becomes of it, and returns the exit code of the command.

    Of slips made `at_random`, the tests are known to pass without them, and what cannot run is caught. There are many
    tests for each, so that the one which notices it must do so twice.
    """
    copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    made: list[Copy] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for number in range(jobs):
            place = Path(folder, str(number))
            place.mkdir()
            made.append(make_copy(place))
            copies.put(made[-1])

        # Whoever is said to notice a slip must have nothing to complain of without it.
        copy = copies.get()
        tests = () if at_random else dict.fromkeys(test for slip in slips for test in slip.tests)
        right = copy.check(list(tests))
        copies.put(copy)
        if right.failed:
            say(f"The tests fail without any slip: {right.why}")
            return 2

        def check(slip: Slip) -> tuple[Verdict, float]:
            started, copy = time.monotonic(), copies.get()
            try:
                with copy.with_slip(slip):
                    tests = list(slip.tests)
                    verdict = copy.check(tests, slip)
                    # Of many tests, one may have failed for another reason: on a busy machine, for want of time.
                    while at_random and verdict.test in tests and not copy.check([verdict.test], slip).failed:
                        tests.remove(verdict.test)
                        verdict = copy.check(tests, slip)
                    return dataclasses.replace(
                        verdict, was_run=verdict.was_run or at_random
                    ), time.monotonic() - started
            except NotFound as error:
                return Verdict(False, str(error), was_run=False), time.monotonic() - started
            finally:
                copies.put(copy)

        survived, untried = [], []
        with ThreadPoolExecutor(jobs) as threads:
            futures = {threads.submit(check, slip): slip for slip in slips}
            try:
                for future in as_completed(futures):
                    slip, (verdict, seconds) = futures[future], future.result()
                    if not verdict.was_run:
                        untried.append(slip)
                    elif not verdict.failed:
                        survived.append(slip)
                    word = "NOT TRIED" if not verdict.was_run else "caught" if verdict.failed else "SURVIVED"
                    say(f"{word:9} {seconds:4.0f} s  {slip.name}  {verdict.why}".rstrip())
            except BaseException:  # somebody ends the command: nothing that it has started is to outlive it
                threads.shutdown(wait=False, cancel_futures=True)
                for copy in made:
                    copy.stop()
                raise
    for slip in survived:
        tests = ", ".join([*slip.tests[:5], *[f"{len(slip.tests) - 5} others"] * (len(slip.tests) > 5)])
        say(
            f"\n{slip.name} survived, in {slip.file}: {slip.wrong}\n  not seen by {tests or 'any: no test comes there'}"
        )
    caught = len(slips) - len(survived) - len(untried)
    say(f"\n{len(slips)} slips: {caught} caught, {len(survived)} survived, {len(untried)} not tried")
    return 2 if untried else 1 if survived else 0
