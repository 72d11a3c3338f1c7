"""The logs of processes, as `fx.JsonLinesHandler` writes them: reading them, and what is where in program order."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

from effects._model.wire import ALL_DEVICES, EPOCH, FIRST_NESTED_THREAD, TOKEN_LENGTH, domain_of, in_region, thread_of

MSG_LOG_UNREADABLE = (
    "The log {path} cannot be read: {why}. `effects merge` takes files that `fx.JsonLinesHandler` has written, one of "
    "each process. Look at the name and the permissions of the file."
)
MSG_LOG_EMPTY = (
    "The log {path} {why}. A log says with each record of which run and process it is. See why its process has written "
    "nothing."
)
MSG_LOG_LINE = (
    "Line {line} of the log {path} {why}. Each line is a record, as `fx.JsonLinesHandler` writes it, and a process "
    "that was ended may leave half of one. Remove the line, or take the file that the handler has written."
)
MSG_LOG_OF_SEVERAL = (
    "Line {line} of the log {path} is of another process or run than its first line. A log is of one process. Merge "
    "the logs as their processes have written them, each in a file of its own."
)
MSG_LOG_TWICE = (
    "Lines {known} and {line} of the log {path} have the same token. A token is a place in program order, and no two "
    "effects of a run have the same. Merge logs as their processes have written them; of a file to which several runs "
    "were added with `append=True`, the lines of each run by themselves."
)

START = -1
"""In place of an epoch: before everything of a thread; in place of a thread: before everything."""

Place = tuple[Any, ...]


class LogError(ValueError):
    """A log cannot be read, or logs do not belong together."""


@dataclasses.dataclass(slots=True)
class Line:
    """A record, as a line of a log."""

    log: Log
    number: int
    record: dict[str, Any]
    place: Place | None = None  # None: it has none of its own
    kind: str = ""  # "whole": in the logs of all processes of its program; "device": of a region; "process": else

    @property
    def shown(self) -> str:
        record = self.record
        what = next((record[name] for name in ("fmt", "event", "text") if name in record), "")
        where, epoch = record["where"], record["token"][EPOCH]
        place = f"{where['file']}:{where['line']}, dispatch {epoch} of thread {record['thread']}"
        return f"line {self.number} ({record['effect']} {what!r} at {place})"


@dataclasses.dataclass(slots=True)
class Log:
    """The log of one process."""

    path: str
    run: str | None = None  # None: of a process by itself
    process: int = 0
    process_count: int = 1
    lines: list[Line] = dataclasses.field(default_factory=list)
    placed: dict[Place, Line] = dataclasses.field(default_factory=dict)
    behind: dict[Place, list[Line]] = dataclasses.field(default_factory=dict)  # by the place that they come behind
    epochs: set[tuple[int, int]] = dataclasses.field(default_factory=set)  # (thread, epoch) of which there is something
    newest: dict[int, int] = dataclasses.field(default_factory=dict)  # of these epochs, by thread


def read_log(path: str, *, may_be_cut_off: bool = False) -> Log:
    """The log at this path. A line that is cut off is an error, or left out where that may be."""
    try:
        with open(path, encoding="utf-8") as file:
            texts = file.read().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise LogError(MSG_LOG_UNREADABLE.format(path=path, why=why)) from None
    if len(texts) == 1 and (not texts[0] or may_be_cut_off):
        raise LogError(MSG_LOG_EMPTY.format(path=path, why="has no whole line" if texts[0] else "is empty"))
    log = Log(path)
    for number, text in enumerate(texts[:-1], start=1):
        _add(log, number, text)
    if texts[-1] and not may_be_cut_off:  # a line's end is what is written last
        raise LogError(MSG_LOG_LINE.format(path=path, line=len(texts), why="is cut off"))
    _find_places(log)
    return log


def _add(log: Log, number: int, text: str) -> None:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise LogError(MSG_LOG_LINE.format(path=log.path, line=number, why="is not JSON")) from None
    if not _is_record(record):
        raise LogError(MSG_LOG_LINE.format(path=log.path, line=number, why="is not a record"))
    if max([record["process"], *record.get("processes", ())]) >= record.get("process_count", 1):
        why = "names a process that the run does not have"
        raise LogError(MSG_LOG_LINE.format(path=log.path, line=number, why=why))
    origin = record.get("run"), record["process"], record.get("process_count", 1)
    if number == 1:
        log.run, log.process, log.process_count = origin
    elif origin != (log.run, log.process, log.process_count):
        raise LogError(MSG_LOG_OF_SEVERAL.format(path=log.path, line=number))
    log.lines.append(Line(log, number, record))


def _is_record(record: Any) -> bool:
    """Whether this is what `JsonLinesHandler` writes."""
    return (
        isinstance(record, dict)
        and isinstance(record.get("effect"), str)
        and (isinstance(record.get("text"), str) or isinstance(record.get("event"), str))
        and isinstance(record.get("fields"), dict)
        and isinstance(record.get("args"), list)
        and isinstance(where := record.get("where"), dict)
        and {"file", "line", "function"} <= where.keys()
        and (record.get("device") == ALL_DEVICES or _are_counts([record.get("device")]))
        and _are_counts([record.get("process"), record.get("process_count", 1)])
        and _are_counts(record.get("token"), TOKEN_LENGTH)
        and _are_counts([record.get("thread")])
        and isinstance(record.get("fmt", ""), str)
        and _are_counts(record.get("lane"))
        and _are_counts(record.get("processes", []))
        and isinstance(record.get("run", ""), str)
        and isinstance(record.get("ordered", True), bool)
    )


def _are_counts(value: Any, length: int | None = None) -> bool:
    return (
        isinstance(value, list)
        and length in (None, len(value))
        and all(isinstance(x, int) and not isinstance(x, bool) and x >= 0 for x in value)
    )


def _find_places(log: Log) -> None:
    newest: dict[int, Place] = {}  # of each thread
    last: Place = (START,)  # of all
    in_kernels: dict[Place, itertools.count[int]] = {}  # by token: how many effects of kernels there were
    for line in log.lines:
        record = line.record
        stream, epoch, phase, index = record["token"]
        thread, domain = thread_of(stream), domain_of(stream)
        is_whole = len(record.get("processes", ())) > (log.process_count > 1)
        log.epochs.add((thread, epoch))
        log.newest[thread] = max(epoch, log.newest.get(thread, epoch))
        line.kind = "device" if in_region(phase) else "whole" if is_whole else "process"
        if record.get("ordered", True) and thread < FIRST_NESTED_THREAD:
            device = record["device"] if line.kind == "device" else START
            token = thread, epoch, domain, phase, index, device
            # The effects of a compiled kernel share one token.
            nth = next(in_kernels.setdefault(token, itertools.count())) if "grid" in record else 0
            line.place = (*token, nth, tuple(record["lane"]))
            known = log.placed.setdefault(line.place, line)
            if known is not line:
                raise LogError(MSG_LOG_TWICE.format(path=log.path, line=line.number, known=known.number))
            last = newest[thread] = line.place
        else:
            behind = last if thread >= FIRST_NESTED_THREAD else newest.get(thread, (thread, START))
            log.behind.setdefault(behind, []).append(line)
