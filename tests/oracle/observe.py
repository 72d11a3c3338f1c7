"""Running a sequence: what the sequential reading expects of it, and what a runner makes of it."""

from __future__ import annotations

import contextlib
import io
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

import effects as fx
from tests.oracle.host import DISPATCH, Host, Runner, in_lane
from tests.oracle.jax_ import to_jax
from tests.oracle.language import Case, Failure, State
from tests.oracle.python_ import Reading
from tests.oracle.rings import HeldOutput, count_dropped, drops, in_force, in_new_thread
from tests.oracle.runners import eager_effect, write_line
from tests.oracle.tokens import Place, Seen, seen_of

EAGER_LABEL = "outside"
"""Begins the lines of JAX's own effects between dispatches."""


class NotInJax(Exception):
    """JAX refuses the case without its effects too."""


@dataclass
class Outcome:
    """What a sequence of dispatches left behind. Errors are the labels of the callbacks that raised them."""

    states: list[tuple[int, ...] | str] = field(default_factory=list)  # of a dispatch that failed: the error
    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # which the barrier raised; of a check its message, and where
    records: list[str] | None = None  # what was captured, as lines; of a callback only its label
    left_out: int = 0  # effects that errors say were not carried out; expected: those in the domain of the failure
    ends: list[int] | None = None  # expected, if it is known: how many lines there are after each dispatch
    stopped: list[int] = field(default_factory=list)  # expected: dispatches whose effects have, but not the program
    tokens: list[Seen] | None = None  # and what each record says of itself
    dropped: int = 0  # records
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)  # of prints with filters: come, and shown
    rewritten: int = 0  # expected: how many programs had kernels that wrote logs
    at_barriers: list[tuple[int, list[str]]] = field(default_factory=list)  # by dispatch: the lines that were out
    at_eager: list[tuple[int, list[str]]] = field(default_factory=list)  # and when effects of JAX's own happened
    at_errors: list[tuple[int, list[str]]] = field(default_factory=list)  # and where calls raised
    places: list[Place | None] | None = None  # of an expected outcome: where the record of each line should stand


def expect(case: Case, kind: type[Reading] = Reading) -> Outcome:
    """What a reading of this kind expects of the case."""
    outcome, reading = Outcome(rewritten=len(case.rewritten)), kind(case.after_error == "stop", case.rewritten)
    outcome.ends = ends = []
    state: tuple[int, ...] = ()
    committed: int | None = None  # to which device the state is
    for number, run in enumerate(case.runs):
        if run.state is not None:
            state, committed = run.state, None
        place = None if run.device is None else run.device % len(jax.devices())
        at = committed if run.by_default or place is None else place
        reading.device = next(device for device in (at, place, 0) if device is not None)
        DISPATCH.set(number if case.context else 0)
        if run.change:
            reading.filters.change(run.change)
        try:
            state = reading.interpret(run.program, state, number)
            committed = reading.device if run.exported else at  # JAX commits what an exported program returns
            outcome.states.append(state)
            if reading.stopped:
                outcome.stopped.append(number)
        except Failure as failure:
            outcome.states.append(str(failure))
        ends.append(len(reading.lines))
    DISPATCH.set(0)
    outcome.lines, outcome.errors, outcome.left_out = reading.lines, reading.failures, reading.left_out
    outcome.places, outcome.counts = reading.notes.places, reading.filters.counts()
    return outcome


class _Lines(logging.Handler):
    """Where events become lines among the others."""

    def emit(self, record: logging.LogRecord) -> None:
        write_line(
            f"{record.getMessage()} {record.levelname}{in_lane(record.effects_record.lane, record.effects_record.grid)}"
        )


@contextlib.contextmanager
def events_as_lines() -> Iterator[None]:
    logger, handler = logging.getLogger("effects"), _Lines()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


@contextlib.contextmanager
def _in_force(case: Case, outcome: Outcome, runner: Runner) -> Iterator[None]:
    """What the case asks for, around its dispatches and the barrier."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(in_force(case))
        stack.enter_context(runner.in_case())
        import effects as fx

        # A case dispatches all its programs, whichever of them fail.
        settings = {"order": case.order, "after_error": case.after_error, "errors": "barrier", "sync": case.sync}
        stack.enter_context(fx.config.override(**settings))
        records: Any = None
        if case.capture:
            records = stack.enter_context(fx.capture())
        yield
    if records is not None:
        # Of an asynchronous operation only what its function prints is a line.
        records = [record for record in records if record.effect != "async" and not record.text.startswith("async_")]
        outcome.records, outcome.tokens = [], [seen_of(record) for record in records]
        for record in records:
            text = record.text
            if record.effect == "check":
                text += in_lane(record.lane, record.grid)
            elif record.effect in ("callback", "queued_apart", "jax.debug", "jax.io_callback"):
                text = text.split("(", 1)[0]
            elif record.effect == "log":
                text += f" {logging.getLevelName(record.level)}{in_lane(record.lane, record.grid)}"
            outcome.records.append(text)


def observe(case: Case, runner: Runner) -> Outcome:
    """Dispatches the programs one after another, waits once, and returns what came out."""
    return in_new_thread(lambda: _observe(case, runner)) if case.rings else _observe(case, runner)


def _observe(case: Case, runner: Runner) -> Outcome:
    host = Host(write_line, runner.actions)
    outcome = Outcome()
    before = count_dropped() if drops(case) else 0
    with contextlib.redirect_stdout(HeldOutput(drops(case))) as written, events_as_lines():
        try:
            with _in_force(case, outcome, runner):
                jitted = {run.program: runner.jit(to_jax(run.program, runner, host)) for run in case.runs}

                def barrier(**options: Any) -> None:
                    try:
                        runner.barrier(**options)
                    except runner.error as error:
                        outcome.errors += [label_of_error(failure, host) for failure in failures_of(error)]
                        outcome.left_out += sum(map(_left_out, failures_of(error)))

                try:
                    results = _dispatch(case, jitted, runner, host, barrier, outcome, written)
                finally:
                    host.gate.set()
                    written.release()
                barrier()
                outcome.counts = runner.counts()
            outcome.states = [
                state if isinstance(state, str) else tuple(int(value) for value in state) for state in results
            ]
        finally:
            DISPATCH.set(0)
    outcome.lines = []
    for line in without_signed_zeros(written.getvalue().splitlines()):
        if line.startswith(f"{EAGER_LABEL} "):
            outcome.at_eager.append((int(line.split(" ")[1]), [*outcome.lines]))
        else:
            outcome.lines.append(line)
    outcome.records = None if outcome.records is None else without_signed_zeros(outcome.records)
    outcome.dropped = count_dropped() - before if drops(case) else 0
    return outcome


def without_signed_zeros(lines: Iterable[str]) -> list[str]:
    """A slope of zero has a sign in JAX, and none in the reading by whole numbers."""
    return [_ZERO.sub("0.0", line) for line in lines]


_ZERO = re.compile(r"(?<= )-0\.0(?![0-9])")


def _left_out(error: Any) -> int:
    """How many effects an error says were not carried out."""
    return sum(error.not_carried_out.values())


def _dispatch(
    case: Case,
    jitted: dict[Any, Any],
    runner: Runner,
    host: Host,
    barrier: Callable[..., None],
    outcome: Outcome,
    written: io.StringIO,
) -> list[State | str]:
    """The results. Counts how many effects their errors say were not carried out."""
    results: list[State | str] = []
    state: State = ()
    for number, run in enumerate(case.runs):
        state = state if run.state is None else tuple(map(np.int32, run.state))
        args: State = (np.int32(number), *state)
        if run.held:
            barrier()  # a program that waits for a callback may wait for those of programs before it
            host.gate.clear()
        DISPATCH.set(number if case.context else 0)
        if run.change:
            barrier()
            in_new_thread(lambda run=run: runner.change(run.change))
        place: Any = contextlib.nullcontext()
        rewriting = runner.rewriting() if run.program in case.rewritten else contextlib.nullcontext()
        if run.device is not None:
            device = jax.devices()[run.device % len(jax.devices())]
            if run.by_default:
                place = jax.default_device(device)
            else:
                args = tuple(jax.device_put(args, device))
        try:
            with place, rewriting:
                call = jitted[run.program]
                if run.exported:
                    if (run.program, "exported") not in jitted:
                        jitted[run.program, "exported"] = runner.export(call, *args)
                    call = jitted[run.program, "exported"]
                state = tuple(call(*args))
            results.append(state)
        except runner.error as error:
            results.append(label_of_error(error, host))
            outcome.left_out += _left_out(error)
            outcome.at_errors.append((number, without_signed_zeros(written.getvalue().splitlines())))
        if run.barrier:
            barrier(effects=run.barrier)
            outcome.at_barriers.append((number, without_signed_zeros(written.getvalue().splitlines())))
            host.gate.set()
        if run.eager:
            eager_effect(run.eager, EAGER_LABEL, number)
    return results


def failures_of(error: BaseException) -> Sequence[BaseException]:
    """All that what a barrier has raised stands for."""
    return error.failures if isinstance(error, fx.EffectError) else [error]


def label_of_error(error: BaseException, host: Host) -> str:
    """The label of the callback that raised what caused this error, or what a check says; anything else is an error of
    its own."""
    if isinstance(error, fx.CustomCallError):
        return error.message
    if (message := getattr(error, "message", None)) is not None:
        failed: Any = error  # a `CheckError`
        return f"{message}{in_lane(failed.lane, failed.grid or None)}"
    cause = error.__cause__
    if not any(cause is raised for raised in host.raised):
        raise error
    return str(cause)
