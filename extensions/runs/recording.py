"""`fx.record`: writes what happens into a run file, which is mapped into memory."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np

from effects import _errors as errors
from effects import _jax, _removed
from effects._commands import run_before_commands
from effects._model.device import PLATFORMS
from effects._model.filter import LOGGER
from effects._model.site import Site
from effects._model.wire import PLAIN_THREAD, Kind, stream_of
from effects.dispatch.runtime.background import uninterrupted
from effects.dispatch.runtime.runtime import effects_barrier, runtime
from effects.extensions.runs.reading import STOPPED
from effects.lowering.native_module import native
from effects.lowering.sites import known_sites

MSG_MAX_BYTES = (
    "`fx.record` was given `max_bytes={max_bytes}`. The file has room for so many bytes of records, from {least} to "
    "{most}. Pass, say, `max_bytes=64 << 20`."
)
MSG_SECOND = (
    "`fx.record` was called in a process that records into {path}. A process records into one file at a time. End the "
    "other recording first, or start the process without `EFFECTS_RUN`, if that began it."
)
MSG_UNWRITABLE = (
    "The run file {path} cannot be written: {why}. It takes all of its {size} when recording begins. Name another "
    "file{or_else}."
)
MSG_PATH = "The path of a run file is {path!r}. No path has a zero character. Leave it out."
MSG_OVER = "A recording into {path} was used again after its end. A recording records once. Call `fx.record` again."
UNRECORDED = "{error} The program goes on, and is not recorded."
MSG_STOPPED = (
    "Recording into {path} has stopped: the file system takes no more. The program goes on, and the records so far can "
    "be read. Free some space, or record to another file."
)

_ANOTHER = "another process records into it"
_OR_ELSE = {os.strerror(number): ", or lower `max_bytes`" for number in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)}
_OR_ELSE[_ANOTHER] = ", or end the process that writes it"

_LEAST, _USUAL, _MOST = 1 << 16, 64 << 20, 1 << 40


class _Writing:
    """A running recording. It does not end if the user drops the `Recording` of it."""

    def __init__(self, path: str):
        self.path = path
        self._described: set[int] = set()
        self.holder: Callable[[], object] = lambda: None  # while it returns an object, no other may start

    def start(self, max_bytes: int, inode: int | None = None, at_first_effect: bool = False) -> bool:
        """Returns False if another process records into the file. No signal handler may run in here, nor in `end`."""
        with _lock:
            if _running and _running[0].holder() is not None:
                raise errors.runtime_error(MSG_SECOND.format(path=_running[0].path))
            for other in [*_running]:
                other.end()
            note_functions = runtime.drain.note_functions  # raises in a forked child without effects
            try:
                if not native.start_recording(self.path, max_bytes, inode):
                    return False
            except RuntimeError as error:
                raise self.unwritable(str(error), max_bytes) from None
            _running.append(self)
            streams = [*runtime.streams.all()]
            calls = [(each, *call) for each in streams for call in each.calls.copy().items()]
            # Programs that were called before: thread, number, name, and True if the call has returned.
            unended = [(each.thread, number, of[0].name, number not in each.unreturned()) for each, number, of in calls]
            if at_first_effect:  # of a call that has not returned, which the recording has as a whole
                for thread, number, name, has_returned in unended:
                    if not has_returned:
                        native.note(Kind.DISPATCHED, (stream_of(thread), number, 0, 0), text=name)
                unended = [call for call in unended if call[-1]]
            self._calls = {"calls": [(each.thread, each.oldest_unreturned()) for each in streams], "unended": unended}
            note_functions(True)
            known_sites.listen(self.describe)
            for site in known_sites.all():
                self.describe(site)
            return True

    def unwritable(self, why: str, max_bytes: int = _USUAL) -> OSError:
        size, or_else = f"{max_bytes / (1 << 20):.1f} MiB", _OR_ELSE.get(why, "")
        return OSError(MSG_UNWRITABLE.format(path=self.path, why=why, size=size, or_else=or_else))

    def describe(self, site: Site) -> None:
        """Writes a site's description, before its program is called. If interrupted, the program is lowered again."""
        if self not in _running or site.id in self._described:
            return
        is_there = bool(self._described) or native.describe_process(json.dumps(_process() | self._calls))
        if is_there and native.describe_site(site.id, site.description):
            self._described.add(site.id)
        else:
            native.note(Kind.FAILED, (stream_of(PLAIN_THREAD), 0, 0, 0), text=STOPPED)
            self.close()
            LOGGER.error(MSG_STOPPED.format(path=self.path))

    def close(self) -> None:
        if self in _running:
            uninterrupted(self.end)

    def end(self) -> None:
        with _lock:
            if self not in _running:
                return
            _running.remove(self)
            for stream in runtime.streams.all():
                stream.running_newest()  # polls, so that ended programs are noted
            runtime.drain.note_functions(False)
            known_sites.stop_listening(self.describe)
            native.stop_recording()


class Recording:
    """The recording that `fx.record` returns. As a context manager it ends with its block.

    Attributes:
        path: The file.
    """

    def __init__(self, writing: _Writing):
        self.path: str = writing.path
        self._writing = writing
        self._process = os.getpid()
        self._is_over = False

    def close(self) -> None:
        """Ends the recording, and shrinks its file to its records. A second call does nothing, nor does one in a forked
        child."""
        self._is_over = True
        self._writing.close()

    def __enter__(self) -> Self:
        if self._is_over:
            raise errors.runtime_error(MSG_OVER.format(path=self.path))
        self._writing.holder = weakref.ref(self)  # freed if an interrupt comes before `__exit__`
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._process != os.getpid():
                return  # the block is the parent's
            if kind is None:
                effects_barrier()
            else:
                runtime.waiting.for_thread()  # the block's own error takes precedence
        finally:
            self.close()


_running: list[_Writing] = []
"""The recording of this process, if there is one."""

_lock = threading.RLock()
"""Held while a recording begins or ends."""


@_removed.without_arguments("fx.record", "keep")
def record(path: str | os.PathLike[str], *, max_bytes: int = _USUAL) -> Recording:
    """Records the effects of this process into a run file, which `effects show` and `effects.runs.read` read.

    Each effect is written as its device publishes it, with its place in program order, its time and all of its values,
    and beside it when programs are called, fail and end, when callbacks run, and when a thread waits in a barrier.
    However the process ends, the file has all of that, also effects that the drain had not reached. A `with` block ends
    with a barrier, and ends the recording. Without one it ends with the process, or at the next call of `fx.record`.

    Args:
        path: The file. One that exists is kept under another name, with the first free number behind it: `run.fx.1`.
        max_bytes: The room for records in bytes, which the file takes on the disk at once. Descriptions of sites
            come on top, some hundred bytes each; where the disk has no room for one, recording stops. A file that is
            full keeps the newest records, at least half of `max_bytes`.

    Returns:
        The recording, with `close()`.

    Raises:
        OSError: if the file cannot be written, has no room on the disk, or is another process's recording.
        RuntimeError: if this process records already, in a `with` block or by `EFFECTS_RUN`.

    Example:
        >>> import effects as fx, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "run.fx")
        >>> with fx.record(path):
        ...     fx.jit(lambda x: fx.log("step", loss=x))(0.5)
        >>> [record.fields["loss"].item() for record in fx.runs.read(path)]
        [0.5]
    """
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or not _LEAST <= max_bytes <= _MOST:
        raise errors.value_error(MSG_MAX_BYTES.format(max_bytes=errors.shown(max_bytes), least=_LEAST, most=_MOST))
    path = os.fsdecode(path)
    if "\0" in path:
        raise errors.value_error(MSG_PATH.format(path=path))
    if _process_recording.is_due:
        raise errors.runtime_error(MSG_SECOND.format(path=_process_recording.path))
    writing = _Writing(os.path.abspath(path))
    try:
        if not uninterrupted(lambda: writing.start(max_bytes)):
            raise writing.unwritable(_ANOTHER, max_bytes)
        return Recording(writing)
    except BaseException:
        writing.close()
        raise


_BEGAN = "_EFFECTS_RUN_BEGAN"
"""The variable that tells a process's children the inode of the earlier file with their run's path, and the path."""


class _ProcessRecording:
    """The recording of a whole process, from its first effect on. A process without effects writes no file.

    In a folder each process writes a separate file. If processes that start each other share a path, the first one that
    has an effect takes it, and the others add their process id to the name. A file that was there when the first of
    these processes began is an earlier run's, and is kept under another name.
    """

    def __init__(self) -> None:
        self.path: str = ""
        self.is_due: bool = False  # true while it waits for the first effect
        self._writing: _Writing | None = None

    def ask(self, path: str) -> None:
        """Makes this process and its children record into this file or folder."""
        end = os.sep if path.endswith(os.sep) or os.path.isdir(path) else ""
        self.path = os.environ["EFFECTS_RUN"] = os.path.abspath(path) + end  # children may start in another folder
        if os.environ.get(_BEGAN, "").partition(" ")[2] != self.path:
            inode = os.stat(self.path).st_ino if os.path.exists(self.path) else 0
            os.environ[_BEGAN] = f"{inode} {self.path}"
        self.is_due = True
        known_sites.listen(self.begin)
        run_before_commands(self.leave)

    def leave(self) -> None:
        """Cancels a recording that has not begun."""
        self.is_due = False

    def begin(self, site: Site) -> None:
        """Begins the recording if it is due, before the effects of a site."""
        if self.is_due and (error := uninterrupted(self._begin)) is not None:
            LOGGER.warning(UNRECORDED.format(error=error))
        if self._writing is not None:
            self._writing.describe(site)

    def _begin(self) -> OSError | None:
        with _lock:
            error = None
            for path, inode in self._files() if self.is_due else ():
                writing = _Writing(path)
                writing.holder = lambda: self
                try:
                    if not os.path.exists(os.path.dirname(path)):
                        os.makedirs(os.path.dirname(path), exist_ok=True)
                    if writing.start(_USUAL, inode, at_first_effect=True):
                        self._writing, error = writing, None
                        break
                    error = writing.unwritable(_ANOTHER)
                except OSError as problem:
                    error = writing.unwritable(problem.strerror) if problem.strerror else problem
                    break
            self.is_due = False
            return error

    def _files(self) -> list[tuple[str, int | None]]:
        """The files to try in turn, each with the inode of an older file that may be moved aside (None: any)."""
        if self.path.endswith(os.sep):
            return [(os.path.join(self.path, f"{socket.gethostname()}-{os.getpid()}.fx"), None)]
        root, extension = os.path.splitext(self.path)
        inode = int(os.environ[_BEGAN].partition(" ")[0])
        return [(self.path, inode), (f"{root}-{os.getpid()}{extension}", None)]

    def after_fork(self) -> None:
        """Leaves the recording to the parent, in a forked child, which begins one of its own."""
        self.is_due = bool(self.path) and not runtime.is_lost
        self._writing = None


_process_recording = _ProcessRecording()


def _close_all() -> None:
    for writing in [*_running]:
        writing.close()


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    for writing in _running:
        known_sites.stop_listening(writing.describe)
    _running.clear()
    if not runtime.is_lost:
        runtime.drain.note_functions(False)
    _process_recording.after_fork()


runtime.call_at_end(_close_all)
os.register_at_fork(after_in_child=_after_fork)
record_process: Callable[[str], None] = _process_recording.ask


def _process() -> dict[str, Any]:
    """Describes this process. JAX's devices must exist."""
    places = {
        row.first_device + number: place
        for row in PLATFORMS.values()
        for number, place in _jax.device_places(row.name).items()
    }
    return {
        "run": _jax.run_id(),
        "process": jax.process_index(),
        "process_count": jax.process_count(),
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "command": sys.argv,
        "time": time.time(),
        "devices": [*places.items()],
        "owners": [device.process_index for device in jax.devices()],
        "print_options": {name: value for name, value in np.get_printoptions().items() if not isinstance(value, dict)},
    }
