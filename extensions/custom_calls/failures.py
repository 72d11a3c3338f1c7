"""What handlers of custom calls said that made a program fail, as an error."""

from __future__ import annotations

import re
from collections.abc import Iterable

from effects import _errors as errors
from effects.dispatch.runtime.output_tokens import read_failures_with
from effects.lowering.native_module import native

MSG_CUSTOM_CALL = (
    "The custom call `{target}` at {where}, in {function}, failed. A handler that returns an error ends its program, "
    "and the next call begins anew. It returned {code}: {message}"
)


def _failure_in(said: Iterable[BaseException], function: str) -> errors.CustomCallError | None:
    """What a handler said that made a program fail, of which JAX has said this, if no caller has been given it yet."""
    for number in re.findall(_NUMBER, "\n".join(map(str, said))):
        if (taken := native.take_custom_call_failure(int(number))) is not None:
            target, where, code, message = taken
            return _error(target, where, _CODES.get(code, "UNKNOWN"), message.decode(errors="replace"), function)
    return None


def _error(target: str, where: str, code: str, message: str, function: str) -> errors.CustomCallError:
    text = MSG_CUSTOM_CALL.format(target=target, where=where, code=code, message=message, function=f"`{function}`")
    return errors.CustomCallError(text, target, where, code, message)


read_failures_with(_failure_in)

_NUMBER = r"\(custom call failure (\d+)\)"

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
