"""Exceptions. Their texts are next to the code that raises them: what happened, which rule it broke, what to do."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar, cast

_Error = TypeVar("_Error", bound=Exception)


class EffectError(RuntimeError):
    """An effect could not be carried out on the host. If an exception was raised there, it is the `__cause__`.

    The call of the program raises it, if the program waits for the effect; else the thread's next call or barrier.

    Attributes:
        where: The user's line, as `file:line`, in notebooks as `Cell In[3], line 2`; empty if it is not known.
        function: The name of the jitted function that was called.
        effect: The name of the effect.
        device: The device of the effect, as its position in `jax.devices()`; -1 if all of the program's devices had the
            effect, or if the device is not known.
        lane: The lane under `vmap`: one number for each `vmap`, the outermost first.
        token: The effect's token, its place in the order of the thread's effects; empty if it is not known.
        not_carried_out: The number of later effects of its program that were not carried out because of the failure, by
            the name of the effect. The error's text has the place of the first.
        failures: All failures that this error represents, itself included, in their order: those at the same line that
            were raised together; for an `EffectErrors`, those of all lines.
    """

    where: str = ""
    function: str = ""
    effect: str = ""
    device: int = -1
    lane: tuple[int, ...] = ()
    token: tuple[int, ...] = ()
    not_carried_out: Mapping[str, int] = MappingProxyType({})
    # Set when the error is raised: its number in the order of failures; later failures at the same line; the number of
    # further failures, which were only counted, with the newest one's reason.
    _number: int = 0
    _others: tuple[EffectError, ...] = ()
    _more: tuple[int, str] = 0, ""
    _stack: Any = None  # the stack of the program's call, if stacks are kept; dropped when the error is raised

    @property
    def failures(self) -> tuple[EffectError, ...]:
        return (self, *self._others)

    def _say(self, *sentences: str) -> None:
        super().__init__(" ".join([*map(str, self.args), *sentences]))

    def _count(self) -> int:
        return sum(1 + failure._more[0] for failure in self.failures)

    def __str__(self) -> str:
        text, newest = super().__str__(), self.failures[-1]
        if (count := self._count()) == 1:
            return text
        return f"{text} And {count - 1} more at this line, the last: {(newest._more[1] or reason(newest)).rstrip('.')}."


class CustomCallError(EffectError):
    """A custom call failed, or has no handler.

    Attributes:
        target: The name of the handler.
        where: The user's line that made the call.
        code: The name of the status that the handler returned, such as `"INVALID_ARGUMENT"`.
        message: The message of the handler's error.
    """

    def __init__(self, text: str, target: str = "", where: str = "", code: str = "UNKNOWN", message: str = ""):
        super().__init__(text)
        self.target: str = target
        self.where: str = where
        self.code: str = code
        self.message: str = message


class CheckError(EffectError):
    """A check of `fx.check` failed. The effects of its program went on.

    Attributes:
        message: The check's message, with its values.
        where: The user's line.
        lane: The check's lane under `vmap`: one number for each `vmap`, the outermost first.
        device: The device, as its position in `jax.devices()`; -1 if all of the program's devices had the check.
        grid: The index in a kernel's grid of the program that failed the check.
    """

    def __init__(
        self,
        text: str,
        message: str = "",
        where: str = "",
        lane: tuple[int, ...] = (),
        device: int = -1,
        grid: tuple[int, ...] = (),
    ):
        super().__init__(text)
        self.message: str = message
        self.where: str = where
        self.lane: tuple[int, ...] = lane
        self.device: int = device
        self.grid: tuple[int, ...] = grid


class EffectErrors(ExceptionGroup[EffectError], EffectError):
    """Failures at several lines of the user's source: an exception group of the first failure at each line.

    The group has the attributes of the first failure of all. Failed checks are a `CheckErrors`, and failed custom calls
    a `CustomCallErrors`, so that `except fx.CheckError` catches one failed check and many.
    """

    def __init__(self, message: str, exceptions: Sequence[EffectError]):
        super().__init__(message, exceptions)
        known = vars(self.exceptions[0]).items()
        vars(self).update({name: x for name, x in known if name != "message" and not name.startswith("_")})

    @property
    def failures(self) -> tuple[EffectError, ...]:
        failures = [failure for first in self._firsts for failure in first.failures]
        return tuple(sorted(failures, key=lambda failure: failure._number))

    @property
    def _firsts(self) -> tuple[EffectError, ...]:
        return cast(Any, self.exceptions)

    def derive(self, excs: Sequence[Any], /) -> Any:
        return group_of(excs)

    def __str__(self) -> str:
        lines = ", ".join(f"{first._count()} at {first.where or 'another place'}" for first in self._firsts)
        return f"{self.message.rstrip('.')}. This is the first of {self._count()} failures: {beginning(lines)}."


class CheckErrors(EffectErrors, CheckError):  # pyright: ignore[reportIncompatibleVariableOverride]
    """Checks at several lines failed. `message` is the first check's."""


class CustomCallErrors(EffectErrors, CustomCallError):  # pyright: ignore[reportIncompatibleVariableOverride]
    """Custom calls at several lines failed. `message` is from the first call's handler."""


def group_of(failures: Sequence[BaseException]) -> BaseExceptionGroup[Any]:
    """Several failures as one, of their nearest common class."""
    kinds: Any = (CheckError, CheckErrors), (CustomCallError, CustomCallErrors), (EffectError, EffectErrors)
    group = next((group for kind, group in kinds if all(isinstance(x, kind) for x in failures)), BaseExceptionGroup)
    return group(reason(failures[0]), tuple(failures))  # a group is pickled with its arguments


def reason(failure: BaseException) -> str:
    """The short text of a failure: its message, or that of its cause."""
    cause = failure.__cause__
    return getattr(failure, "message", "") or (str(failure) if cause is None else shown(cause))


class _Explained(Exception):
    """An error whose text ends with the page that explains it."""

    _page: str

    def __str__(self) -> str:
        return _with_page(super().__str__(), self._page)


def _with_page(text: str, page: str) -> str:
    return f"{text}{chr(10) if chr(10) in text else ' '}See {page}."


def _wrong_call(kind: type[_Error], text: str) -> _Error:
    """An error of Python's. Its text ends with the `_PAGE` of the module that raises it, or of a package around it."""
    names = sys._getframe(1).f_globals
    while "_PAGE" not in names and names["__name__"] != "effects":
        names = vars(sys.modules[names["__name__"].rpartition(".")[0]])
    return kind(_with_page(text, names.get("_PAGE", "docs/troubleshooting.md")))


type_error = functools.partial(_wrong_call, TypeError)
value_error = functools.partial(_wrong_call, ValueError)
runtime_error = functools.partial(_wrong_call, RuntimeError)
unsupported = functools.partial(_wrong_call, NotImplementedError)


class FormatError(_Explained, ValueError):
    """A format string and its arguments do not fit together. Raised while tracing."""

    _page = "docs/troubleshooting.md#formats-and-arguments"


class FutureError(_Explained, TypeError):
    """A program does not use one of its futures exactly once. Raised while tracing."""

    _page = "docs/guide/asynchronous.md"


class MissingTokenRule(_Explained, NotImplementedError):
    """An effect is inside a primitive through which tokens cannot be carried."""

    _page = "docs/reference/transformations.md"


class NotDifferentiable(_Explained, NotImplementedError):
    """An effect, or the results of one, cannot be differentiated."""

    _page = "docs/reference/transformations.md"


class BarrierTimeout(_Explained, TimeoutError):
    """`effects_barrier` gave up waiting."""

    _page = "docs/how-to/hangs.md"


for _public in [*globals().values()]:
    if isinstance(_public, type) and issubclass(_public, Exception):
        _public.__module__ = "effects"  # so that tracebacks show `effects.Name`, the public name


def shown(thing: object) -> str:
    """The `repr` of an object, even if that raises; only the beginning, if it is long."""
    try:
        text = repr(thing)
    except BaseException:
        return f"an object of type {type(thing).__qualname__}"
    return beginning(text)


def beginning(text: str) -> str:
    """A text, or its beginning if it is long."""
    return text if len(text) <= _LONG else f"{text[:_LONG]}... ({len(text)} characters)"


_LONG = 4000


def counted(count: int, what: str) -> str:
    """A count with its noun, in singular or plural."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


MSG_STAYS = (
    "{program} cannot leave this process: it calls back the function `{name}` at {where}. A function cannot travel "
    "with a program: its name can. Decorate it with `@fx.register_callback('some.name')`, here and where the program "
    "will run."
)
MSG_STAYS_FOR_OURS = (
    "{program} cannot leave this process: it has `{name}` at {where}. `{name}` works only in the process that traced "
    "the program. Take `{name}` out of the program."
)


def why_it_stays(program: str, name: str, where: object) -> str:
    """The message that a callback's function keeps a program in its process, with the remedy."""
    message = MSG_STAYS_FOR_OURS if name.startswith("fx.") else MSG_STAYS
    return message.format(program=program, name=name, where=where)


def numbered(name: str, numbers: Sequence[int]) -> str:
    """A name with numbers, such as `lane 3` or `lane (0, 1)`; empty if there are no numbers."""
    return f"{name} {numbers[0] if len(numbers) == 1 else numbers}" if numbers else ""


def were(count: int) -> str:
    """The verb for a count."""
    return "was" if count == 1 else "were"


TIMED_OUT = "DEADLINE_EXCEEDED"
"""The status in JAX's errors when a process did not reach a barrier in time."""
WAITED = "The program waited for its results and ended there."
ENDED = "`fx.error_if` ended the program there."
NOTE_LEFT_OUT = "After it, {left_out}, {were} not carried out."
NOTE_NOT_CALLED = (
    "The call of that program had returned before. The failure is raised by this call of {function}, which was not "
    "made. Call `fx.effects_barrier()` to have it raised earlier."
)
NOTE_MORE_PROGRAMS = (
    "{more} of this thread's programs failed too, and {were} only counted. Call `fx.effects_barrier()` more often."
)
