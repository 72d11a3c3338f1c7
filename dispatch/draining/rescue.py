"""What is done about programs that cannot end by themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from effects import _errors as errors
from effects._wire import INDEX, PHASE, in_region
from effects.dispatch.draining.answers import answer_with
from effects.dispatch.draining.failures import Failures
from effects.dispatch.draining.host_runs import HostRuns
from effects.dispatch.draining.watchdog import Running, Watch
from effects.lowering.host.native import native


def free_stuck(
    running: dict[int, Any], stuck: Iterable[tuple[int, Running, str]], failures: Failures, host_runs: HostRuns
) -> None:
    """Fails programs that wait for a function which waits for what cannot come before they end. `running`: what the
    drain's threads run, as `Drain.running`; `stuck`: those that the watchdog has found, and why."""
    for thread, function, message in stuck:
        now = running.get(thread)
        if now is None or now[:4] != (function.site, function.key, function.token, function.reply):
            continue  # it has just ended
        failure = errors.EffectError(message.format(name=function.name, where=function.where))
        running[thread] = (*now[:3], 0, *now[4:])
        failures.end_program(function.key, failure, function.token[INDEX])
        host_runs.fail(function.key)
        answer_with(function.reply, failure)
        if in_region(function.token[PHASE]):  # the other devices' functions do not begin before this one ends
            native.end_program(*function.key)


def let_asked_pass(watch: Watch, running: Mapping[int, Running], suspended: Collection[int]) -> None:
    """Lets the callbacks of programs that JAX has dispatched pass functions that wait for these programs. `running`: by
    the identity of their threads; `suspended`: the numbers of the threads whose streams are suspended for functions."""
    for thread in watch.find_waiting(running, suspended, bool(suspended) and native.is_asked_held_up()):
        native.let_asked_pass(thread)
