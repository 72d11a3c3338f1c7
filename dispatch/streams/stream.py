"""A stream: a thread's sequence of epochs, one for every program that it dispatched.

The runtime token that a program takes holds the stream's and the epoch's number; it comes from the host, so no program
waits for another to get it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from effects._config import config
from effects._jax import (
    Array,
    forget_fast_paths,
    launches_take_threads,
    only_device,
    platform_of,
    sharding_of_call,
    with_flat_arguments,
)
from effects._model.device import PLATFORMS
from effects._model.site import Site
from effects._model.text import FOLLOWS_NUMPY, print_options
from effects._model.wire import ProgramTraits
from effects.dispatch.streams.outputs import may_wait, share
from effects.dispatch.streams.tokens import PlacedTokens, token_memory
from effects.lowering.native_module import native


class WouldTrace(Exception):
    """What a call raises instead of tracing, where the native stream forbids it: `dispatch/native/python/launch.h`."""


_NO_LOCK = contextlib.nullcontext()


class Stream:
    """One thread's epochs.

    `open`, `token`, `call` and `call_plain` are the native stream's own: every call goes through them.

    `calls` is keyed by epoch number and holds the epochs that have not ended, each as (`Caller`, standard output,
    context). Who dispatches adds, drain threads remove. A number is not met again while it is a key, since numbers are
    handed out one after the other and wrap around after four billion.

    `running` is keyed by epoch number too, and holds those of `calls` whose program may still fail, as
    (`ProgramTraits`, output token); the token is ready when the program is over, and failed if it failed. Who
    dispatches adds after the call has returned; both it and drain threads remove.

    `unsettled` is keyed by epoch number: programs that call handlers of the user's, each as (its name,
    `ProgramTraits`, output token). Whether such a handler has failed has not been looked at. Who dispatches adds; who
    waits for the program, or calls the next one, removes.

    `stacks` is keyed by epoch number: from where the program was called, if native code was told to keep that. The
    native stream adds, drain threads remove.

    `eager` is keyed by epoch number: sites of effects that happened outside of programs. They are not remembered beyond
    their epoch, since a program's text may make a new one at every call.

    `entering` is keyed by epoch number: the functions of calls that may wait for callbacks and have not returned, each
    with how many fast paths JAX had for it when the call began. The calling thread writes it.

    `dispatching` holds the numbers of the epochs whose calls have not returned, the outermost first: those of the
    calling thread, which writes it.

    `held_for` is set for the stream of an asynchronous callback's function until its done: the number of the thread
    whose program has started it. Nothing of the stream becomes visible before.
    """

    dispatch_lock: Any = _NO_LOCK
    """A thread has it from where its program gets a number until the program is called."""

    open: Callable[[native.Caller, list[int]], int]
    token: Callable[[int], np.ndarray]
    call: Callable[..., tuple[Any, Any]]
    call_plain: Callable[[native.Caller, Any, tuple[Any, ...], dict[str, Any]], Any]

    def __init__(self, thread: int, launching: Any):
        """`launching`: the lock under which programs are put on several devices; None if this stream does without."""
        self.thread = thread
        self._native = native.Stream(thread, StreamHost(thread), Array, launching, WouldTrace)
        self.open, self.token, self.call = self._native.open, self._native.token, self._native.call
        self.call_plain = self._native.call_plain
        self.calls: dict[int, Any] = self._native.calls
        self.running: dict[int, tuple[ProgramTraits, Any]] = self._native.running
        self.unsettled: dict[int, tuple[str, ProgramTraits, Any]] = self._native.unsettled
        self.stacks: dict[int, Any] = self._native.stacks
        self.eager: dict[int, Site] = {}
        self.entering: dict[int, tuple[Any, int]] = {}
        self.is_nested: bool = launching is None
        self.dispatching: list[int] = self._native.dispatching
        self.held_for: int | None = None

    def set_here(self) -> None:
        """It is the calling thread's from now on."""
        self._native.set_here()

    def hold(self, caller: int) -> None:
        self.held_for = caller
        native.hold(self.thread)

    def let_go(self) -> None:
        native.let_go(self.thread)
        self.held_for = None  # last: then the stream may be forgotten

    @property
    def newest_calling(self) -> int:
        """The number of the newest epoch whose program calls back; -1 if there was none."""
        return self._native.newest_calling

    def unreturned(self) -> list[int]:
        """The numbers of the epochs whose calls have not returned, of all threads."""
        return self.dispatching

    def thread_of(self, number: int) -> object:
        """What stands for the thread that opened an epoch, where the stream is not one thread's."""
        return None

    def fail(self, number: int) -> None:
        """The program failed or never ran: nothing more will come from it."""
        native.fail(self.thread, number)

    def settle(self, number: int) -> tuple[str, ProgramTraits, Any] | None:
        """Whether a handler of this program has failed is about to be looked at, by the caller alone: returns what
        `unsettled` has. None if another has taken it."""
        return self.unsettled.pop(number, None)

    def drop(self, first: int, count: int) -> None:
        """These epochs have ended. A drain thread calls it."""
        for number in range(first, first + count):
            number &= 0xFFFFFFFF
            self.calls.pop(number, None)  # a call that was interrupted may not have got here
            if self.running:
                self.running.pop(number, None)
            if self.eager:
                self.eager.pop(number, None)
            if self.stacks:
                self.stacks.pop(number, None)
        native.open_gates(self.thread, first, count)


class SharedStream(Stream):
    """The one stream of all threads, with `order="process"`."""

    def __init__(self, thread: int, launching: Any, this_thread: Callable[[], object]):
        """`this_thread()`: what stands for the calling thread."""
        self._dispatching: dict[int, list[int]] = {}  # by the thread's identity
        self._threads: dict[int, object] = {}  # by epoch number, those that have not ended: what stands for the thread
        self._this_thread = this_thread
        self._launching = launching
        super().__init__(thread, launching)
        self.open: Callable[[native.Caller, list[int]], int] = self._open

    def _open(self, caller: native.Caller, dispatching: list[int]) -> int:
        number = self._native.open(caller, dispatching)
        self._threads[number] = self._this_thread()
        return number

    def drop(self, first: int, count: int) -> None:
        super().drop(first, count)
        for number in range(first, first + count):
            if (number & 0xFFFFFFFF) not in self.unsettled:  # else a failure may still have to know it
                self._threads.pop(number & 0xFFFFFFFF, None)

    def thread_of(self, number: int) -> object:
        return self._threads.get(number)

    @property
    def dispatch_lock(self) -> Any:  # type: ignore[override]
        """Several devices run programs in the order in which they get them, and one that waits for a callback blocks
        those behind it. The callback waits for the epochs ahead of its own, so devices must get them in that order."""
        return self._launching if several_devices() else _NO_LOCK

    @property
    def dispatching(self) -> list[int]:  # type: ignore[override]
        return self._dispatching.setdefault(threading.get_ident(), [])

    @dispatching.setter
    def dispatching(self, value: list[int]) -> None:
        self._dispatching[threading.get_ident()] = value

    def unreturned(self) -> list[int]:
        return [number for numbers in list(self._dispatching.values()) for number in list(numbers)]


class StreamHost:
    """What a native stream asks Python for. It must not refer to the stream, which would then never be freed: Python's
    collector does not see what a native object refers to."""

    def __init__(self, thread: int):
        self._thread = thread
        self._placed = PlacedTokens(thread)

    def make_tokens(self, first: int, count: int) -> list[np.ndarray]:
        """The runtime tokens of so many epochs, on the host."""
        return list(token_memory(self._thread, first, count))

    def one_device(self) -> bool:
        """Whether there is one device in all, of whatever platform. Asked once."""
        return only_device() is not None

    def find_pool(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, native.Pool | None]:
        """The sharding of these arguments, if they lie on several devices, and the tokens on the devices that they
        name; None if they name none."""
        return self._placed.find_pool(args, kwargs)

    def find_pool_on(self, sharding: Any) -> native.Pool | None:
        """The tokens on the one device of a sharding; None if there are several."""
        return self._placed.find_pool_on(sharding)

    def find_first_pool(self) -> native.Pool | None:
        """The tokens where a function whose arguments name no device is likely to run first."""
        return self._placed.find_first_pool()

    def find_pool_of_one(self) -> native.Pool | None:
        """The tokens on the only device that there is. Asked once."""
        return self._placed.find_pool_of_one()

    def spans_devices(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the devices of these arguments are several."""
        return sharding_of_call(args, kwargs) is not None

    def may_wait(self, output: Any) -> bool:
        """Whether writing to this output may wait for effects. Asked whenever it is another than before."""
        share(output)
        return may_wait(output)

    def print_options(self) -> int | None:
        """The number of NumPy's print options in this context; None where native code does not follow them. Asked
        whenever the context is another than before."""
        if not FOLLOWS_NUMPY:
            return 0  # native code shows no arrays
        options = print_options(np.get_printoptions())
        return None if options is None else native.number_of_print_options(options)

    def has_gates(self, output_token: Any) -> bool:
        """Whether the handlers of a program wait for those of the one before."""
        devices = output_token.sharding.device_set
        return config.native and not any(PLATFORMS[platform_of(device)].in_order for device in devices)

    def several_devices(self) -> bool:
        """Whether programs may run on several devices. Asked once."""
        return several_devices()

    def most_in_flight(self) -> int:
        """How many programs with effects may run over several devices at a time; 0: any number. Asked once."""
        return 24 if launches_take_threads and jax.default_backend() == "cpu" else 0

    def compile(self, lock: Any, program: Any, args: tuple[Any, ...], kwargs: Any, gave_up: bool) -> bool:
        """Compiles a program, which JAX keeps for the call. Returns whether it is for several devices.

        Args:
            lock: The caller's: one of its programs is compiled at a time.
            program: The jitted function. It may be one that does not take these arguments.
            args: The arguments of the call, the token ahead if there is one; and `kwargs`.
            gave_up: Whether a call has, instead of tracing the function.
        """
        if hasattr(program, "takes") and not program.takes(args, kwargs):
            return False
        compiled = program
        if hasattr(program, "trace"):
            with getattr(program, "around", contextlib.nullcontext)():
                traced = program.trace(*args, **kwargs)  # for which no other thread waits
                if traced.jaxpr.is_high:  # it has values of JAX's experimental "hijax" types: only calls compile
                    return True
                traced = with_flat_arguments(traced)
                traced.lower()
                with lock:  # of several threads that were there at one time, one compiles: JAX has kept one lowering
                    compiled = traced.lower().compile()
        if gave_up:
            forget_fast_paths(program)  # the next call would take none where one has failed
        if not isinstance(compiled, jax.stages.Compiled):
            return True  # for all we know
        return len(compiled.runtime_executable().local_devices()) > 1


@functools.cache
def several_devices() -> bool:
    """Whether programs may run on several devices."""
    return jax.device_count() > 1
