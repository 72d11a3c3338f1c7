"""Programs that have failed on some of their devices and are not over on the others."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from effects import _errors as errors
from effects._model.device import device_place
from effects.dispatch.draining.failure_log import log_failure
from effects.dispatch.draining.failures import Failures, ProgramKey
from effects.dispatch.draining.output_tokens import FailedOnSome, failed_on_some_devices
from effects.dispatch.streams.table import Streams
from effects.lowering.native_module import native

MSG_NOT_OVER = (
    "{failure} That was on {failed}, and the program has not ended on {others} since. A device that waits in a "
    "collective for one that has failed does not go on, and on CPUs XLA ends the process after a while. Fail on all "
    "devices, or return a value that says so."
)

_PATIENCE = 5.0
"""Seconds for which a program must have failed on some devices, and not be over on others, before that is logged."""


class OtherDevices:
    """What is known of these programs. The leader of the drain looks for them now and then."""

    def __init__(self, streams: Streams, failures: Failures, fail: Callable[[ProgramKey], None]) -> None:
        self._streams = streams
        self._failures = failures
        self._fail = fail
        self._since: dict[ProgramKey, float] = {}  # when each was first seen; infinite once it is logged

    def look(self) -> None:
        """The others wait for what the devices that have failed would have done. In the order of effects these are left
        out, and exchanges fail, also those that were started since. If a callback has ended the program that is enough:
        the others' callbacks have their places, and are answered and counted there."""
        before, self._since = self._since, {}
        for failed in failed_on_some_devices(self._streams, native.any_operations()):
            program = failed.program
            for device in failed.devices:
                native.lose(*program, device)
            self._fail(program)
            if not self._failures.has_ended(program):
                native.end_program(*program)
            now = time.monotonic()
            since = before.get(program, now)
            if now - since >= _PATIENCE:
                since = math.inf
                self._log(failed)
            self._since[program] = since

    def _log(self, failed: FailedOnSome) -> None:
        """XLA may end the process, so that no caller hears of the failure."""
        failure = self._failures.ending_of(failed.program) or failed.failure
        shown = failure if isinstance(failure, errors.EffectError) else errors.shown(failure)
        logged = errors.EffectError(
            MSG_NOT_OVER.format(failure=shown, failed=_named(failed.devices), others=_named(failed.others))
        )
        if isinstance(failure, errors.EffectError):
            vars(logged).update(vars(failure))
        logged.__cause__ = failure.__cause__
        log_failure(logged)


def _named(devices: list[int]) -> str:
    places = ", ".join(map(str, sorted(map(device_place, devices))))
    return f"device {places}" if len(devices) == 1 else f"devices {places}"
