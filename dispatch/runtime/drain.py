"""The drain: host threads that take what devices published, in order, and replay it.

Native code restores the order and formats what it can, without Python's lock. One thread leads: it takes batches and
replays them. While it runs user functions, it offers the lead to a standby thread, so that a function may wait for
effects, its own or others'. The functions of one order domain of one thread's programs never overlap; all others may.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator
from time import monotonic
from types import CodeType
from typing import Any

from effects import _errors as errors
from effects._model.callback import HostCall
from effects._model.content import Composite
from effects._model.record import Records
from effects._model.site import Site
from effects._model.wire import (
    NO_DOMAIN,
    PHASE,
    PLAIN_THREAD,
    Item,
    ItemKind,
    Kind,
    RecordsBetween,
    in_region,
    read_header,
)
from effects.dispatch.runtime.background import in_main_thread, uninterrupted
from effects.dispatch.runtime.beside import Beside
from effects.dispatch.runtime.failures import Failures, ProgramKey
from effects.dispatch.runtime.observers import Observers
from effects.dispatch.runtime.output_tokens import FailurePoll
from effects.dispatch.runtime.outputs import shown_beside_text
from effects.dispatch.runtime.parts import log_capacity_needed, parts_of
from effects.dispatch.runtime.replay import (
    DirectCallsHost,
    Replay,
    Runs,
    WaitForNested,
    answer_with,
    keys_of_run,
    outside_epochs,
    replay_text,
    sites_in,
)
from effects.dispatch.runtime.streams import Stream, Streams
from effects.dispatch.runtime.supervisor import Running, Supervisor, let_others_go_on
from effects.lowering.native_module import native
from effects.lowering.sites import KnownSites

MSG_CANCELLED = "The {effect} at {where} did not run. Its program had failed before. See the error of that program."
MSG_PROCESS_ENDS = (
    "A callback did not run. The process ends, and no effects are replayed any more. Call `fx.effects_barrier()` first."
)
MSG_OUTPUT_WAITS = (
    "An output waits for effects while text is written to it, and keeps the drain from showing these: a deadlock. The "
    "`write` of an output may wait if its class defines it, and the output was `sys.stdout` when the program was "
    "called. Define `write` in its class, set `sys.stdout` before the call, or do not wait."
)

_PATIENCE = 0.005
"""Seconds after which the drain looks for programs that failed, while any are running."""

_BETWEEN = len(RecordsBetween._fields)
"""The length of those parts of an item that are no `CallbackRecord`s."""

_FIELDS = ("kind", "thread", "epoch", "has_callbacks", "reply")
_KIND, _THREAD, _EPOCH, _HAS_CALLBACKS, _REPLY = map(Item._fields.index, _FIELDS)


class Drain:
    """The drain's threads, and their state for other threads. Drain threads write the fields."""

    def __init__(
        self, streams: Streams, failures: Failures, observers: Observers, sites: KnownSites, failure_poll: FailurePoll
    ) -> None:
        self._streams = streams
        self._failures = failures
        self._observers = observers
        self._sites = sites
        self._failure_poll = failure_poll
        streams.is_named = lambda thread: failures.names(thread) or self.has_functions_of(thread)
        self.beside: Beside = Beside()  # see `run_beside`
        self.runs: Runs = {}
        # By the identity of a drain thread: the function that it runs, as the first fields of a `Running`.
        self.running: dict[int, tuple[Site, ProgramKey, tuple[int, ...], int, float]] = {}
        self._nested: dict[int, Stream] = {}  # also by identity: the stream of the programs that its functions dispatch
        host = DirectCallsHost(
            *(streams, failures, observers, sites, self.runs, self.running),
            *(lambda: self.ended or self._start_thread(), self._look),
        )
        self._direct = native.DirectCalls(host, _PATIENCE)
        self.ended: bool = False  # the process is ending: nothing runs in the background any more
        self.asks_person: bool = False  # see `asking_person`
        self._notes_functions = False
        self.discards: bool = False  # true at the end of the process: later records are left out
        self.has_discarded: bool = False  # true if some have been left out
        self._batches = 0  # the leader's
        self._writes = 0  # the leader's identity while it writes text without offering the lead
        # The code in which idle threads wait.
        self.idle_code: Collection[CodeType] = {Drain._run.__code__, Drain._step.__code__}
        self.supervisor: Supervisor = Supervisor(streams, failures, self)
        self._threads: list[threading.Thread] = []  # started threads, ended ones included
        self._start_lock = threading.Lock()
        self.before_start: Callable[[], None] = lambda: None  # functions to call before the first thread starts

    def note_functions(self, on: bool) -> None:
        """Starts or stops noting in the open run file when functions begin and end."""
        self._notes_functions = on

    def run_beside(self, functions: Beside) -> None:
        """Sets the functions that run beside their programs."""
        self.beside = functions

    @contextlib.contextmanager
    def asking_person(self) -> Iterator[None]:
        """Marks a `with` block in which a function waits for a person: the supervisor reports no stall."""
        self.asks_person = True
        try:
            yield
        finally:
            self.asks_person = False

    def is_suspended(self, thread: int) -> bool:
        """True if functions of this thread's programs are under way."""
        return any(of_thread == thread for of_thread, *_ in self.runs.copy().values())

    def replays(self, thread: int, keys: frozenset[str | int]) -> bool:
        """True if records of this thread's programs and of these effects are being replayed. `keys`: see
        `keys_of_effects`."""
        return any(run[0] == thread and not keys.isdisjoint(keys_of_run(run)) for run in self.runs.copy().values())

    def has_functions_of(self, thread: int) -> bool:
        """True if functions that this thread's programs have called, or started asynchronously, are under way."""
        return self.is_suspended(thread) or any(run.caller == thread for run in self.beside.unended())

    def functions(self) -> list[str]:
        """The names of the functions that run, for messages."""
        running = self.running_functions().values()
        return [*(str(function) for function in running if function.run is None), *map(str, self.beside.unended())]

    def runs_in_ended_program(self) -> bool:
        """True if the supervisor has ended the program of the function that the calling thread runs."""
        now = self.running.get(threading.get_ident())
        return now is not None and now[0].results is not None and not now[3]

    def running_functions(self) -> dict[int, Running]:
        """The functions that run, by the identities of their drain threads."""
        running = self.running.copy()
        runs = {thread: self.beside.awaited_by(thread) for thread in running}
        streams = {thread: run.stream if run else self._nested.get(thread) for thread, run in runs.items()}
        return {thread: Running(*function, streams[thread], runs[thread]) for thread, function in running.items()}

    def threads(self) -> list[int]:
        """The identities of the living threads of the drain."""
        return [thread.ident for thread in self._threads if thread.ident is not None and thread.is_alive()]

    @property
    def has_started(self) -> bool:
        return bool(self._threads)

    def start(self) -> None:
        """Starts a leader and a standby thread, if none runs yet."""
        if not self._threads and not self.ended:
            uninterrupted(self._start_threads)

    def _start_threads(self) -> None:
        with self._start_lock:
            if not self._threads and not self.ended:
                self.before_start()
                if self._start_thread():
                    self._start_thread()
                    with contextlib.suppress(RuntimeError):  # the system's limit of threads
                        self.supervisor.start()
                else:
                    self.ended = True

    def _start_thread(self) -> bool:
        """Starts a thread. Returns False if it could not be started, as when the interpreter ends."""
        thread = threading.Thread(target=self._run, name="effects-drain", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._threads = [*(other for other in self._threads if other.is_alive()), thread]
        return True

    def stop(self, timeout: float | None = None) -> bool:
        """Ends the threads. Returns True if they have ended in time."""
        native.stop()
        deadline = None if timeout is None else monotonic() + timeout
        while threads := [thread for thread in self._threads if thread.is_alive()]:  # a thread may start another
            if deadline is not None and deadline <= monotonic():
                return False
            threads[0].join(None if deadline is None else max(0.0, deadline - monotonic()))
        native.fail_replies(MSG_PROCESS_ENDS)
        self.supervisor.stop()
        self.ended = True
        return True

    def give_up(self, patience: float) -> None:
        """Replays nothing from now on. Waits a moment for functions that run."""
        self.discards = True
        self._direct.close()
        for _ in range(2):  # the second time, functions that do not return are ignored
            native.fail_replies(MSG_PROCESS_ENDS)
            self.wait(lambda: not any(stream.calls for stream in self._streams.all()), patience)
            for key, (run, number, *_) in [*self.runs.items()]:
                if self.runs.pop(key, None) is not None:
                    native.resume(run, number)
        self.stop(patience)
        self.supervisor.stop()
        native.fail_replies(MSG_PROCESS_ENDS)
        self.ended = True

    def wait(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Waits until `done()`, which is called when the drain advances. False if the time ran out."""
        if self.ended:
            self.finish(done)
            return True
        if self._writes == threading.get_ident():
            raise errors.runtime_error(MSG_OUTPUT_WAITS)
        if not self.has_started and not done():  # a program that failed while it was traced or compiled has an epoch
            self.start()
        return native.wait(lambda: done() or self.ended, timeout, native.is_nested())

    def finish(self, done: Callable[[], bool]) -> None:
        """Replays the records that arrive after the drain's threads have ended. The main thread does so, at exit."""
        if not in_main_thread():
            return
        with self._streams.nested_here() as nested:
            while not done():
                _, replayed, _ = self._step(self._waiting_for(nested), nested.calls)
                if not replayed:
                    self._failure_poll.look()

    def _waiting_for(self, nested: Stream) -> WaitForNested:
        def wait_for_nested(key: ProgramKey) -> None:
            # A thread must not wait for itself: an output whose wait was refused has left its program in the thread's
            # stream.
            if (nested.calls or self._failures.programs) and key[0] != nested.thread:
                self.wait_for_nested(nested, key)

        return wait_for_nested

    def _run(self) -> None:
        nested = self._nested[threading.get_ident()] = self._streams.nest_this_thread()
        wait_for_nested = self._waiting_for(nested)
        self.supervisor.add_clock()
        leads = False
        while not leads and native.stand_by():
            leads, stopped = True, False
            while leads and not stopped:
                leads, _, stopped = self._step(wait_for_nested, nested.calls)
        del self._nested[threading.get_ident()]
        if leads:
            native.leave()

    def _step(self, wait_for_nested: WaitForNested, nested: dict[int, Any]) -> tuple[bool, bool, bool]:
        """Replays a batch. Returns three booleans: true if this thread still leads; if the batch was not empty; if the
        drain must end. `nested`: the open calls of the programs that this thread's functions dispatch."""
        batch: Any = self._direct.next_batch(wait_for_nested, nested)  # plain tuples: `Batch` and `Item` take time
        if batch is None:
            return False, True, False
        items, finished, complete, forgotten, run, domain, number, stopped = batch
        # Looked up now: another thread may lead, and end these epochs, before all is replayed.
        calls = [self._call_of(item[_THREAD], item[_EPOCH]) for item in items]
        at, leads = 0, True
        if items and items[0][_KIND] == ItemKind.TEXT:
            at = self._show_texts(items, calls)
        if native.has_host_failures():  # before the ends of their programs
            self._failures.take_from_host_functions()
        if run is not None:
            self.runs[id(items)] = run, number, items, self._keys_of(items, calls, at, domain)
        for thread, epoch, left in complete:
            if (stream := self._streams.get(thread)) is not None:
                stream.unreleased[epoch] = left
        if finished:
            self._end_epochs([each for each in finished if each[0] != run])
            finished = [each for each in finished if each[0] == run]
        elif complete:
            native.advance(0)
        if run is not None:
            leads = self._replay_run(items, calls, at, run, number, finished, wait_for_nested)
        elif forgotten:
            self._sites.forget(forgotten)
        self._batches += 1
        if leads and not stopped and (run is None or self._batches % 64 == 0):
            self._look()
        return leads, bool(items or finished), stopped

    def _keys_of(self, items: list[Any], calls: list[tuple[Any, Site | None]], first: int, domain: int) -> Any:
        """The keys of a run, for `keys_of_run`: the number of its order domain, or, without one, the names of each
        item's effects."""
        if domain != NO_DOMAIN:
            return frozenset((domain,))
        keys = [frozenset[str]()] * first
        for item, (_, site) in zip(items[first:], calls[first:], strict=True):
            find = self._sites.find if site is None else lambda _, site=site: site
            keys.append(frozenset(each.effect.name for each in sites_in(Item._make(item), find)))
        return keys

    def _look(self) -> None:
        """Looks for programs that failed and threads that ended, which no batch reports."""
        self._failure_poll.look()
        let_others_go_on(self._streams, self._failures, self.beside)
        self._streams.forget_ended()

    def _show_texts(self, items: list[Any], calls: list[tuple[Any, Site | None]]) -> int:
        """Writes the texts with which a batch begins. Returns how many there are."""
        at = 0
        self._writes = threading.get_ident()
        while at < len(items) and items[at][_KIND] == ItemKind.TEXT:
            self._show(Item._make(items[at]), *calls[at])
            items[at] = None
            at += 1
        self._writes = 0
        self._failures.clear_frames()
        return at

    def _end_epochs(self, finished: list[tuple[int, int, int]]) -> None:
        self.beside.end(finished)
        self._failures.drop_ended(finished)
        shown_beside_text().end(finished)
        plain = 0
        for thread, first, count in finished:
            if thread == PLAIN_THREAD:
                plain += count
            else:
                self._streams[thread].drop(first, count)
        native.advance(plain)

    def _replay_run(
        self,
        items: list[Any],
        calls: list[tuple[Any, Site | None]],
        first: int,
        run: int,
        number: int,
        finished: list[tuple[int, int, int]],
        wait_for_nested: WaitForNested,
    ) -> bool:
        """Replays the items from `first` on: records of one order domain of one thread's programs, which may run user
        functions. Returns True if this thread still leads."""
        if native.offer() == 0 and not self.ended:  # a live thread would crash the interpreter's finalization
            self._start_thread()
        answer = None
        for at in range(first, len(items)):
            item = items[at]
            try:
                if item[_HAS_CALLBACKS]:
                    answer = self._call(item, *calls[at], wait_for_nested)
                else:
                    self._show(Item._make(item), *calls[at])
                    wait_for_nested((item[_THREAD], item[_EPOCH]))
            except BaseException as error:  # an error of ours: other threads continue
                self._failures.add((item[_THREAD], item[_EPOCH]), error)
                if item[_REPLY]:
                    answer = item[_REPLY], error, False
            items[at] = item = None  # a function's arguments must not outlive its run
            if self._failures.frames:
                self._failures.clear_frames()
        suspended = self.runs.pop(id(items), None) is not None
        if finished:
            self._end_epochs(finished)
        else:
            native.advance(0)
        if suspended:  # last: once the domain is resumed, its next epochs may end
            native.resume(run, number)
        if answer is not None:
            reply, result, by_device = answer
            if by_device:
                native.set_offer_urgent()  # the device may go on to wait for others, whose records come later
            answer_with(reply, result)  # the waiting program may go on in this thread, however long it runs
        return native.reclaim()

    def _show(self, item: Item, call: Any, site: Site | None) -> None:
        """Replays an item without callbacks."""
        if self.discards:
            self.has_discarded = True
            return
        if item.kind == ItemKind.TEXT:
            has_failed = bool(self._failures.unended or self._failures.abandoned)
            replay_text(item, lambda epoch: self._replay(item.thread, epoch, call), self._sites.find, has_failed)
            return
        replay = self._replay(item.thread, item.epoch, call)
        if item.kind == ItemKind.RECORDS:
            replay.records(Records(item.data, item.count, self._sites.find if site is None else lambda _: site))
        else:
            header = read_header(item.data)
            site = site or self._sites.find(header.site)
            replay.records(Records.of_one(site, header, item.block))

    def _replay(self, thread: int, epoch: int, call: Any) -> Replay:
        return Replay(self._failures, self._observers, call or outside_epochs(), (thread, epoch))

    def _call(self, item: tuple[Any, ...], call: Any, eager_site: Site | None, wait_for_nested: WaitForNested) -> Any:
        """Runs the functions of an item, and replays the records between them. If a device waits for the last function,
        returns the number of the reply, the results or the error, and True if other devices have such calls."""
        _, thread, epoch, _, parts, _, _, failed, asked = item
        key, failures = (thread, epoch), self._failures
        replay = Replay(failures, self._observers, call or outside_epochs(), key, wait_for_nested)
        find = self._sites.find if eager_site is None else lambda _: eager_site
        answer, me = None, threading.get_ident()
        parts.reverse()
        while parts:
            if self.discards:
                self.has_discarded = True
                return (asked, MSG_PROCESS_ENDS, False) if asked else None
            part = parts.pop()  # it must not outlive its run
            if len(part) == _BETWEEN:
                data, count = part
                replay.records(Records(data, count, find))
                continue
            site_id, token, device, reply, several, payload, time = part
            site = find(site_id)
            content = site.content
            if not isinstance(content, HostCall) and isinstance(content, Composite):  # the first test is cheap
                if (warning := content.warning(site, payload)) is not None:
                    replay.warn(warning[0])
                    if call is not None:
                        log_capacity_needed[call[0]] = warning[1]
                        native.raise_attention()
                parts.extend(reversed([*parts_of(content.parts(site, payload), token, device, time)]))
                continue
            stopped = (failures.unended or failures.abandoned) and replay.stopped
            if stopped and site.mask is not None:  # otherwise a branch that no lane takes would end the program
                stopped = any(True for _ in site.resolve_sizes(payload).lanes_of(payload))
            if stopped or (failed and reply != 0):
                native.note_cancelled()
                if stopped:
                    replay.leave_out([(site.resolve_sizes(payload), token, device, payload, time)])
                if reply:
                    failures.end_stopped(key)
                    answer = reply, MSG_CANCELLED.format(effect=site.effect.name, where=site.where), False
                continue
            if self._notes_functions:
                native.note(Kind.BEGUN, token, site_id, device)
            self.running[me] = site, key, token, reply, monotonic()
            result = replay.function(site, token, device, payload, time, reply != 0)
            if self._notes_functions:
                native.note(Kind.DONE, token, site_id, device)
            self.running.pop(me, None)  # absent if the function waited after the threads had ended
            if reply:
                answer = reply, result, several and in_region(token[PHASE])
        return answer

    def wait_for_nested(self, nested: Stream, key: tuple[int, int] | None) -> None:
        """Waits for the programs that a function called, so that their effects come in the function's place. `key`: the
        program that gets their failures."""
        if nested.calls:
            self.wait(lambda: not nested.calls)
        for failure in self._failures.take({nested.thread}):
            if key is not None:
                self._failures.add(key, failure, stops=not isinstance(failure, errors.CheckError))

    def _call_of(self, thread: int, number: int) -> tuple[Any, Site | None]:
        """The `Call` of a program, and the site of an effect outside of programs."""
        if (stream := self._streams.get(thread)) is None:
            return None, None
        call = stream.calls.get(number)
        if self.runs and call is not None and self.is_suspended(thread):
            # An unordered record may overtake a callback that still runs in this context, and a `contextvars.Context`
            # cannot be entered twice: copy it.
            call = (*call[:2], call[2].copy())
        return call, (stream.eager.get(number) if stream.eager else None)
