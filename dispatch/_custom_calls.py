"""Custom calls of the user's: their handlers go to the native side, and what handlers say comes back as an error."""

from __future__ import annotations

import re

import jax

from dispatch._sink import native
from effects import _errors as errors
from effects import _jax as compat
from effects import _targets
from effects._wire import CUSTOM_CALL_TARGET

_XLA = {"cpu": "cpu", "cuda": "CUDA", "rocm": "ROCM"}
"""Platforms as XLA names them."""

_ready: set[str] = set()  # platforms on which XLA knows the handler that calls the user's


def _prepare(platform: str) -> None:
    if platform not in _ready:
        compat.register_ffi_type("effects_custom_call", *native.loaded_call_type(), platform=_XLA[platform])
        stages = {stage: capsule for _, stage, capsule in native.custom_call_handlers()}
        jax.ffi.register_ffi_target(CUSTOM_CALL_TARGET, stages, platform=_XLA[platform])
        _ready.add(platform)


def _set_target(name: str, platform: str, address: int) -> None:
    _prepare(platform)
    native.set_target(name, platform, address)


_prepare("cpu")  # a program from elsewhere may come before any handler does
_targets.listen(_set_target)


def failure_in(error: BaseException, function: str) -> errors.CustomCallError | None:
    """What a handler said that made a program fail with this error, if nobody has been told yet."""
    for number in _NUMBER.findall(str(error)):
        if (taken := native.take_custom_call_failure(int(number))) is not None:
            target, where, code, message = taken
            return _error(target, where, _CODES.get(code, "UNKNOWN"), message.decode(errors="replace"), function)
    return None


def _error(target: str, where: str, code: str, message: str, function: str) -> errors.CustomCallError:
    text = errors.MSG_CUSTOM_CALL.format(
        target=target, where=where, code=code, message=message, function=f"`{function}`"
    )
    return errors.CustomCallError(text, target, where, code, message)


_NUMBER = re.compile(r"\(custom call failure (\d+)\)")

_CODES = {
    0: "OK",
    1: "CANCELLED",
    2: "UNKNOWN",
    3: "INVALID_ARGUMENT",
    4: "DEADLINE_EXCEEDED",
    5: "NOT_FOUND",
    6: "ALREADY_EXISTS",
    7: "PERMISSION_DENIED",
    8: "RESOURCE_EXHAUSTED",
    9: "FAILED_PRECONDITION",
    10: "ABORTED",
    11: "OUT_OF_RANGE",
    12: "UNIMPLEMENTED",
    13: "INTERNAL",
    14: "UNAVAILABLE",
    15: "DATA_LOSS",
    16: "UNAUTHENTICATED",
}
"""XLA's status codes."""
