"""`fx.record`: writes what happens into a run file, which is mapped into memory."""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import time
from types import TracebackType
from typing import Any, Self

import jax

from effects import _errors as errors
from effects import _jax
from effects._model.device import PLATFORMS
from effects._model.filter import LOGGER
from effects._model.site import Site
from effects.dispatch.runtime.runtime import effects_barrier, runtime
from effects.lowering.native_module import native
from effects.lowering.sites import known_sites

MSG_MAX_BYTES = (
    "`fx.record` was given `max_bytes={max_bytes}`. The file has room for so many bytes of records, from {least} to "
    "{most}. Pass, say, `max_bytes=64 << 20`."
)
MSG_KEEP = (
    "`fx.record` was given `keep={keep}`. A file that is full keeps the newest records, or the first ones. Pass "
    "`keep='newest'` or `keep='first'`."
)
MSG_SECOND = (
    "`fx.record` was called while this process records into {path}. A process records into one file at a time. End the "
    "other recording first."
)
MSG_UNWRITABLE = (
    "The run file {path} cannot be written: {why}. It takes all of its {size} when recording begins. Name another "
    "file, end the process that writes it, or lower `max_bytes`."
)
MSG_STOPPED = (
    "Recording into {path} has stopped: the file system takes no more. The program goes on. What was recorded before "
    "can be read."
)

_LEAST, _MOST = 1 << 16, 1 << 40


class Recording:
    """What `fx.record` returns: a recording that runs, and a `with` block at whose end it is over.

    Attributes:
        path: The file.
    """

    def __init__(self, path: str):
        self.path: str = path
        self._described: set[int] = set()
        self._has_ended = False

    def _start(self, max_bytes: int, keep: str) -> None:
        try:
            is_only = native.start_recording(self.path, max_bytes, keep == "newest")
        except RuntimeError as error:
            size = f"{max_bytes / (1 << 20):.1f} MiB"
            raise OSError(MSG_UNWRITABLE.format(path=self.path, why=error, size=size)) from None
        if not is_only:
            raise RuntimeError(MSG_SECOND.format(path=_recordings[-1].path))
        _recordings.append(self)
        runtime.drain.note_functions(True)
        known_sites.listen(self._describe)
        for site in known_sites.all():
            self._describe(site)

    def _describe(self, site: Site) -> None:
        """Before a program can be called that has the site."""
        if self._has_ended or site.id in self._described:
            return
        is_there = bool(self._described) or native.describe_process(json.dumps(_process()))
        self._described.add(site.id)
        if not (is_there and native.describe_site(site.id, site.description)):
            self.close()
            LOGGER.error(MSG_STOPPED.format(path=self.path))

    @property
    def lost(self) -> int:
        """How many records have found no room: the file is full and keeps the first, or one is larger than the file."""
        return native.lost_of_recording()

    def sync(self) -> None:
        """Returns when what has been recorded is on the disk, so that it outlives a power cut. It outlives the process
        in any case."""
        native.sync_recording()

    def close(self) -> None:
        """Ends the recording. A second call does nothing."""
        if self._has_ended:
            return
        self._has_ended = True
        _recordings.remove(self)
        for stream in runtime.streams.all():
            stream.running_newest()  # says which have ended
        runtime.drain.note_functions(False)
        known_sites.stop_listening(self._describe)
        native.stop_recording()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                effects_barrier()
            else:
                runtime.waiting.for_thread()  # the block's own error is the one to see
        finally:
            self.close()


_recordings: list[Recording] = []
"""The one that runs."""


def record(path: str | os.PathLike[str], *, max_bytes: int = 64 << 20, keep: str = "newest") -> Recording:
    """Records the effects of this process into a run file, which `effects show` and `effects.runs.read` read.

    Each effect is written as its device publishes it, with its place in program order, its time and all of its values,
    and beside it when programs are called, fail and end, when callbacks run, and when a thread waits in a barrier.
    Whatever ends the process, all of that is in the file, also what the drain had not come to. A `with` block ends with
    a barrier, and the recording with it.

    Args:
        path: The file. One that exists is replaced, unless another process records into it.
        max_bytes: How many bytes of records it has room for. It takes them on the disk at once, so that a disk that
            fills up later does no harm. Descriptions of sites come on top, some hundred bytes each.
        keep: What a full file keeps: `"newest"`, at least the newest half of `max_bytes`; or `"first"`.

    Returns:
        The recording, with `lost`, `sync()` and `close()`.

    Raises:
        OSError: if the file cannot be written, or has no room on the disk.
        RuntimeError: if this process records already.

    Example:
        >>> import effects as fx, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "run.fx")
        >>> with fx.record(path):
        ...     fx.jit(lambda x: fx.log("step", loss=x))(0.5)
        >>> [record.fields["loss"].item() for record in fx.runs.read(path)]
        [0.5]
    """
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or not _LEAST <= max_bytes <= _MOST:
        raise ValueError(MSG_MAX_BYTES.format(max_bytes=errors.shown(max_bytes), least=_LEAST, most=_MOST))
    if keep not in ("newest", "first"):
        raise ValueError(MSG_KEEP.format(keep=errors.shown(keep)))
    recording = Recording(os.path.abspath(os.fspath(path)))
    recording._start(max_bytes, keep)
    return recording


def record_process(path: str) -> None:
    """Records until the process ends. A folder, which has a separator at its end if it is still to be made, gets a file
    of its own from each process."""
    if path.endswith(os.sep) or os.path.isdir(path):
        os.makedirs(path, exist_ok=True)
        path = os.path.join(path, f"{socket.gethostname()}-{os.getpid()}.fx")
    recording = record(path)
    # The last that is registered comes first, and all effects come ahead of the end of the recording.
    atexit.unregister(runtime.stop)
    atexit.register(recording.close)
    atexit.register(runtime.stop)


def _process() -> dict[str, Any]:
    """What is known of this process once there are devices."""
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
    }
