"""Exceptions. Their texts stand where they are raised: what happened, which rule it broke, what to do."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


class EffectError(RuntimeError):
    """An effect could not be carried out on the host. What went wrong is its `__cause__`.

    The call of the program raises it, if that waits for the effect; else the thread's next call or barrier does.

    Attributes:
        where: The user's line, as `file:line`; empty if it is not known.
        function: The name of the jitted function that was called.
        effect: The name of the effect.
        device: The device: its position in `jax.devices()`; -1 if all of the program's devices had it, or if it is not
            known.
        lane: Its lane under `vmap`: one number for each, the outermost first.
        token: Its token, which says where in the order of the thread's effects it was; empty if it is not known.
        counts: How many effects of the program came `"before"` it, were `"not_carried_out"` after it, or were
            `"replayed"` after it all the same, and how many callbacks that had been asked for were `"cancelled"`; those
            that are known and not 0.
        not_carried_out: How many effects of its program came after it and were therefore not carried out, by the name
            of the effect. The error's note says where the first of them is.
    """

    where: str = ""
    function: str = ""
    effect: str = ""
    device: int = -1
    lane: tuple[int, ...] = ()
    token: tuple[int, ...] = ()
    counts: Mapping[str, int] = MappingProxyType({})
    not_carried_out: Mapping[str, int] = MappingProxyType({})


class CustomCallError(EffectError):
    """A custom call failed, or has no handler.

    Attributes:
        target: The name of its handler.
        where: The user's line that called it.
        code: The name of the status that the handler returned, such as `"INVALID_ARGUMENT"`.
        message: What the handler said.
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
        lane: Its lane under `vmap`: one number for each, the outermost first.
        device: The device: its position in `jax.devices()`; -1 if all of the program's devices had the check.
        grid: Its place in a kernel's grid.
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


class FormatError(ValueError):
    """A format string and its arguments do not fit together. Raised while tracing."""


class FutureError(TypeError):
    """A program does not use a future of its own exactly once. Raised while tracing."""


class MissingTokenRule(NotImplementedError):
    """An effect is inside a primitive through which tokens cannot be carried."""


class NotDifferentiable(NotImplementedError):
    """A derivative was asked of what a callback returns."""


class BarrierTimeout(TimeoutError):
    """`effects_barrier` gave up waiting."""


def shown(thing: object) -> str:
    """What `repr` says of something, whatever it does; the beginning, if it is long."""
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
    """So many things, with their name in the number that fits."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def were(count: int) -> str:
    """The verb for so many things."""
    return "was" if count == 1 else "were"


TIMED_OUT = "DEADLINE_EXCEEDED"
"""In JAX's errors: a process did not come to a barrier in time."""
WAITED = "The program waited for its results and could not go on without them."
ENDED = "`fx.error_if` ends a program where its predicate is true."
NOTE_BEFORE = "{before} of the program came before it."
NOTE_LEFT_OUT = "After it, {left_out}, {were} not carried out."
NOTE_REPLAYED = "After it, {replayed} that {were} already recorded {were} replayed."
NOTE_CANCELLED = "{cancelled} that had been asked for did not run."
NOTE_NOT_CALLED = (
    "The call of that program had returned before. It is raised by this call of {function}, which was not made. Call "
    "`fx.effects_barrier()` to have it raised earlier."
)
NOTE_NEVER_WAS = "The rest of the program did not run."
NOTE_TOO_LARGE = (
    "What was raised held {size} bytes, and is not kept: so much may failures hold that no barrier has asked for yet."
)
NOTE_MORE_PROGRAMS = (
    "{more} of this thread's programs failed too, and {were} only counted{left_out}. Call `fx.effects_barrier()` more "
    "often."
)
NOTE_MANY_FAILURES = "{more} of this program failed too."
