"""The replay of records: text is written, events are logged, functions are called, and observers see them all.

Runs in a drain thread, in the context of the program's call.
"""

from __future__ import annotations

import contextvars
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TextIO

import jax
import numpy as np

from effects import _errors as errors
from effects import _jax
from effects._model.callback import HostCall, UnexpectedResults, take_results
from effects._model.content import NativeText
from effects._model.device import device_place
from effects._model.effect import domain_number
from effects._model.record import Part, Record, Records, count_lanes, records_of
from effects._model.site import Site
from effects._model.text import NativeRows, plan_of_line
from effects._model.wire import PLAIN_THREAD, TEXT_RUN, Item, ItemKind, RecordsBetween, read_header
from effects.dispatch.runtime.failures import (
    Failures,
    HostRunFailed,
    ProgramKey,
    stops_after_error,
    traceback_from_user,
)
from effects.dispatch.runtime.observers import Capture, Observers, captures
from effects.dispatch.runtime.outputs import Output, may_wait
from effects.dispatch.runtime.streams import Stream, Streams
from effects.lowering.native_module import native
from effects.lowering.sites import KnownSites, to_bytes

_PAGE = "docs/guide/callbacks.md"
MSG_FOREIGN_CALLBACK = (
    "The program calls back the function `{name}` of another process. A function cannot travel with a program: its "
    "name can. Register it under one name in both processes, with `@fx.register_callback('some.name')`."
)
MSG_REPLAY = "The effect `{effect}` at {where}, in {function}, could not be carried out on the host: {error}. {then}"
MSG_CALLBACK = "The callback `{name}` at {where}, in {function}, raised {error}. {then}"
MSG_RETURNED = (
    "The callback `{name}` at {where}, in {function}, returned {error}. {then} Change what it returns, or its "
    "`result_shape_dtypes`."
)
RETURNED = "{0}, and its program expects {1}"
THEN_STOPS = "The effects of its program ended there."
THEN_GOES_ON = "The effects after it went on."
REMEDY_TRACED = (
    "What it uses of the program, it must be given, as in `fx.callback({name}, None, x)`, since a variable of the "
    "function around it holds no value when it runs."
)
MSG_NO_READER = (
    "The effect `{effect}` at {where}, in {function}, wrote to a pipe that nothing reads any more. {then} Lines that "
    "come later are lost, and are not reported. Keep the reader running, or write to a file."
)


_TEXTS = NativeRows(plan_of_line)

_ENDS = errors.EffectError, KeyboardInterrupt
"""The exceptions of a function that ends its program."""

_ONCE = ((),)
"""The lanes of a record without lanes."""


class Call(NamedTuple):
    """The caller, output and context of a program's call. Each dispatch makes one, as a plain tuple, to save time."""

    caller: native.Caller  # the jitted function
    stdout: TextIO | None  # the output of its lines
    context: contextvars.Context  # the context in which its effects are replayed


WaitForNested = Callable[[ProgramKey], None]
"""Waits for the effects of programs that a function has called, on behalf of the program that called the function."""

_OUTSIDE = native.Caller("a program outside fx.jit")


def outside_epochs() -> Call:
    """The `Call` of a record of a program that JAX dispatched: the present output and context."""
    return Call(_OUTSIDE, sys.stdout, contextvars.copy_context())


class _EndedElsewhere(Exception):
    """The program has ended on another device, which reports it if it is one of this process."""

    def __init__(self, failure: errors.CheckError):
        super().__init__()
        self.failure = failure


class Replay:
    """Replays what came from one program."""

    _lanes: Iterator[tuple[int, ...]] = iter(())  # the lanes for which the running function is still to be called
    # The present effect: its token, its device's ordinal, and its lane.
    _now: tuple[tuple[int, ...], int | None, tuple[int, ...]] = (), None, ()

    def __init__(
        self,
        failures: Failures,
        observers: Observers,
        call: tuple[native.Caller, TextIO | None, contextvars.Context],
        key: ProgramKey,
        wait_for_nested: WaitForNested = lambda key: None,
    ):
        self._failures = failures
        self._observers = observers
        self._call = call
        self._key = key
        self._wait_for_nested = wait_for_nested

    @property
    def stopped(self) -> bool:
        """True if an effect of the program has failed, so that those after it are not carried out."""
        failures = self._failures
        return bool(failures.unended or failures.abandoned) and failures.has_stopped(self._key)

    def write(self, text: str) -> BaseException | None:
        """Writes text that native code has formatted. Returns the exception if that raised one."""
        try:
            self._call[2].run(self._write, text)
        except BaseException as error:
            return error
        return None

    def lines(self, site: Site, lines: list[str]) -> bool:
        """Writes the lines of a site's records by themselves. Returns True if all are written."""
        written = True
        for at, line in enumerate(lines):
            if self.stopped:
                self._failures.leave_out(self._key, site, len(lines) - at)
                return False
            if (error := self.write(line)) is not None:
                written = False
                self.fail(error, site)
        return written

    def records(self, records: Records) -> None:
        """Replays records that call nothing."""
        self._now = Replay._now
        if self.stopped:
            self.leave_out(records.parts())
            return
        try:
            left = self._call[2].run(self._show, records)
        except BaseException as error:
            self.fail(error, None)
            return
        if left is not None:
            part, lanes, after = left
            self.leave_out([part], lanes)
            self.leave_out(after.parts())

    def function(
        self, site: Site, token: tuple[int, ...], device: int, payload: Any, time: float, awaited: bool
    ) -> list[np.ndarray] | BaseException | None:
        """Runs a callback, once or lane by lane. Returns its results, or its exception if a program waits for it."""
        result: list[np.ndarray] | BaseException | None = None
        try:
            self._now = token, device, ()
            # A copy: a function's changes of its context stay its own.
            result = self._call[2].copy().run(self._run, site, token, device, payload, time)
        except _EndedElsewhere as ended:
            result = ended.failure
            result.function, result.token, result.device = self._call[0].name, token, device_place(device)
            self._failures.end_program(self._key, result, elsewhere=True)
        except BaseException as error:
            if awaited:
                result = self.end(error, site, token, device)
            else:
                self.fail(error, site)
        if (self._failures.unended or self._failures.abandoned) and self.stopped:
            self.leave_out([(site.resolve_sizes(payload), token, device, payload, time)], self._lanes)
        return result

    def leave_out(self, parts: Iterable[Part], lanes: Iterable[tuple[int, ...]] | None = None) -> None:
        """Counts records that are not carried out, all their lanes or these."""
        for site, _, _, payload, _ in parts:
            if not site.content.counts_as_effect:
                continue
            left = site.lanes_of(payload) if lanes is None else lanes
            self._failures.leave_out(self._key, site, sum(1 for _ in left))

    # In the context of the call.

    def _run(self, site: Site, token: tuple[int, ...], device: int, payload: Any, time: float) -> list[np.ndarray]:
        observed = self._observers.handlers or self._observers.captures
        if not observed and (direct := site.direct_call) is not None and site.results is None:
            try:  # the steps below, inlined for the most common record
                direct[0](*[np.ndarray(shape, stored, payload, at) for shape, stored, at in direct[1]])
            except BaseException as error:
                self.fail(error, site)
            finally:
                self._wait_for_nested(self._key)
            return []
        if site.num_dynamic_sizes:
            site = site.resolve_sizes(payload)
        call: Any = site.content  # a `HostCall`, by the record's flags
        fn = call.function.fn
        if fn is None:
            raise errors.runtime_error(MSG_FOREIGN_CALLBACK.format(name=call.function.name))
        if call.runs_with_empty_mask and (active := site.active(payload)) is not None and not active.any():
            raise _EndedElsewhere(call.without_lanes(site.where))
        values = site.read(payload)
        lanes: Iterable[tuple[int, ...]] = _ONCE
        results: list[np.ndarray] = []
        calls_lanes = False
        if site.lanes or site.mask is not None:
            if call.is_vectorized and site.active(payload) is None:
                values = site.all_lanes(values, call.vmap_method or "")
            else:
                calls_lanes = True
                lanes = site.lanes_of(payload)
                results = [np.zeros(result.shape, result.stored) for result in site.results or ()]
        self._lanes = iter(lanes)
        for lane in self._lanes:
            self._now = token, device, lane
            args, kwargs = site.arguments(site.of_lane(values, lane) if calls_lanes else values)
            if observed or call.pass_record:
                record = Record(site, token, device, lane, payload, site.hidden_numbers("grid", payload), time)
                if observed:
                    self._observe([record])
                if call.pass_record:
                    kwargs = {**kwargs, "record": record}
            try:
                returned = fn(*args, **kwargs)
            except BaseException as error:
                if call.results is not None:
                    raise
                self.fail(error, site)
            else:
                if call.results is not None and not calls_lanes:
                    results = take_results(call, returned, site.results or ())
                elif call.results is not None:  # at once: the function may return one array for all lanes
                    taken = take_results(call, returned, call.results)
                    for all_lanes, of_one in zip(results, taken, strict=True):
                        all_lanes[lane] = of_one
            finally:
                self._wait_for_nested(self._key)
            if (self._failures.unended or self._failures.abandoned) and self.stopped:
                break
        return results

    def _show(self, records: Records) -> tuple[Part, list[tuple[int, ...]], Records] | None:
        """Shows records. If that stops the program's effects, returns the record where, its lanes that are left, and
        the records after it."""
        observed = self._observers.handlers or self._observers.captures
        suppressed = bool(observed) and any(capture.suppress for capture in self._captures())
        if not self._write_at_once(records.of_sites(lambda site: self._is_shown(site, suppressed))):
            for at, part in records.shown_parts():
                if not self._is_shown(part[0], suppressed) or (left := self._show_lanes(part)) is None:
                    continue
                before, _ = records.split(at)
                _, after = records.split(at + 1)
                if at:
                    self._observe(before)
                shown = [*records_of(*part)]
                self._observe(shown[: len(shown) - len(left)])
                return part, [record.lane for record in left], after
        if observed and not self.stopped:
            self._observe(records)
        return None

    def _is_shown(self, site: Site, suppressed: bool) -> bool:
        takes_lines = None
        for handler in self._observers.handlers:
            if handler.takes(site):
                takes_lines = takes_lines or handler.takes_lines
        return site.content.is_shown(suppressed, takes_lines)

    def _write_at_once(self, shown: Records) -> bool:
        """Writes the text of records as one, if native code makes it of all of them. Returns True if nothing is left to
        be shown."""
        contents = [site.content for site in shown.sites()]
        if not all(isinstance(content, NativeText) and content.writes_text for content in contents):
            return False
        if not contents:
            return True
        if may_wait(self._call[1]) or (lines := _TEXTS.of(shown)) is None:
            return False
        try:
            self._write(lines[0].decode())
        except BaseException as error:
            # As with native text: the line may be written in part, or the error came before any output.
            if not isinstance(error, OSError) and len(lines[1]) > 1:
                return False
            self.lose(error, [(site, count_lanes(site, payload)) for site, _, _, payload, _ in shown.parts()])
        return True

    def _show_lanes(self, part: Part) -> list[Record] | None:
        """Shows a record. If that stops the program's effects, returns the lanes that are left."""
        lanes = self._noted(part)
        while True:
            try:
                part[0].content.show(lanes, Output(self._call[1]), self._report)
                return None
            except BaseException as error:
                self.fail(error, part[0])
                if self.stopped:
                    return [*lanes]

    def _noted(self, part: Part) -> Iterator[Record]:
        """A record's lanes; the lane that was yielded last is the present one."""
        _, token, device, _, _ = part
        for record in records_of(*part):
            self._now = token, device, record.lane
            yield record

    def _write(self, text: str) -> None:
        Output(self._call[1])(text)

    def _observe(self, records: Records | list[Record]) -> None:
        for capture in self._captures():
            capture.records.extend(records)
        for handler in self._observers.handlers:
            handler.take(records, self._report)

    def _report(self, failure: BaseException) -> None:
        """Keeps a failure for the next call or barrier to raise. The program's effects continue, whatever `after_error`
        is."""
        if isinstance(failure, errors.EffectError):
            failure.function = failure.function or self._call[0].name
        self._failures.add(self._key, failure, stops=False)

    def _captures(self) -> tuple[Capture, ...]:
        # The calling thread of a program that JAX dispatched is unknown.
        return self._observers.captures if self._key[0] == PLAIN_THREAD else captures.get()

    def warn(self, text: str) -> None:
        """Warns the user. If warnings are errors, the next call or barrier raises it, and the program's effects
        continue."""
        try:
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        except RuntimeWarning:
            self._failures.add(self._key, errors.EffectError(text), stops=False)

    def fail(self, error: BaseException, site: Site | None) -> None:
        """Keeps the error of an effect of this site. The program itself continues."""
        is_call = site is not None and isinstance(site.content, HostCall)
        message = MSG_CALLBACK if is_call else MSG_REPLAY
        logged = site is not None and site.origin is not None and _jax.logs_failures(site.origin.primitive)
        self._failures.add(self._key, self._failure(message, error, site), logged=is_call and logged)

    def end(self, error: BaseException, site: Site, token: tuple[int, ...], device: int) -> BaseException:
        """Ends the program by the error of a callback for which it waits. Returns the failure that the program gets."""
        self._now = token, device, self._now[2]
        failure = self._ending(error, site)
        self._failures.end_program(self._key, failure)
        return failure

    def _ending(self, error: BaseException, site: Site) -> BaseException:
        """The failure by which a callback has ended the program."""
        call = site.content
        if isinstance(call, HostCall) and call.raises_itself and isinstance(error, _ENDS):
            if isinstance(error, errors.EffectError):
                error.function = self._call[0].name
            return error.with_traceback(None)
        return self._failure(MSG_CALLBACK, error, site, errors.WAITED)

    def _failure(self, message: str, error: BaseException, site: Site | None, then: str = "") -> errors.EffectError:
        (token, device, lane), call = self._now, self._call[0].name
        effect, name, where = (site.effect.name, site.content.title, site.where) if site else ("print", "", "its call")
        cause, shown = error, ""
        if isinstance(error, HostRunFailed):
            (name, where), cause = error.args, error.__cause__ or error
        if message is MSG_REPLAY and isinstance(cause, BrokenPipeError):
            message = MSG_NO_READER
        elif isinstance(cause, UnexpectedResults):
            message, shown, cause = MSG_RETURNED, RETURNED.format(*cause.args), None
        text = message.format(
            effect=effect,
            name=name,
            where=", ".join(filter(None, [str(where), site.where.called if site else ""])),
            function=", ".join(filter(None, [f"`{call}`", errors.numbered("lane", lane)])),
            error=shown or errors.shown(cause),
            then=then or (THEN_STOPS if stops_after_error(self._key) else THEN_GOES_ON),
        )
        failure = errors.EffectError(text)
        if message is MSG_CALLBACK and isinstance(cause, jax.errors.JAXTypeError):
            failure._say(REMEDY_TRACED.format(name=name))
        failure.where, failure.function = str(where) if site else "", call
        failure.effect, failure.token, failure.lane = effect, token, lane
        failure.device = -1 if device is None else device_place(device)
        if cause is not None:
            shown_from = None if message is MSG_NO_READER else traceback_from_user(cause)
            failure.__cause__ = cause.with_traceback(shown_from)
        return failure

    def lose(self, error: BaseException, lines: list[tuple[Site, int]]) -> None:
        """Keeps the error of writing the lines of several records at once. Which lines are written is not known."""
        self.fail(error, lines[0][0])
        for at, (site, count) in enumerate(lines):
            self._failures.leave_out(self._key, site, count - (at == 0))


# Text that native code has formatted: written at once, or record by record if one of its programs has failed.


def replay_text(
    item: Item, replay_of: Callable[[int], Replay], find_site: Callable[[int], Site], has_failed: bool
) -> None:
    """Writes an item's text.

    Args:
        item: Text of consecutive records of one thread's programs.
        replay_of: Replays what came from the program of an epoch of that thread.
        find_site: The site that has a number.
        has_failed: Whether some program has failed, and the text may be of it.
    """
    first, error = replay_of(item.epoch), None
    if not has_failed and (error := first.write(item.data)) is None:
        return
    parts = [(epoch, find_site(site), lines) for epoch, site, lines in _parts(item)]
    if error is not None and (item.count == 1 or isinstance(error, OSError)):
        # The text may have been written in part, and no text is written twice.
        first.lose(error, [(site, len(lines)) for _, site, lines in parts])
        return
    # Other errors, such as a character that cannot be encoded, are raised before any output. So the lines before the
    # bad one are written now.
    written = [replay_of(epoch).lines(site, lines) for epoch, site, lines in parts]
    if error is not None and all(written):
        first.fail(error, parts[0][1])


def _parts(item: Item) -> list[tuple[int, int, list[str]]]:
    """The parts of the text: epoch, site, and the text of each record."""
    data, start, parts = item.data.encode(), 0, []
    for site, end, epoch, count in np.frombuffer(item.block, TEXT_RUN).tolist():
        lines = [f"{line}\n" for line in data[start:end].decode().split("\n")[:-1]]
        each = len(lines) // count  # a format may give several lines
        parts.append((epoch, site, ["".join(lines[at : at + each]) for at in range(0, len(lines), each)]))
        start = end
    return parts


# Running user functions.


Runs = dict[int, Any]
"""Each run, by the identity of its work: the number of the thread in whose stream an order domain is suspended, the
run's number, its work, and if that is a list the keys for `keys_of_run`. Drain threads add and take out; any thread
reads."""


# Answers of callbacks for which a program waits, and Python's part of native code's short path to them.
#
# That path decides the speed of a program that waits in each step of a loop: see
# `dispatch/native/python/direct_calls.h`. `Replay` has the general path.


def answer_with(reply: int, result: Any) -> None:
    """Answers a device with a callback's results or error."""
    if result is None or isinstance(result, list):
        native.answer(reply, [to_bytes(x) for x in result or ()])
    else:
        native.answer_error(reply, _shown(result))


def _shown(failure: Any) -> str:
    return str(failure).encode("utf-8", "replace").decode()


def keys_of_run(run: Any) -> frozenset[str | int]:
    """The order domain of a run, by its number, or if it has none the names of the effects that are left of it."""
    if isinstance(run[2], list):
        keys = run[3]
        if isinstance(keys, frozenset):
            return keys
        return frozenset().union(*(each for item, each in zip(run[2], keys, strict=True) if item is not None))
    effect = run[2][1].effect
    return frozenset((domain_number(effect.domain) if effect.ordered else effect.name,))


def sites_in(item: Item, find_site: Callable[[int], Site]) -> Iterable[Site]:
    """The sites of an item's records."""
    if item.has_callbacks:
        for part in item.data:
            if len(part) == len(RecordsBetween._fields):
                yield from Records(*part, find_site).sites()
            else:
                yield find_site(part[0])
    elif item.kind == ItemKind.RECORDS:
        yield from Records(item.data, item.count, find_site).sites()
    else:
        yield find_site(read_header(item.data).site)


class DirectCallsHost:
    """The state that the short path reads, and the work that it leaves to Python. Drain threads use it.

    Args:
        streams: The streams, with the calls of programs.
        failures: The failures so far.
        observers: The observers of records.
        sites: The sites of records.
        runs: The drain's, of functions that are under way.
        running: The drain's, of functions by their thread.
        start_thread: Called when there is no standby thread.
        look: Called now and then, for what comes by no batch.
    """

    def __init__(
        self,
        streams: Streams,
        failures: Failures,
        observers: Observers,
        sites: KnownSites,
        runs: Runs,
        running: dict[int, Any],
        start_thread: Callable[[], object],
        look: Callable[[], None],
    ) -> None:
        self.stream_of: Callable[[int], Stream | None] = streams.get
        self.site_of: Callable[[int], Site | None] = sites.get
        self.programs: dict[ProgramKey, Any] = failures.programs
        self.frames: dict[int, Any] = failures.frames
        self.clear_frames: Callable[[], None] = failures.clear_frames
        self.runs: Runs = runs
        self.running: dict[int, Any] = running
        self.start_thread: Callable[[], object] = start_thread
        self.look: Callable[[], None] = look
        self._failures, self._observers = failures, observers

    def is_clear(self) -> bool:
        """True if no program has failed, and no handler or capture sees records."""
        failures, observers = self._failures, self._observers
        has_failed = failures.programs or failures.unended or failures.abandoned
        return not (has_failed or observers.handlers or observers.captures)

    def take_results(self, site: Site, returned: Any) -> list[Any]:
        """The results of a function, as bytes."""
        content: Any = site.content  # a `HostCall`
        return [to_bytes(x) for x in take_results(content, returned, content.results or ())]

    def fail(
        self,
        error: BaseException,
        call: Any,
        key: ProgramKey,
        wait_for_nested: WaitForNested,
        site: Site,
        token: tuple[int, ...],
        device: int,
    ) -> str:
        """Ends the program of a function that raised this error or returned a wrong value. `call`: the program's
        `Call`. Returns the text that the program gets."""
        replay = Replay(self._failures, self._observers, call, key, wait_for_nested)
        return _shown(replay.end(error, site, token, device))
