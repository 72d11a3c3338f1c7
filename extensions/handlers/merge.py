"""`effects merge`: the logs of a run's processes, put into program order by their tokens alone.

A record's place is (thread, epoch, domain, phase, index), and in a per-device region, where every device counts for
itself, also (device); records under `vmap` follow by lane. That is the order in which the drain of one process with all
the devices would have let them go. Threads follow one after the other, since each counts for itself.

- A record of a whole value is in the log of each process whose devices ran the program, and the same in all: it is kept
  once. So is what every process did by itself, if all did the same; if only the values differ, each process's is kept.
- What has no place of its own comes behind what it came behind in its process's log: an unordered record, one of a
  program that plain `jax.jit` dispatched, and one of a program that a callback called.

Nothing here asks JAX for devices: logs can be merged anywhere.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from effects._model.wire import ALL_DEVICES, EPOCH, FIRST_NESTED_THREAD, TOKEN_LENGTH, domain_of, in_region, thread_of

# The logs of processes, as `fx.JsonLinesHandler` writes them: reading them, and what is where in program order.

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


# The logs of a run that has crashed: what all processes have come to.

_Sequence = tuple[int, int]
"""A thread and an order domain, whose records are in the log in program order."""
_At = tuple[int, int, int]
"""Where a record is among them: epoch, phase, index."""


@dataclasses.dataclass(frozen=True)
class End:
    """Where the log of a process ends.

    Attributes:
        path: The log.
        last: Its last record, as messages show it; empty if it has none.
        left_out: How many of its records are behind what all processes have come to.
    """

    path: str
    last: str
    left_out: int


def cut(logs: Sequence[Log]) -> list[End]:
    """Takes from logs what is behind the common part. Returns where each ends."""
    last: list[dict[_Sequence, _At]] = [_last_of_each(log) for log in logs]
    limits: dict[_Sequence, _At] = {}
    for log in logs:
        for line in log.placed.values():
            of, _ = _where(line)
            if of not in limits:
                limits[of] = min(ends[of] for ends in last if of in ends)
            if line.kind == "whole" and any(of not in last[process] for process in line.record["processes"]):
                limits[of] = (START, START, START)  # who should have it has nothing of them
    return [_cut(log, limits) for log in logs]


def _last_of_each(log: Log) -> dict[_Sequence, _At]:
    last: dict[_Sequence, _At] = {}
    for line in log.placed.values():
        of, at = _where(line)
        last[of] = max(at, last.get(of, at))
    return last


def _where(line: Line) -> tuple[_Sequence, _At]:
    assert line.place is not None
    thread, epoch, domain, phase, index, *_ = line.place
    return (thread, domain), (epoch, phase, index)


def _cut(log: Log, limits: dict[_Sequence, _At]) -> End:
    def is_common(line: Line) -> bool:
        of, at = _where(line)
        return at <= limits[of]

    end = log.lines[-1].shown if log.lines else ""
    behind = {place for place, line in log.placed.items() if not is_common(line)}
    log.placed = {place: line for place, line in log.placed.items() if place not in behind}
    unplaced = sum(len(log.behind.pop(place)) for place in [*log.behind] if place in behind)
    return End(log.path, end, len(behind) + unplaced)


MSG_LOG_RUNS = (
    "The logs {path} and {other} are of different runs. Logs are merged if they were written by the processes of one "
    "`jax.distributed.initialize`. Merge each run by itself."
)
MSG_LOG_PROCESS_TWICE = (
    "The logs {path} and {other} are both of process {process}. Each process of a run has one log. Leave one of them "
    "out."
)
MSG_LOG_MISSING = (
    "There is no log of process {missing}, of {count} processes in this run. The order can be found only if all "
    "processes have their say. Name the logs of all of them."
)
MSG_LOGS_DIFFER = (
    "The logs {a} and {b} differ: the first has {first}, where the second {second}. All processes of a run call the "
    "same programs in the same order, since that is what their tokens count. Call the same in every process; what is "
    "to differ belongs into a `jax.shard_map`."
)


_OF_PROCESS = ("process", "processes", "process_count", "run", "time")
"""What a record says of its process, and of when that has replayed it."""

_OF_RUN = ("process_count", "run", "time")
_AS_ONE = {"process": 0, "processes": [0]}
"""A merged log is that of one process with all the devices: it leaves out the former, and says the latter. Each process
has a time of its own for what they have in common."""


def merge(
    paths: Sequence[str | os.PathLike[str]], *, partial: bool = False, ends: list[End] | None = None
) -> list[dict[str, Any]]:
    """The records of a run whose processes have written these logs, each with a `JsonLinesHandler`, in program order.

    They are as one process with all the devices would have written them. Those of programs that callbacks called, or
    plain `jax.jit`, have None as thread and token, since these numbers are of each process's own.

    Args:
        paths: The logs.
        partial: Whether the run may have crashed. Then what all processes have come to is merged, and a line that is
            cut off is left out.
        ends: A list to which is added where each log ends.

    Raises:
        LogError: if a log cannot be read, or the logs do not belong together.

    Example:
        >>> import effects as fx, pathlib, tempfile
        >>> from effects.extensions.handlers.merge import merge
        >>> path = pathlib.Path(tempfile.mkdtemp(), "run.jsonl")
        >>> added = fx.add_handler(fx.JsonLinesHandler(path))
        >>> fx.jit(lambda x: fx.log("step", loss=x))(0.5)
        >>> fx.remove_handler(added)
        >>> [(record["event"], record["fields"]) for record in merge([path])]
        [('step', {'loss': 0.5})]
    """
    logs = [read_log(os.fspath(path), may_be_cut_off=partial) for path in paths]
    _check_that_they_belong_together(logs)
    logs.sort(key=lambda log: log.process)
    if partial:
        found = cut(logs)
        if ends is not None:
            ends += found
    else:
        _check_unordered(logs)
    return list(map(_merged, _in_order(logs)))


def text_of(record: dict[str, Any]) -> str:
    """A merged record as a line of text."""
    if "event" not in record:
        return record["text"]
    return " ".join([record["event"], *(f"{name}={_shown(value)}" for name, value in record["fields"].items())])


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# Checking


def _check_that_they_belong_together(logs: Sequence[Log]) -> None:
    first = logs[0]
    by_process: dict[int, Log] = {}
    for log in logs:
        if (log.run, log.process_count) != (first.run, first.process_count) or (log.run is None and log is not first):
            raise LogError(MSG_LOG_RUNS.format(path=log.path, other=first.path))
        known = by_process.setdefault(log.process, log)
        if known is not log:
            raise LogError(MSG_LOG_PROCESS_TWICE.format(path=log.path, other=known.path, process=log.process))
    if missing := sorted(set(range(first.process_count)) - by_process.keys()):
        shown = ", ".join(map(str, missing))
        raise LogError(MSG_LOG_MISSING.format(missing=shown, count=first.process_count))


def _check_that_they_agree(logs: Sequence[Log], place: Place, lines: dict[int, Line]) -> None:
    """What is at one place of all processes: that all who should have it do, and have the same."""
    first = next(iter(lines.values()))
    if first.kind == "device":
        if len(lines) > 1:
            raise _difference(*list(lines.values())[:2])
        return
    for line in lines.values():
        if line.kind != first.kind or (line.kind == "whole" and _processes_of(line) != _processes_of(first)):
            raise _difference(first, line)
    if first.kind == "whole":
        expected = _processes_of(first)
    elif any("processes" in line.record for line in lines.values()):
        expected = list(lines)  # of several devices that a process has for itself
    else:
        expected = range(len(logs))
    for process in expected:
        line = lines.get(process)
        if line is None:
            if first.kind == "process" and _goes_on(logs[process], place):
                continue  # a program on one device of another process
            raise _lack(first, logs[process], place)
        if _said_by(line) != _said_by(first) or (first.kind == "whole" and not _are_the_same([first, line])):
            raise _difference(first, line)


def _goes_on(log: Log, place: Place) -> bool:
    """Whether a log has nothing of a dispatch, but of a later one: its process has counted it."""
    thread, epoch, *_ = place
    return (thread, epoch) not in log.epochs and epoch < log.newest.get(thread, epoch)


def _processes_of(line: Line) -> list[int]:
    """Those that have this record of a whole value."""
    return line.record["processes"]


def _said_by(line: Line) -> Any:
    """What all processes say in common, whatever their values: the effect, where it is, and what its content says."""
    return _content(line, _WITHOUT_VALUES)


_PLACED_BY_DEVICE = ("device", *_OF_PROCESS)
_WITHOUT_PLACE = ("device", "thread", "token", *_OF_PROCESS)
_WITHOUT_VALUES = (*_WITHOUT_PLACE, "lane", "ordered", "fields", "args", "text")


def _are_the_same(lines: Iterable[Line], without: Sequence[str] = _PLACED_BY_DEVICE) -> bool:
    first, *others = [_content(line, without) for line in lines]
    return all(other == first for other in others)


def _content(line: Line, without: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in line.record.items() if name not in without}


def _difference(a: Line, b: Line) -> LogError:
    return LogError(MSG_LOGS_DIFFER.format(a=a.log.path, b=b.log.path, first=a.shown, second=f"has {b.shown}"))


def _lack(line: Line, log: Log, place: Place) -> LogError:
    """A log does not have what another has."""
    places = sorted(log.placed)
    at = bisect.bisect(places, place)
    goes_on = f"goes on with {log.placed[places[at]].shown}" if at < len(places) else "ends"
    return LogError(MSG_LOGS_DIFFER.format(a=line.log.path, b=log.path, first=line.shown, second=goes_on))


# Merging


def _in_order(logs: Sequence[Log]) -> Iterator[Line]:
    """All lines that the merged log has. `logs` are in the order of their processes."""
    at: dict[Place, dict[int, Line]] = collections.defaultdict(dict)
    for log in logs:
        for place, line in log.placed.items():
            at[place][log.process] = line
    behind = {place for log in logs for place in log.behind}
    for place in sorted({*at, *behind}):
        lines = at.get(place, {})
        if lines:
            _check_that_they_agree(logs, place, lines)
        if len(lines) > 1 and not _are_the_same(lines.values()):
            for process, line in lines.items():  # what processes did by themselves, with values of their own
                yield line
                yield from _those_behind([logs[process]], place)
        else:
            yield from list(lines.values())[:1]
            yield from _those_behind(logs, place)


def _those_behind(logs: Sequence[Log], place: Place) -> Iterator[Line]:
    """What has no place, and came behind this one: once if all these logs have the same."""
    each = [[line for line in log.behind.get(place, ()) if not _is_copy(line)] for log in logs]
    contents = [[_content(line, _WITHOUT_PLACE) for line in lines if line.kind != "whole"] for lines in each]
    if all(content == contents[0] for content in contents):
        own = [[line for line in lines if line.kind == "whole"] for lines in each[1:]]
        each = [each[0], *own]
    for lines in each:
        yield from lines


def _is_copy(line: Line) -> bool:
    """Whether an unordered record of a whole value is kept from the log of another process."""
    return line.kind == "whole" and line.log.process != min(_processes_of(line))


def _check_unordered(logs: Sequence[Log]) -> None:
    """Each process of a program has the same unordered records of whole values, in whatever order."""
    counts: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    some: dict[str, Line] = {}
    for log in logs:
        for line in (line for lines in log.behind.values() for line in lines if line.kind == "whole"):
            key = json.dumps(_content(line, _PLACED_BY_DEVICE), sort_keys=True)
            counts[key][log.process] += 1
            some.setdefault(key, line)
    for key, line in some.items():
        for process in _processes_of(line):
            if counts[key][process] != counts[key][line.log.process]:
                a, b, second = line.log.path, logs[process].path, "does not have it as often"
                raise LogError(MSG_LOGS_DIFFER.format(a=a, b=b, first=line.shown, second=second))


def _merged(line: Line) -> dict[str, Any]:
    """A record as one process with all the devices would have written it."""
    record = {name: _AS_ONE.get(name, value) for name, value in line.record.items() if name not in _OF_RUN}
    if record["thread"] >= FIRST_NESTED_THREAD:
        record["thread"] = record["token"] = None  # numbers of the drain's own
    return record
