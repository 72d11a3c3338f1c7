"""`effects.runs.read`: the records of a run, from the files of its processes. Nothing here asks JAX for devices."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from effects import _errors as errors
from effects._model.content import Composite
from effects._model.effect import Effect
from effects._model.record import Part, Record, Records, RecordSequence, records_of
from effects._model.site import Site
from effects._model.text import NativeRows, plan_of_line
from effects._model.wire import ALL_DEVICES, EPOCH, FIRST_GPU, STREAM, Kind, thread_of
from effects.extensions.runs.unshown import FAILED, NO_EFFECT, Unshown, read_site, site_without_description
from effects.extensions.sites.lines import Pattern
from effects.lowering.native_module import native

MSG_UNREADABLE = (
    "The run file {path} cannot be read: {why}. A run file is what `fx.record` or EFFECTS_RUN has written. Correct the "
    "name of the file, or record the run again."
)
LEFT_OUT = "{path} is left out: {why}."
UNWHOLE = "{path}: {what} left out."
CUT = "{path}: the file was full, and its beginning is overwritten. How many records that was is not known."
STOPPED = "Recording stopped here, since the file system took no more. What followed is unknown."
UNDESCRIBED = "it does not say of which process it is"
MSG_EMPTY_FOLDER = (
    "The folder {path} has no run files. If EFFECTS_RUN names a folder, each process writes a file there whose name "
    "ends with `.fx`. Name another folder, or a file."
)
MSG_SEVERAL_RUNS = (
    "{paths} are of different runs. Files that are read together are those of one run's processes. Name the files of "
    "one run."
)
MSG_NO_SITE = (
    "No site of {path} is one of {said}. A site is a line with an effect. Correct what was given: there are sites in "
    "{files}, of the effects {effects}."
)
MSG_NO_PATH = "A run was asked for without a path. Runs are read from files. Name a run file or a folder of them."
MSG_SINCE = "`since` is not a number. A time is a number of seconds. Pass one as `since`, or leave it out."
MSG_COLUMNS = (
    "The records of {site} in {path} have different arguments. Columns are of one line. Name a single line, as in "
    "`train.py:31`."
)

_AT_A_TIME = 1 << 12


class RunError(ValueError):
    """A run file cannot be read, or files do not belong together."""


class RunRecord(Record):
    """A record of a run file: its device and process are those of the run."""

    __slots__ = ("_process", "_text")

    def __init__(self, process: Process, *of_record: Any):
        super().__init__(*of_record)
        self._process = process
        self._text: str | None = None

    @property
    def text(self) -> str:
        if self._text is None:
            try:
                with self._process.as_printed():
                    self._text = super().text
            except Exception as error:  # the callback failed in its program too, or a value differs in this process
                why = FAILED.format(error=error)
                self._site = dataclasses.replace(self._site, content=Unshown(why, self._site.content))
                self._text = super().text
        return self._text

    @property
    def device(self) -> int:
        return self._process.place(self._ordinal)

    @property
    def process(self) -> int:
        return self._process.number


@dataclasses.dataclass(eq=False)
class Process:
    """One process of a run, and its file.

    Attributes:
        path: The file.
        number: The number of the process in JAX. Workers, which JAX has not connected, have numbers after these.
        count: The number of processes that JAX has connected.
        name: The name of the file, without its ending.
        run: The identifier of the run; None for a process that JAX has not connected.
        command: The command line.
        torn: The number of gaps, each of one or more records that are not whole, as a killed process leaves them.
        lost: The least number of records that found no room in the file: if the disk was full, recording has stopped.
        is_cut: True if the file was full, so that its first records are overwritten.
        unknown: The number of records of sites whose description is missing or damaged. Their effect is `?`.
        is_written: True while the process records into the file.
        is_closed: True if the process has closed the recording.
    """

    path: str
    _file: native.RunFile = dataclasses.field(repr=False)
    number: int = 0
    count: int = 1
    run: str | None = None
    command: tuple[str, ...] = ()
    torn: int = 0
    lost: int = 0
    is_cut: bool = False
    unknown: int = 0
    is_written: bool = False
    is_closed: bool = False
    began: float = dataclasses.field(default=0.0, repr=False)
    calls: dict[int, int] = dataclasses.field(default_factory=dict, repr=False)  # by thread: the first one's number
    # By thread and number, the programs that ran when recording began: name, and True if the call had returned.
    earlier: dict[tuple[int, int], tuple[str, bool]] = dataclasses.field(default_factory=dict, repr=False)
    places: dict[int, int] = dataclasses.field(default_factory=dict, repr=False)
    owners: list[int] = dataclasses.field(default_factory=list, repr=False)  # the process of each of `jax.devices()`
    print_options: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    def as_printed(self) -> AbstractContextManager[Any]:
        """Sets NumPy's print options as the process had them when its recording began."""
        return np.printoptions(**self.print_options) if self.print_options else contextlib.nullcontext()

    @property
    def name(self) -> str:
        return os.path.splitext(os.path.basename(self.path))[0]

    def numbers(self, place: int) -> list[int]:
        """The numbers that records may have for the device at this position."""
        known = [number for number, at in self.places.items() if at == place]
        return known or [number for number in (place, FIRST_GPU + place) if number not in self.places]

    def place(self, device: int) -> int:
        """The position in `jax.devices()` of the device that has this number in records."""
        return self.places.get(device, device - FIRST_GPU if device >= FIRST_GPU else device)


class Event(NamedTuple):
    """An entry of a run file that is no record of an effect: a call, the end of a program, a callback, a barrier.

    Attributes:
        process: The process.
        kind: The kind of the event.
        token: The place in program order: the program, and the effect that came before the event.
        site: The site of a callback.
        devices: At the end of a program on a device: the number of devices that run it, 0 if it is that one alone.
        device: The device's position in `jax.devices()`.
        time: The time, in seconds since 1970.
        text: The name of a called program, the reason of a failure, or an asynchronous operation's name and line.
    """

    process: Process
    kind: Kind | int
    token: tuple[int, ...]
    site: Site | None
    devices: int
    device: int
    time: float
    text: str

    @property
    def program(self) -> tuple[int, int]:
        """The thread and the number of the dispatch."""
        return program_of(self.token)


def program_of(token: tuple[int, ...]) -> tuple[int, int]:
    """The thread and the number of the dispatch of a place in program order."""
    return thread_of(token[STREAM]), token[EPOCH]


class Count(NamedTuple):
    """The number of records of a site in a process, and the times at which the first and the last were published."""

    process: Process
    site: Site
    number: int
    first: float
    last: float


class Run(RecordSequence):
    """The records of a run in program order, as `effects.runs.read` returns them. They are read lazily.

    Attributes:
        processes: The processes whose files were read.
        sites: The sites, by the number that records have for them.
        left_out: A line for each file of a folder that cannot be read, which says why.
    """

    def __init__(
        self,
        processes: list[Process],
        sites: dict[int, Site],
        records: Any,
        path: str,
        left_out: Sequence[str] = (),
        chosen: Any = None,
    ):
        self.processes: list[Process] = processes
        self.sites: dict[int, Site] = sites
        self.left_out: Sequence[str] = left_out
        self._path = path
        self._records = records
        self._chosen: frozenset[int] | None = chosen  # of the sites in a log of a kernel's; None: all
        self._length: int | None = None  # with lanes

    def _parts(self) -> Iterator[tuple[Process, Part]]:
        for begin in range(0, len(self._records), _AT_A_TIME):
            records, files = self._read(begin, begin + _AT_A_TIME)
            for file, part in zip(files, records.parts(), strict=True):
                yield self.processes[file], part

    def _read(self, first: int, last: int) -> tuple[Records, memoryview]:
        """Records, and the number of each one's file."""
        data, files = self._records.read(first, last)
        files = memoryview(files).cast("I")
        return Records(data, len(files), self.sites.__getitem__), files

    def __iter__(self) -> Iterator[Record]:
        for process, part in self._parts():
            yield from self.of_part(process, part)

    def of_part(self, process: Process, part: Part) -> Iterator[Record]:
        """The records of a part, those of a kernel's log one by one."""
        site, token, device, payload, at = part
        if not isinstance(site.content, Composite):
            yield from records_of(site, token, device, payload, at, functools.partial(RunRecord, process))
            return
        for inner, data in site.content.parts(site, payload):
            if self._chosen is None or inner.id in self._chosen:
                yield from self.of_part(process, (inner, token, device, data, at))

    def __len__(self) -> int:
        if self._length is None:
            simple = all(site.mask is None and not isinstance(site.content, Composite) for site in self.sites.values())
            if simple and not any(site.lanes for site in self.sites.values()):
                self._length = len(self._records)
            else:
                self._length = sum(1 for _ in self)
        return self._length

    def select(
        self,
        site: str | None = None,
        *,
        effect: Any = None,
        device: int | None = None,
        process: int | None = None,
        since: float | None = None,
    ) -> Run:
        """Selects records.

        Args:
            site: A line, as `fx.sites` takes it: `"train.py:31"`.
            effect: A name of an effect, an `Effect`, or several.
            device: A position in `jax.devices()`.
            process: A number of a process.
            since: The earliest time of publication, in seconds since the epoch; if negative, seconds before the newest.

        Raises:
            RunError: if no site matches, or `since` is NaN.
        """
        several = effect if isinstance(effect, Iterable) and not isinstance(effect, str) else [effect]
        names = None if effect is None else {each.name if isinstance(each, Effect) else each for each in several}
        pattern = None if site is None else Pattern.read(site, "site")
        kept = {
            number
            for number, known in self.sites.items()
            if (names is None or known.effect.name in names) and (pattern is None or pattern.names(known.where))
        }
        logs = {number for number, known in self.sites.items() if isinstance(known.content, Composite)}
        with_kept = {at for at in logs if any(inner.id in kept for inner in self.sites[at].content.sites)}
        if not kept and (site is not None or effect is not None):
            said = " ".join(str(each) for each in (effect, site) if each is not None)
            raise RunError(no_site(self._path, said, self.sites.values()))
        of_devices = [
            (at, number)
            for at, each in enumerate(self.processes)
            for number in (() if device is None else each.numbers(device))
        ]
        of_processes = [at for at, each in enumerate(self.processes) if process in (None, each.number)]
        if since is not None and np.isnan(since):
            raise RunError(MSG_SINCE)
        if since is not None and since < 0:
            since += max((part[4] for _, part in self.newest()._parts()), default=0.0)
        everything = site is None and effect is None
        return self._of(
            self._records.select(
                None if everything else [*(kept - logs | with_kept)],
                None if device is None else of_devices,
                None if process is None else of_processes,
                since or 0.0,
            ),
            self._chosen if everything else frozenset(kept),
        )

    def lines(self, line: Callable[[Record], str]) -> Iterator[str]:
        """The lines of all records, many at a time: from native code, or where it cannot make them, from `line`."""
        have_same_options = all(each.print_options == self.processes[0].print_options for each in self.processes)
        for begin in range(0, len(self._records), _AT_A_TIME):
            records, files = self._read(begin, begin + _AT_A_TIME)
            at = 0
            for count, alike in _LINES.split(records):
                of, at = files[at : at + count], at + count
                with self.processes[0].as_printed():
                    lines = _LINES.of(alike) if have_same_options else None
                if lines is not None:
                    yield lines[0].decode()
                    continue
                parts = zip(of, alike.parts(), strict=True)
                yield "".join(
                    line(record) for file, part in parts for record in self.of_part(self.processes[file], part)
                )

    def newest(self) -> Run:
        """The newest record of each process, thread and device."""
        return self._of(self._records.newest().select([*self.sites], None, None, 0.0), self._chosen)

    def last(self, count: int) -> Run:
        """The last `count` records; lanes count as one."""
        return self._of(self._records.last(count), self._chosen)

    def _of(self, records: native.RunRecords, chosen: frozenset[int] | None) -> Run:
        return Run(self.processes, self.sites, records, self._path, self.left_out, chosen)

    def events(self) -> Iterator[Event]:
        """The events of all processes, by time."""
        for file, kind, token, site, device, at, text in self._records.events():
            process = self.processes[file]
            kind = Kind(kind) if kind in _KINDS else kind
            place = device if device == ALL_DEVICES else process.place(device)
            of_device = kind == Kind.CLOSE
            yield Event(
                process,
                kind,
                token,
                None if of_device else self.sites.get(site),
                site if of_device else 0,
                place,
                at,
                text.decode(errors="replace"),
            )

    def counts(self) -> list[Count]:
        """The number of records of each site in each process; lanes count as one."""
        return [
            Count(self.processes[file], self.sites[site], *counted) for file, site, *counted in self._records.count()
        ]

    def columns(self, site: str) -> dict[str, np.ndarray]:
        """The arguments of one line as arrays, by name or position, after `time`, `process`, `thread`, `epoch` and
        `device`. The first axis of each array is the record.

        Raises:
            RunError: if no site matches, or several with different arguments do.
        """
        chosen: dict[str, list[Any]] = {}
        for record in self.select(site):
            values = {str(name): value for name, value in enumerate(record.args)} | record.fields
            place = {
                "time": record.time,
                "process": record.process,
                "thread": record.thread,
                "epoch": record.token[EPOCH],
                "device": record.device,
            }
            if chosen and [*chosen] != [*place, *values]:
                raise RunError(MSG_COLUMNS.format(site=site, path=self._path))
            for name, value in (place | values).items():
                chosen.setdefault(name, []).append(value)
        return {name: np.asarray(values) for name, values in chosen.items()}


_KINDS = {*Kind}
_LINES = NativeRows(plan_of_line)


def read(*paths: str | os.PathLike[str]) -> Run:
    """The records of a run, in program order.

    Args:
        paths: Run files of the processes of one run, or a folder that has them. A file may still be written. Processes
            that JAX has not connected are workers, as of a data loader; a folder may have any number of them.

    Raises:
        RunError: if a named file or all files of a folder cannot be read, or files do not belong together. Other files
            of a folder that cannot be read are in `Run.left_out`. Damaged parts of a file are left out and counted in
            `Process.torn`.

    Example:
        >>> import effects as fx, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "run.fx")
        >>> with fx.record(path):
        ...     fx.jit(lambda x: fx.log("step", loss=x))(0.5)
        >>> run = fx.runs.read(path)
        >>> run[0].text, run.columns("*")["loss"]
        ('step loss=0.5', array([0.5], dtype=float32))
    """
    sites: dict[int, Site] = {}
    processes: list[Process] = []
    left_out = _open_all(paths, processes)
    for process in processes:
        process.torn, process.is_cut = process._file.scan(), process._file.is_cut
        _describe(process, sites)
    processes.sort(key=lambda process: (process.number, process.began))
    return _run(processes, sites, left_out)


class Following:
    """Reads a run while it is written."""

    def __init__(self, *paths: str | os.PathLike[str]):
        self._paths = paths
        self._earlier = native.EarlierRecords()
        self._processes: list[Process] = []
        self._sites: dict[int, Site] = {}

    def look(self) -> Run:
        """The records since the last look, in program order. A record that all devices of a program share comes once.

        Raises:
            RunError: as `read`.
        """
        left_out = _open_all(self._paths, self._processes)
        for process in self._processes:
            process.is_written = process._file.is_written  # first, so that the final read sees the last records
            process._file.look()
            _describe(process, self._sites)
        return _run([*self._processes], self._sites, left_out, self._earlier)


def _open_all(paths: Sequence[str | os.PathLike[str]], processes: list[Process]) -> list[str]:
    """Adds the processes whose files are not open yet. Returns a line for each file of a folder that cannot be read:
    it is damaged, or of a process that begins just now."""
    left_out: list[str] = []
    opened = {process.path for process in processes}
    for path, is_named in _files(paths):
        if path in opened:
            continue
        try:
            file = native.RunFile(path)
        except (OSError, RuntimeError, ValueError) as error:
            error = error.strerror if isinstance(error, OSError) else error
            if is_named:
                raise RunError(MSG_UNREADABLE.format(path=path, why=error)) from None
            left_out.append(LEFT_OUT.format(path=path, why=error))
            continue
        opened.add(path)
        processes.append(Process(path, file, is_written=file.is_written))
    if not processes:
        raise RunError("\n".join(left_out) or MSG_NO_PATH)
    return left_out


def no_site(path: str, said: str, sites: Iterable[Site]) -> str:
    """The message for a line or an effect that no site has."""
    files = ", ".join(sorted({site.where.file for site in sites})) or "no file"
    effects = ", ".join(sorted({site.effect.name for site in sites})) or "no effect"
    return MSG_NO_SITE.format(path=path, said=said, files=files, effects=effects)


def missing(run: Run) -> list[str]:
    """A line for each file that could not be read, or lacks records."""
    lines = [*run.left_out]
    for process in run.processes:
        if process.is_cut:
            lines.append(CUT.format(path=process.path))
        if process.torn:
            places = errors.counted(process.torn, "place")
            lines.append(UNWHOLE.format(path=process.path, what=f"what is not whole in {places}"))
        events = run.events() if process.lost else ()
        stops = [f"{process.path}: {STOPPED}" for each in events if each.process is process and each.text == STOPPED]
        lines += stops
        if lost := process.lost - len(stops):
            records = errors.counted(lost, "record")
            lines.append(UNWHOLE.format(path=process.path, what=f"{records} without room"))
    return lines


def tell_missing(run: Run) -> None:
    """Writes the lines of `missing` to the error output."""
    for line in missing(run):
        print(line, file=sys.stderr)


def _describe(process: Process, sites: dict[int, Site]) -> None:
    """Reads new descriptions of a process and its sites from its file. Call it after the records are scanned: the file
    describes a site before its records, so then each record's site is known."""
    process.lost, process.is_closed = process._file.lost, process._file.is_closed
    for is_site, number, text in process._file.described():
        with contextlib.suppress(ValueError, TypeError, KeyError):  # of a kind that is unknown in this process
            if is_site:
                site = sites[number] = read_site(text.decode())
                if isinstance(site.content, Composite):
                    sites.update((inner.id, inner) for inner in site.content.sites)
                continue
            said = json.loads(text)
            process.number, process.count, process.run = said["process"], said["process_count"], said["run"]
            process.command, process.began = tuple(said["command"]), said["time"]
            process.places, process.calls = dict(said["devices"]), dict(said.get("calls", ()))
            process.owners = said.get("owners", [])
            process.earlier = {(thread, number): (*of,) for thread, number, *of in said.get("unended", ())}
            here = np.get_printoptions()
            options = said.get("print_options", {}).items()
            process.print_options = {name: value for name, value in options if here.get(name) != value}
            process._file.job = 0 if process.run is not None else next(_jobs)


_jobs = itertools.count(1)


def _run(
    processes: list[Process],
    sites: dict[int, Site],
    left_out: Sequence[str],
    earlier: native.EarlierRecords | None = None,
) -> Run:
    # A process that ended before its first site has no records, and its file does not say which process it was.
    if any(each.command for each in processes):
        silent = [each for each in processes if not each.command and not each.is_written]
        some = [each.path for each in silent if native.RunRecords([each._file]).count()]
        left_out = [*left_out, *(LEFT_OUT.format(path=path, why=UNDESCRIBED) for path in some)]
        processes = [each for each in processes if each.command]
    path = ", ".join(process.path for process in processes)
    connected = [each for each in processes if each.run is not None]
    if len({each.run for each in connected}) > 1 or len({each.number for each in connected}) < len(connected):
        raise RunError(MSG_SEVERAL_RUNS.format(paths=" and ".join(each.path for each in connected)))
    first = max((each.count for each in connected), default=0)
    for number, worker in enumerate((each for each in processes if each.run is None), first):
        worker.number = number
    records = native.RunRecords([process._file for process in processes], earlier)
    for at, number, count, _, _ in records.count():
        if number not in sites:
            sites[number] = site_without_description(number)
        processes[at].unknown += count * (sites[number].effect.name == NO_EFFECT)
    return Run(processes, sites, records, path, left_out)


def _files(paths: Sequence[str | os.PathLike[str]]) -> Iterator[tuple[str, bool]]:
    """Yields each file, and True if it was named itself, not by its folder."""
    for path in map(os.fspath, paths):
        if not os.path.isdir(path):
            yield path, True
            continue
        names = sorted(name for name in os.listdir(path) if name.endswith(".fx"))
        if not names:
            raise RunError(MSG_EMPTY_FOLDER.format(path=path))
        yield from ((os.path.join(path, name), False) for name in names)
