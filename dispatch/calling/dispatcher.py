"""Calls of programs: a runtime token goes in, the output token stays with the drain."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import jax

from effects import _errors as errors
from effects._config import config
from effects._jax import (
    STATE_OF_CALLS,
    call_beside_fast_paths,
    count_fast_paths,
    hide_frames,
    jax_tokens,
    kernel_options,
    leave_traces,
    platform_of,
    runs_now,
    with_kernel_options,
)
from effects._model.device import PLATFORMS
from effects._model.wire import TOKEN_LENGTH, ProgramTraits
from effects.dispatch.calling.programs import WRONG_PROGRAM_KIND
from effects.dispatch.runtime.output_tokens import failure_in, failures_of
from effects.dispatch.runtime.parts import log_capacity_needed
from effects.dispatch.runtime.runtime import effects_barrier, runtime
from effects.dispatch.runtime.streams import Stream, several_devices
from effects.lowering.holders import conversion
from effects.lowering.native_module import native
from effects.lowering.tokens import TOKEN_NAME

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


MSG_IN_ENDED = (
    "A callback called `{name}` after its own program had been ended to break a deadlock. From then on the callback "
    "cannot call programs with effects. See the error of the program that was ended."
)


class Dispatcher(native.QuickCalls, Generic[P, R]):
    """Calls a threaded function: supplies its runtime token and keeps its output token for the drain.

    Native code makes the calls before which nothing has to be raised or waited for: see
    `dispatch/native/python/dispatcher.h`. All others go through `_call`.
    """

    if TYPE_CHECKING:

        def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def __init__(
        self,
        name: str,
        without_tokens: Any,
        threaded: Any,
        traits_of: Callable[[Any, Any], ProgramTraits],
        plain: Any = None,
    ):
        """`threaded`, `traits_of` and `plain` are as of `Programs`; `plain` is None if there are no programs without
        effects."""
        self._name = name
        self._traits_of = traits_of
        self._caller, self._plain_caller = (native.Caller(name, threading.Lock()) for _ in range(2))
        self._without_tokens = without_tokens  # the function under another trace, and without jit
        self._threaded = threaded
        self._plain = plain
        self._set_plain(False)

    def _set_plain(self, is_plain: bool) -> None:
        """Sets the fast path of native code. `is_plain`: true if the newest call was of a program without effects."""
        self._fast_path = (True, self._plain_caller, self._plain) if is_plain else (False, self._caller, self._threaded)

    def _call(self, /, *args: Any, **kwargs: Any) -> Any:
        if not runs_now():
            with conversion().tracing_inside():
                return self._without_tokens(*args, **kwargs)
        try:
            _lower_attention()
            streams = runtime.streams
            if self._fast_path[0]:
                stream = streams.for_plain()
                if stream.unpolled or runtime.failures.programs:
                    _raise_earlier(streams.current(), self._name)
                plain = self._plain_in(stream)
                if (outs := stream.call_plain(self._plain_caller, plain, args, kwargs)) is not WRONG_PROGRAM_KIND:
                    return outs
                self._set_plain(False)
            if log_capacity_needed and (words := log_capacity_needed.get(self._caller, 0)) != kernel_options().grown_to:
                with with_kernel_options(grown_to=words):  # traced again after its kernels' logs got more room
                    return self(*args, **kwargs)
            if jax_tokens.current_tokens:
                runtime.waiting.for_plain_programs()
            if len(streams.orders) > 1:
                runtime.waiting.drain_former_order()
            stream = streams.current()
            if stream.unpolled or runtime.failures.programs:
                _raise_earlier(stream, self._name)
            caller = self._caller
            dispatching = stream.dispatching
            depth = len(dispatching)
            traits = caller.traits
            number, threaded, is_launched = -1, self._threaded, False
            try:
                # The newest call's traits may be another program's. If they do not suffice, the function is traced
                # before the lock is taken: a trace outside of a dispatch releases the lock.
                if _domains_ahead(stream) or (traits is None and (stream.is_shared or _has_callbacks(stream))):
                    traits = self._traits_of(args, kwargs)
                awaits_results = traits is None or traits.awaits_results
                domains = traits.domains_of_handlers if traits is not None else ()
                with stream.dispatch_lock(bool(domains)):
                    if awaits_results and _has_callbacks(stream):
                        _wait_for_callbacks(stream)
                    if domains:
                        _wait_for_handlers(stream, domains, self._name)
                    number = stream.open(caller, dispatching)
                    stream.entering[number] = threaded, count_fast_paths(threaded)
                    if stream.is_nested and streams.is_first_call_under_way():
                        threaded = call_beside_fast_paths(threaded)  # that call may wait for this function
                    try:
                        outs, awaited = stream.call(number, caller, dispatching, threaded, args, kwargs)
                    except (RuntimeError, ValueError) as error:
                        token = _explicit_token_or_raise(error, stream.token(number))
                        outs, awaited = stream.call(number, caller, dispatching, threaded, args, kwargs, token)
                is_launched = True
                if awaited is not None:
                    self._await(stream, number, awaited)
            except BaseException as error:
                native.abandon(stream.thread, dispatching, depth)  # here, before a second interrupt can come
                self._raise_root_cause(error, stream, number, is_launched)
                raise
            finally:
                stream.entering.pop(number, None)
            return self._end(stream, number, outs, args, kwargs)
        except BaseException as error:
            _clear_up(error)
            raise

    def _finish(self, thread: int, number: int, left: Any, args: Any, kwargs: Any) -> Any:
        """Ends a call that native code has begun. If this raises, native code cleans up.

        `left`: what the program has returned, as `Stream.call` returns it, or the exception that its call has raised.
        """
        stream = runtime.streams[thread]
        dispatching, is_launched = stream.dispatching, False
        try:
            outs, awaited = (
                self._after_error(left, stream, number, args, kwargs) if isinstance(left, BaseException) else left
            )
            is_launched = True
            if awaited is not None:
                self._await(stream, number, awaited)
        except BaseException as error:
            native.abandon(stream.thread, dispatching, 0)
            self._raise_root_cause(error, stream, number, is_launched)
            raise
        return self._end(stream, number, outs, args, kwargs)

    def _after_error(self, error: BaseException, stream: Stream, number: int, args: Any, kwargs: Any) -> Any:
        """Calls the program again with its token in another form, and returns the results. Raises the error if it is
        not about the token."""
        if number < 0 or not isinstance(error, (RuntimeError, ValueError)):
            raise error
        token = _explicit_token_or_raise(error, stream.token(number))
        return stream.call(number, self._caller, stream.dispatching, self._threaded, args, kwargs, token)

    def _await(self, stream: Stream, number: int, awaited: tuple[ProgramTraits, Any]) -> None:
        """Waits for the answers that a program waits for, if its call must."""
        if awaited[0].awaits_results or _must_poll(stream, awaited[1]):
            stream.claim(number)
            _wait_for_answers(stream, number, awaited, self._name)

    def _raise_root_cause(self, error: BaseException, stream: Stream, number: int, is_launched: bool) -> None:
        """Raises the error behind the one that the call of a program has raised, if there is another. `is_launched`:
        true if the program has begun, and the wait for it has raised."""
        if number >= 0 and not is_launched:
            stream.note_ended(number)
        if isinstance(error, Exception) and number >= 0:
            # JAX may have waited for the program, and reports only that it failed.
            _raise_what_ended(stream, number)
            if isinstance(error, jax.errors.JaxRuntimeError):
                runtime.drain.wait(lambda: number not in stream.calls)  # until the other effects are visible
            if (failure := failure_in([error], self._name)) is not None:
                raise failure from None
            _count_without_token(error)

    def _end(self, stream: Stream, number: int, outs: Any, args: Any, kwargs: Any) -> Any:
        if outs is WRONG_PROGRAM_KIND:
            return self._call_plain_first(stream, number, args, kwargs)
        if config.sync and not stream.dispatching:
            effects_barrier()
        return outs

    def _plain_in(self, stream: Stream) -> Any:
        """The program without effects, for a call in this stream."""
        if stream.is_nested and runtime.streams.is_first_call_under_way():
            return call_beside_fast_paths(self._plain)  # that call may wait for this function
        return self._plain

    def _call_plain_first(self, stream: Stream, number: int, args: Any, kwargs: Any) -> Any:
        """Calls a program without effects, where it was not known that it has none."""
        plain = self._plain_in(stream)
        stream.entering[number] = plain, count_fast_paths(plain)
        try:
            outs = stream.call_plain(self._plain_caller, plain, args, kwargs)
        finally:
            del stream.entering[number]
        self._set_plain(True)
        return outs


def _lower_attention() -> None:
    """Lets native code make calls until the next event, unless there is a state that every call must check."""
    since = native.attention()  # before the check: see `QuickCalls`
    if not (runtime.failures.programs or log_capacity_needed or len(runtime.streams.orders) > 1 or config.sync):
        native.lower_attention(since)


def _clear_up(error: BaseException) -> None:
    """Cleans up after an error in a call that began outside of traces, on its way to the user."""
    try:
        leave_traces()
        if config.sync and isinstance(error, Exception) and not runtime.streams.for_plain().dispatching:
            runtime.waiting.for_thread()
    finally:  # once more: an interrupt may have ended the first call
        leave_traces()
    hide_frames(error)


native.configure_quick_calls(WRONG_PROGRAM_KIND, _clear_up, STATE_OF_CALLS, jax_tokens, runtime.streams.shared)


def _explicit_token_or_raise(error: Exception, token: Any) -> Any:
    """The runtime token in another form, if the error is about the token; else raises the error."""
    if isinstance(error, RuntimeError) and _GUARDED in str(error):
        # The user's transfer guard is not for our runtime token.
        with jax.transfer_guard_host_to_device("allow"):
            return jax.device_put(token)
    # The token is on another device than the program, and cannot be copied from there.
    if isinstance(error, RuntimeError) and _GUARDED_BETWEEN in str(error):
        return token
    # The arguments' own devices are incompatible: the error must name these, not the token.
    if isinstance(error, ValueError) and TOKEN_NAME in str(error):
        return token
    raise error


def _count_without_token(error: Exception) -> None:
    """JAX's error says which argument holds a key that was used before, or was donated, and has counted the token."""
    if isinstance(error, (jax.errors.KeyReuseError, ValueError, RuntimeError)):
        text = re.sub(_ARGUMENT, lambda number: str(int(number[0]) - 1), str(error))
        error.args = (text, *error.args[1:]) if text != str(error) else error.args


_ARGUMENT = r"(?<=at index )\d+|(?<=passed to Execute\(\) as argument )\d+"


def _has_callbacks(stream: Stream) -> bool:
    """True if a program that waits for callbacks must first wait for the callbacks of programs before it."""
    return not stream.dispatching and several_devices() and stream.newest_calling in stream.calls


def _wait_for_callbacks(stream: Stream) -> None:
    """Before a program that waits for callbacks, on several devices: waits for those of programs before it.

    They would come first in any case. But such a callback may use several devices, which run one such program at a
    time, and that would be ours: a deadlock. A program that waits for no callbacks does not wait here: the callbacks
    before it may wait for what its caller does next.
    """
    newest = stream.newest_calling
    runtime.drain.wait(lambda: newest not in stream.calls)


def _must_poll(stream: Stream, output_token: Any) -> bool:
    """True if a call must raise the failure of a handler of its program. Otherwise the next call raises it, or the
    barrier."""
    return stream.is_nested or bool(stream.dispatching) or output_token.is_ready()


def _raise_earlier(stream: Stream, name: str) -> None:
    """Raises the first failure of this thread's programs whose calls have returned, before the next one is called."""
    if stream.is_nested and runtime.drain.runs_in_ended_program():
        raise errors.EffectError(MSG_IN_ENDED.format(name=name))
    if stream.unpolled:
        runtime.failure_poll.poll_over(stream, runtime.drain.wait)
    if config.errors == "next_call":
        try:
            runtime.failures.raise_first(stream.thread)
        except BaseException as failure:
            failure.add_note(errors.NOTE_NOT_CALLED.format(function=f"`{name}`"))
            raise


def _domains_ahead(stream: Stream) -> set[int]:
    """The order domains of user handlers in a stream's running programs, if XLA may run the next program concurrently
    with these."""
    running = [each for each in [*stream.running.values()] if each[0].domains_of_handlers]
    return {
        domain for traits, token in running if _may_be_overtaken(stream, token) for domain in traits.domains_of_handlers
    }


def _may_be_overtaken(stream: Stream, output_token: Any) -> bool:
    """True if a program is not over, and the next one of its stream may begin meanwhile. With one CPU device, XLA
    begins a program when the calling thread's previous one is over (`GetLastEnqueueEvent` in
    xla/pjrt/cpu/cpu_client.cc); with several it does not wait."""
    if output_token.is_deleted() or output_token.is_ready():
        return False
    device = next(iter(output_token.sharding.device_set))
    row = PLATFORMS.get(platform_of(device))
    if row is None or row.in_order:
        return False
    return stream.is_shared or device.client.device_count() > 1


def _wait_for_handlers(stream: Stream, domains: Collection[int], name: str) -> None:
    """Waits for earlier programs with user handlers in these order domains, before a program that has such handlers,
    too. Raises the failure of one of them."""
    if _domains_ahead(stream).isdisjoint(domains):
        return
    while not runtime.drain.wait(lambda: _domains_ahead(stream).isdisjoint(domains), _LOOK):
        pass
    _raise_earlier(stream, name)


def _wait_for_answers(stream: Stream, number: int, awaited: tuple[ProgramTraits, Any], name: str) -> None:
    """Waits until a program has got its answers. Its records without results may still be to come."""
    traits, output_token = awaited
    # The drain reports the end of epochs. A program may be over long before, if its last effects are slow.
    wait = runtime.drain.wait
    while traits.awaits_results and not wait(lambda: number not in stream.calls or output_token.is_ready(), _LOOK):
        pass
    if (traits.has_custom_calls or output_token.is_ready()) and (said := failures_of(output_token)):
        _raise_what_ended(stream, number)
        if (failure := failure_in(said, name)) is not None:
            runtime.drain.wait(lambda: number not in stream.calls)  # until the other effects are visible
            raise failure


_LOOK = 0.005
"""The interval in seconds at which a waiting call polls its program."""


def _raise_what_ended(stream: Stream, number: int) -> None:
    """Raises the failure of a callback whose results the program waited for, once its other effects are done."""
    key = stream.thread, number
    if runtime.failures.has_ended(key):
        runtime.drain.wait(lambda: number not in stream.calls)
        if (failure := runtime.failures.take_awaited(key)) is not None:
            raise failure from failure.__cause__


_GUARDED = f"Disallowed host-to-device transfer: aval=ShapedArray(uint32[{TOKEN_LENGTH}])"
_GUARDED_BETWEEN = _GUARDED.replace("host-to-device", "device-to-device")
