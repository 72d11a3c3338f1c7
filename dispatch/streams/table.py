"""All streams: which thread has which, and which are forgotten."""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from effects import _errors as errors
from effects._config import Config, config
from effects._jax import count_fast_paths
from effects._model.wire import FIRST_NESTED_THREAD, PLACED_THREAD
from effects.dispatch.streams.stream import SharedStream, Stream, WouldTrace
from effects.lowering.native_module import native

MSG_NO_NUMBER = (
    "A thread called a program with effects while {count} threads had all the numbers that tokens have for threads. A "
    "number is free again when its thread has ended and its effects are visible. Call programs from fewer threads at a "
    "time."
)


class Streams:
    """The streams whose thread lives or that have open epochs, by the number of their thread. Any thread adds its own;
    the drain's leader removes.

    `launching` is held while a program is put on several devices. Else they might get it and another thread's in
    different orders, and each wait for the other: for its part in a collective, or for room.

    `orders` are the settings of `order` that have been in force. A thread has a stream for each, and these know nothing
    of each other.
    """

    def __init__(self) -> None:
        self.launching: Any = threading.RLock()
        self.orders: set[str] = set()
        self._local = threading.local()  # `stream`: the thread's own; the others: see below
        self._shared = SharedStream(0, self.launching, self.this_thread)
        self._use_shared = False
        self._by_thread: dict[int, Stream] = {0: self._shared}
        self.get: Callable[[int], Stream | None] = self._by_thread.get
        self._ended: set[int] = set()  # numbers of threads that are gone
        # The drain's threads are made as they are needed. The user's are counted by themselves, as in all processes.
        self.numbers: Numbers = Numbers(range(1, FIRST_NESTED_THREAD))
        self.nested_numbers: Numbers = Numbers(range(PLACED_THREAD - 1, FIRST_NESTED_THREAD - 1, -1))
        self.is_named: Callable[[int], bool] = lambda thread: False  # whether a number still means a forgotten stream
        config.listen(self._configure)

    def _configure(self, settings: Config) -> None:
        self._use_shared = settings.order == "process"
        self.orders.add(settings.order)

    def __len__(self) -> int:
        return len(self._by_thread)

    def __getitem__(self, thread: int) -> Stream:
        return self._by_thread[thread]

    def all(self) -> list[Stream]:
        return list(self._by_thread.values())

    def current(self) -> Stream:
        """The stream of the calling thread."""
        if self._use_shared and not native.is_nested():
            return self._shared
        try:
            return self._local.stream
        except AttributeError:
            return self._make()

    def for_plain(self) -> Stream:
        """The stream of the calling thread if it has one; else that of all threads, since a program without effects,
        or a barrier, needs none of its own."""
        if self._use_shared and not native.is_nested():
            return self._shared
        return vars(self._local).get("stream", self._shared)

    def _make(self) -> Stream:
        stream = self._add(self.nested_numbers, None) if native.is_nested() else self._add(self.numbers, self.launching)
        self._local.stream = stream
        stream.set_here()
        self._local.owner = _Owner()
        weakref.finalize(self._local.owner, self._ended.add, stream.thread).atexit = False
        return stream

    def _add(self, numbers: Numbers, launching: Any) -> Stream:
        """Adds a stream with the next number that no other has. `setdefault` is one step. Otherwise:

        1. A thread finds that no stream has a number.
        2. Others make streams until the numbers begin anew, and one finds the same.
        3. Both take the number, and the drain ends the epochs of one as those of the other.
        """
        for _ in range(len(numbers)):
            number, again = numbers.take()
            if number in self._ended or (again and self.is_named(number)):
                continue
            stream = Stream(number, launching)
            if self._by_thread.setdefault(number, stream) is stream:
                if again:
                    native.number_anew(number)
                return stream
        raise errors.EffectError(MSG_NO_NUMBER.format(count=len(numbers)))

    def own(self) -> list[Stream]:
        """All that the calling thread's programs may be in, the current one last."""
        current = self.for_plain()
        if native.is_nested() or len(self.orders) == 1:
            return [current]
        return [*({self._shared, vars(self._local).get("stream", self._shared)} - {current}), current]

    def ended(self) -> list[Stream]:
        """Those of threads that have ended and have effects that may not be visible yet. Whoever waits for its own also
        waits for these, since no other thread will; but not what runs in a drain thread, for which they may wait."""
        if native.is_nested() or not self._ended:
            return []
        return [stream for thread in [*self._ended] if (stream := self._by_thread.get(thread)) is not None]

    def has_ended(self, thread: int, stand_in: UserThread | None) -> bool:
        """Whether a thread has ended, by its number or, where streams are not one thread's, by what stands for it."""
        if stand_in is not None:
            return stand_in.has_ended
        return thread in self._ended or thread not in self._by_thread

    def this_thread(self) -> UserThread:
        """What stands for the calling thread. Its identity may be another's later."""
        try:
            return self._local.this
        except AttributeError:
            this = self._local.this = UserThread()
            self._local.owner_of_this = _Owner()
            weakref.finalize(self._local.owner_of_this, this.end).atexit = False
            return this

    def begin_trace(self, by_hand: bool = False) -> None:
        """The user's function is about to be traced, or run by hand. Others do not wait for that: it may wait for
        them."""
        if native.take_tracing_forbidden() and not by_hand:
            raise WouldTrace
        if self.launching._is_owned() and not self._shared.dispatching:  # JAX has not kept what was compiled
            self.launching._release_save()  # as `threading.Condition` does

    def nest_this_thread(self) -> Stream:
        """The calling thread is one of the drain's. Its programs wait for no others, since an effect may wait for them.
        Returns its stream."""
        native.set_nested(True)
        stream = self.current()
        native.nest(stream.thread)
        return stream

    def is_first_call_under_way(self) -> bool:
        """Whether JAX is making a fast path, while it may call a program that waits for a callback. On CPUs it may make
        others wait that take the same one until this program is over."""
        entering = [each for stream in self.all() for each in list(stream.entering.values())]
        return any(count_fast_paths(function) != before for function, before in entering)

    @contextlib.contextmanager
    def nested_here(self) -> Iterator[Stream]:
        """The calling thread does the drain's work for a while."""
        before, was_nested = dict(vars(self._local)), native.is_nested()
        vars(self._local).pop("stream", None)
        try:
            yield self.nest_this_thread()
        finally:
            native.set_nested(was_nested)
            vars(self._local).clear()
            vars(self._local).update(before)
            if (own := before.get("stream")) is not None:
                own.set_here()
            else:
                native.forget_stream_here()

    def forget_ended(self) -> None:
        """Drops the streams of threads that are gone and have nothing open. The leader of the drain calls it.

        Native code is first. Otherwise:

        1. The leader drops a stream from the table.
        2. A thread takes its number, and opens an epoch.
        3. Native code forgets how far the number's epochs have been counted, and the next one has the same number.
        """
        for thread in [*self._ended]:
            stream = self._by_thread[thread]
            if not stream.calls and not stream.unsettled and stream.held_for is None:
                native.forget(thread)
                del self._by_thread[thread]
                self._ended.remove(thread)  # last: until then it says that the thread has ended


class Numbers:
    """Numbers of threads, one after the other, and after the last one the first again: a number means another thread as
    late as possible. Any thread takes them."""

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers
        self._taken = itertools.count()

    def __len__(self) -> int:
        return len(self._numbers)

    def take(self) -> tuple[int, bool]:
        """The next one, and whether it was taken before."""
        turn, at = divmod(next(self._taken), len(self._numbers))
        return self._numbers[at], turn > 0


class UserThread:
    """What stands for a thread."""

    has_ended: bool = False

    def end(self) -> None:
        self.has_ended = True


class _Owner:
    """Lives as long as its thread's locals do."""
