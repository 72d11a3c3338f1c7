"""Errors for programs that failed because the handler of a custom call returned an error."""

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


def _failure_in(jax_errors: Iterable[BaseException], function: str) -> errors.CustomCallError | None:
    """Returns the error of the handler whose number is in JAX's errors, unless it has been raised already."""
    for number in re.findall(_NUMBER, "\n".join(map(str, jax_errors))):
        if (taken := native.take_custom_call_failure(int(number))) is not None:
            target, where, code, said_there = taken
            known = {"target": target, "where": where, "code": _CODES.get(code, "UNKNOWN")}
            known["message"] = said_there.decode(errors="replace")
            text = MSG_CUSTOM_CALL.format(function=f"`{function}`", **known)
            return errors.CustomCallError(text, **known)
    return None


read_failures_with(_failure_in)

_NUMBER = r"\(custom call failure (\d+)\)"

_CODES = dict(
    enumerate(
        [
            *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
            *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE"),
            *("UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
        ]
    )
)
"""XLA's status codes."""
