"""What a program runs on, and what its callbacks do.

Both are the same for all readings, which differ in how lines and actions come about.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.oracle.language import EFFECTS, FEATURES, MODULUS, Failure

if TYPE_CHECKING:
    from tests.oracle.statements.callback import Callback

DISPATCH: contextvars.ContextVar[int] = contextvars.ContextVar("dispatch", default=0)
"""Which dispatch it is, where a sequence says so. Callbacks show it."""


def simulated(kernel: Callable[..., Any], *, grid_order: Any = None, **options: Any) -> Callable[..., Any]:
    """A kernel that JAX simulates. It knows one order of its grid."""
    from jax.experimental import pallas  # takes a second to import and few programs need it

    del grid_order
    return pallas.pallas_call(kernel, interpret=True, **options)


@dataclass(frozen=True)
class Runner:
    """What a program runs on: the library, or something else that makes the same promise."""

    jit: Callable[[Callable[..., Any]], Callable[..., Any]]
    emit: Mapping[str, Callable[[str, tuple[Any, ...]], None]]  # print's kind -> emit(label, operands)
    log: Callable[..., None]  # log(label, level, ordered, fields)
    print_grad: Callable[[str, Any], Any]
    fail: Callable[[str, Any], None]  # fail(label, predicate), by a custom call
    check: Callable[..., None]  # check(predicate, format, *operands)
    callback: Callable[..., Any]  # callback(fn, results, *args, ordered=, [pass_record=], **kwargs)
    jax_callback: Callable[..., Any]  # jax_callback(kind, fn, results, *args, **kwargs): one of JAX's own
    barrier: Callable[..., object]  # for the effects of a name, if one is given
    actions: Mapping[str, Callable[[str, str, int], None]]  # what callbacks do, under the names of `ACTIONS`
    error: type[Exception]  # what a failing callback becomes; its cause is what the callback raised
    features: frozenset[str] = FEATURES
    filtered: Callable[..., None] = lambda *_: None  # filtered(label, every, first, once, when, operands)
    change: Callable[[str], None] = lambda _: None  # of the filters that there are now: one of CHANGES
    counts: Callable[[], dict[str, tuple[int, int]]] = dict  # by label of a print with a filter: count, and shown
    in_case: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext  # around all dispatches of a case
    kernel: Callable[..., Any] = simulated  # as `pl.pallas_call`
    rewriting: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext  # in it kernels write logs
    asynchronous: Any = None  # has `async_callback`, `async_start`, `async_update` and `async_done`
    export: Callable[..., Callable[..., Any]] = lambda jitted, *args: jitted  # of these arguments, read again


class Host:
    """What callbacks do and know: the same for both readings, which differ in how lines and actions come about."""

    def __init__(self, write: Callable[[str], None], actions: Mapping[str, Callable[[str, str, int], None]]):
        self.write = write
        self.actions = actions
        self.memory = 0  # of all ordered calls so far, in their order
        self.calls: collections.Counter[str] = collections.Counter()
        self.raised: list[Failure] = []
        self.gate = threading.Event()  # functions of the kind "queued_apart" return once it is open
        self.gate.set()

    def call(
        self, callback: Callback, values: Sequence[int], lane: tuple[int, ...], grid: tuple[int, ...] | None = None
    ) -> list[int]:
        """Runs a callback. Returns the numbers of which its results are made."""
        self.write(f"{' '.join([callback.label, *map(str, values), f'@{DISPATCH.get()}'])}{in_lane(lane, grid)}")
        value = sum((j + 1) * y for j, y in enumerate(values)) % MODULUS
        who = "o" if EFFECTS[callback.kind] else "u"
        for action in callback.actions:
            self.actions[action](callback.label, who, value)
        if callback.kind == "queued_apart":
            self.gate.wait()
        self.calls[callback.label] += 1
        if self.calls[callback.label] == callback.fails_at:
            self.raised.append(Failure(callback.label))
            raise self.raised[-1]
        if callback.remembers:
            self.memory = (31 * self.memory + value + 1) % MODULUS
            value += self.memory
        return callback.numbers(value)


def in_lane(lane: tuple[int, ...], grid: tuple[int, ...] | None = None) -> str:
    """How a line says in which lane it is, and in which program of a kernel's grid; nothing outside of both."""
    return (f" lane {lane}" if lane else "") + ("" if grid is None else f" grid {grid}")
