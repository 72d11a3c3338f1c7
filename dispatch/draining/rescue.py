"""What is done about programs that cannot end by themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from effects import _errors as errors
from effects._api.log import LOGGER
from effects._model.wire import PHASE, in_region
from effects.dispatch.draining.answers import answer_with
from effects.dispatch.draining.beside import Beside
from effects.dispatch.draining.failures import Failures
from effects.dispatch.draining.watchdog import Running, Watch
from effects.lowering.native_module import native


def rescue(
    watch: Watch,
    functions: Mapping[int, Running],
    running: dict[int, Any],
    suspended: Collection[int],
    failures: Failures,
    beside: Beside,
) -> None:
    """Looks whether functions wait for what cannot come.

    Args:
        watch: What was seen of them before.
        functions: Those that run, by the identity of their threads.
        running: The same, as `Drain.running`.
        suspended: The numbers of the threads whose streams are suspended for functions.
        failures: What has failed so far.
        beside: Functions that run beside their programs.
    """
    _free_stuck(running, watch.find_stuck(functions), failures, beside)
    for message in watch.find_waiting_for_gpus(functions):
        LOGGER.warning(message)
    _let_asked_pass(watch, functions, suspended)
    watch.stall.look(functions)


def _free_stuck(
    running: dict[int, Any], stuck: Iterable[tuple[int, Running, str]], failures: Failures, beside: Beside
) -> None:
    """Fails programs that wait for a function which waits for what cannot come before they end. `stuck`: those that the
    watchdog has found, and why."""
    for thread, function, message in stuck:
        now = running.get(thread)
        if now is None or now[:4] != (function.site, function.key, function.token, function.reply):
            continue  # it has just ended
        failure = errors.EffectError(message.format(name=function.name, where=function.where))
        running[thread] = (*now[:3], 0, *now[4:])
        failures.end_program(function.key, failure, function.token)
        beside.fail(function.key)
        answer_with(function.reply, failure)
        if in_region(function.token[PHASE]):  # the other devices' functions do not begin before this one ends
            native.end_program(*function.key)


def _let_asked_pass(watch: Watch, functions: Mapping[int, Running], suspended: Collection[int]) -> None:
    """Lets the callbacks of programs that JAX has dispatched pass functions that wait for these programs."""
    for thread in watch.find_waiting(functions, suspended, bool(suspended) and native.is_asked_held_up()):
        native.let_asked_pass(thread)
