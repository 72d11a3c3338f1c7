"""Many cases, checked in many processes.

A chunk of cases is checked by a process of its own, which leaves its tally in a folder after each case. If it dies or
is stuck, the case that it was at has failed, and another process goes on after that.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import faulthandler
import functools
import pickle
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from tests.oracle import cases, compare, filters
from tests.oracle.devices import cases as device_cases
from tests.oracle.devices import compare as device_compare
from tests.oracle.devices.placing import DEVICES
from tests.oracle.kernels import generator as kernels
from tests.oracle.kernels.rewriting import check_both_ways
from tests.oracle.language import FEATURES, JAX_FEATURES
from tests.oracle.observe import NotInJax, Outcome
from tests.oracle.runners import STUCK_AFTER, library, plain_jax
from tests.oracle.runs import comparing as recording
from tests.oracle.runs import mutating
from tests.oracle.tally import Tally
from tests.oracle.watching import planting as watching

CHUNK = 40  # cases of one process


@dataclass(frozen=True)
class Campaign:
    """Cases by seed and number, and how one is checked."""

    options: tuple[str, ...]  # of the command, which choose it
    devices: int  # of the host
    case: Callable[[int, int], Any]
    describe: Callable[[Any], str]
    checker: Callable[[], Callable[[Any], list[Outcome]]]  # makes what checks a case and returns what was expected

    def again(self, seed: int, number: int) -> str:
        """The command that checks one case again."""
        return " ".join(["python -m tests.oracle", *self.options, f"--seed {seed} --only {number}"])


@functools.cache
def _features() -> frozenset[str]:
    """What programs have. Handlers of the tests' own read operands on the host, so that GPUs have none."""
    return frozenset(FEATURES) - ({"native", "native_fails"} if jax.default_backend() != "cpu" else set())


def _with_runs(campaign: Campaign, checker: Callable[[], Callable[[Any], list[Outcome]]]) -> Campaign:
    """The campaign with run files: what another process reads of each case, and what `diff` finds between the case and
    itself, and between it and a mutation."""

    def checks_and_diffs() -> Callable[[Any], list[Outcome]]:
        check = checker()

        def check_and_diff(case: Any) -> list[Outcome]:
            outcomes = check(case)
            rng = random.Random(repr(case))
            mutating.check(case, rng, [rng.choice(mutating.MUTATIONS)])
            if rng.random() < 0.2:  # it takes as long as ten times the rest
                mutating.check_cut(case, rng, rng.choice(mutating.MUTATIONS), rng.choice((0.8, 1.5, 4)))
            return outcomes

        return check_and_diff

    return dataclasses.replace(campaign, options=("--runs", *campaign.options), checker=checks_and_diffs)


def _checks(runner: Callable[[], Any]) -> Callable[[], Callable[[Any], list[Outcome]]]:
    def checker() -> Callable[[Any], list[Outcome]]:
        made = runner()
        return lambda case: [compare.check(case, made)]

    return checker


_CAMPAIGNS: Mapping[str, Campaign] = {
    "library": Campaign(
        (), 4, lambda seed, number: cases.case_number(seed, number, _features()), compare.describe, _checks(library)
    ),
    "jax": Campaign(
        ("--runner jax",),
        4,
        lambda seed, number: cases.case_number(seed, number, JAX_FEATURES),
        compare.describe,
        _checks(plain_jax),
    ),
    "kernels": Campaign(("--kernels",), 4, kernels.case_number, compare.describe, lambda: check_both_ways),
    "filters": Campaign(("--filters",), DEVICES, filters.case_number, filters.describe, lambda: filters.check),
    "watch": Campaign(("--watch",), 1, watching.case_number, compare.describe, lambda: watching.check),
    "devices": Campaign(
        ("--devices",),
        DEVICES,
        lambda seed, number: device_cases.case_number(seed, number, _features()),
        device_compare.describe,
        lambda: device_compare.check,
    ),
}

CAMPAIGNS: Mapping[str, Campaign] = {
    **_CAMPAIGNS,
    "runs": _with_runs(_CAMPAIGNS["library"], lambda: lambda case: [recording.check(case)]),
    "runs devices": _with_runs(_CAMPAIGNS["devices"], lambda: recording.check_devices),
    "runs kernels": _with_runs(_CAMPAIGNS["kernels"], lambda: lambda case: check_both_ways(case, recording.check)),
}
"""By name; those whose name begins with `runs` are recorded and read."""


@contextlib.contextmanager
def ends_if_stuck() -> Iterator[None]:
    """Ends the process with everybody's traceback, if what is inside takes too long."""
    faulthandler.dump_traceback_later(STUCK_AFTER, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def check_chunk(campaign: Campaign, seed: int, numbers: range, folder: Path) -> None:
    """Checks some cases, and leaves in the folder the tally after each, and the number of that which runs."""
    tally, check = Tally(), campaign.checker()
    for number in numbers:
        (folder / "running").write_text(str(number))
        case = campaign.case(seed, number)
        outcomes: list[Outcome] = []
        with ends_if_stuck():
            try:
                outcomes = check(case)
            except NotInJax:
                tally.errors["cases that JAX refuses without effects too"] += 1
            except AssertionError as error:
                tally.failures.append((number, str(error)))
        tally.count(case, outcomes)
        tally.peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        (folder / "partial").write_bytes(pickle.dumps(tally))
        (folder / "partial").replace(folder / "tally")
    (folder / "running").write_text("")


def _in_child(campaign: Campaign, seed: int, numbers: range) -> Tally:
    total = Tally()
    while numbers:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            options = " ".join(campaign.options).split()
            command = [sys.executable, "-m", "tests.oracle", *options, "--seed", str(seed)]
            command += ["--chunk", str(numbers.start), str(numbers.stop), name]
            done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
            if (folder / "tally").exists():
                total.add(pickle.loads((folder / "tally").read_bytes()))
            at = (folder / "running").read_text() if (folder / "running").exists() else str(numbers.start)
            if done.returncode == 0 and not at:
                return total
            number = int(at or numbers.stop - 1)
            said = f"the process ended with {done.returncode}\n{done.stderr[-3000:]}"
            total.failures.append((number, f"{said}\n{campaign.describe(campaign.case(seed, number))}"))
            numbers = range(number + 1, numbers.stop)
    return total


def _chunks(campaign: Campaign, seed: int, programs: int) -> list[range]:
    """The numbers of as many cases as hold that many programs, in chunks."""
    found = number = 0
    while found < programs:
        found += len({run.program for run in campaign.case(seed, number).runs})
        number += 1
    return [range(start, min(start + CHUNK, number)) for start in range(0, number, CHUNK)]


def run(campaign: Campaign, seed: int, programs: int, jobs: int) -> Tally:
    """Checks cases with so many programs, and prints what fails as it comes."""
    total, started, shown = Tally(), time.monotonic(), 0.0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        chunks = [pool.submit(_in_child, campaign, seed, numbers) for numbers in _chunks(campaign, seed, programs)]
        for future in concurrent.futures.as_completed(chunks):
            tally = future.result()
            total.add(tally)
            for number, text in tally.failures:
                print(f"\n=== case {number} failed; again: {campaign.again(seed, number)}\n{text}\n", flush=True)
            elapsed = time.monotonic() - started
            if elapsed - shown > 30:
                shown = elapsed
                rate = total.programs / elapsed
                print(f"{elapsed:6.0f} s  {total.programs} of {programs} programs, {rate:.1f}/s", flush=True)
    return total
