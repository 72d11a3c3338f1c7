"""Running a sequence: what the sequential reading expects of it, and what a runner makes of it."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from tests.oracle.host import DISPATCH, Host, Runner, in_lane
from tests.oracle.jax_ import to_jax
from tests.oracle.language import Case, Failure, State
from tests.oracle.python_ import Reading
from tests.oracle.runners import write_line


class NotInJax(Exception):
    """JAX refuses the case without its effects too."""


@dataclass
class Outcome:
    """What a sequence of dispatches left behind. Errors are the labels of the callbacks that raised them."""

    states: list[tuple[int, ...] | str] = field(default_factory=list)  # of a dispatch that failed: the error
    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # which the barrier raised
    records: list[str] | None = None  # what was captured, as lines; of a callback only its label


def expect(case: Case) -> Outcome:
    outcome, reading = Outcome(), Reading()
    state: tuple[int, ...] = ()
    for number, run in enumerate(case.runs):
        state = state if run.state is None else run.state
        DISPATCH.set(number if case.context else 0)
        try:
            state = reading.interpret(run.program, state, number)
            outcome.states.append(state)
        except Failure as failure:
            outcome.states.append(str(failure))
    DISPATCH.set(0)
    outcome.lines, outcome.errors = reading.lines, reading.failures
    return outcome


class _Lines(logging.Handler):
    """Where events become lines among the others."""

    def emit(self, record: logging.LogRecord) -> None:
        write_line(f"{record.getMessage()} {record.levelname}{in_lane(record.effects_record.lane)}")


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
def _in_force(case: Case, outcome: Outcome) -> Iterator[None]:
    """What the case asks for, around its dispatches and the barrier."""
    with contextlib.ExitStack() as stack:
        if case.order != "thread":
            import effects as fx

            stack.enter_context(fx.config.override(order=case.order))
        records: Any = None
        if case.capture:
            import effects as fx

            records = stack.enter_context(fx.capture())
        yield
    if records is not None:
        outcome.records = []
        for record in records:
            text = record.text
            if record.effect in ("callback", "jax.debug", "jax.io_callback"):
                text = text.split("(", 1)[0]
            elif record.effect == "log":
                text += f" {logging.getLevelName(record.level)}{in_lane(record.lane)}"
            outcome.records.append(text)


def observe(case: Case, runner: Runner) -> Outcome:
    """Dispatches the programs one after another, waits once, and returns what came out."""
    host = Host(write_line, runner.actions)
    outcome = Outcome()
    with contextlib.redirect_stdout(io.StringIO()) as written, events_as_lines():
        try:
            with _in_force(case, outcome):
                results = _dispatch(case, runner, host)
                try:
                    runner.barrier()
                except* runner.error as group:
                    outcome.errors = [label_of_error(error, host) for error in group.exceptions]
            outcome.states = [
                state if isinstance(state, str) else tuple(int(value) for value in state) for state in results
            ]
        finally:
            DISPATCH.set(0)
    outcome.lines = written.getvalue().splitlines()
    return outcome


def _dispatch(case: Case, runner: Runner, host: Host) -> list[State | str]:
    jitted = {run.program: runner.jit(to_jax(run.program, runner, host)) for run in case.runs}
    results: list[State | str] = []
    state: State = ()
    for number, run in enumerate(case.runs):
        state = state if run.state is None else tuple(map(np.int32, run.state))
        args: State = (np.int32(number), *state)
        DISPATCH.set(number if case.context else 0)
        place: Any = contextlib.nullcontext()
        if run.device is not None:
            device = jax.devices()[run.device % len(jax.devices())]
            if run.by_default:
                place = jax.default_device(device)
            else:
                args = tuple(jax.device_put(args, device))
        try:
            with place:
                state = tuple(jitted[run.program](*args))
            results.append(state)
        except runner.error as error:
            results.append(label_of_error(error, host))
    return results


def label_of_error(error: BaseException, host: Host) -> str:
    """The label of the callback that raised what caused this error; anything else is an error of its own."""
    cause = error.__cause__
    if not any(cause is raised for raised in host.raised):
        raise error
    return str(cause)
