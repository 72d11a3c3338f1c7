"""The records of two runs as tables, one for each line, with their places counted in the same way in both."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import os
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from effects._model.content import Composite
from effects._model.operand import Operand, Static
from effects._model.record import Records, number_of_device, site_of
from effects._model.site import Site
from effects._model.wire import DOMAIN_BITS, FIRST_NESTED_THREAD, PLACED_THREAD, Kind, read_header
from effects.extensions.runs.reading import Process, Run


@dataclasses.dataclass(eq=False)
class Table:
    """Records of one line in one run; each array has an element for each. The first ones say where they stand."""

    site: Site
    thread: np.ndarray
    call: np.ndarray
    domain: np.ndarray
    phase: np.ndarray
    index: np.ndarray
    device: np.ndarray
    lane: np.ndarray  # as a number
    time: np.ndarray
    position: np.ndarray  # of the call, among those that correspond
    columns: list[tuple[np.ndarray, dict[str, np.ndarray]]]  # of some of these rows each: which, and their arguments
    shares_tokens: bool = False  # unordered effects do, and those of a kernel

    def __len__(self) -> int:
        return len(self.thread)

    def of(self, keep: np.ndarray) -> Table:
        """The rows that are kept."""
        place = np.cumsum(keep) - 1
        columns = [
            (place[rows[keep[rows]]], {name: column[keep[rows]] for name, column in columns.items()})
            for rows, columns in self.columns
        ]
        arrays = {name: getattr(self, name)[keep] for name in _PLACE}
        return dataclasses.replace(self, **arrays, columns=columns)


Tables = dict[tuple[Any, ...], Table]
Pairs = tuple[Table | None, Table | None]

_PLACE = ("thread", "call", "domain", "phase", "index", "device", "lane", "time", "position")
_BEGIN = ("position", "phase", "index")
ORDER = ("thread", "position", "domain", "phase", "index", "device", "lane")


def aligned(runs: list[Run]) -> tuple[list[Pairs], list[tuple[int, ...]]]:
    """The records of two runs by line, and what the numbers of lanes stand for."""
    lanes: dict[tuple[int, ...], int] = {(): 0}
    tables = [_Reader(run, lanes).tables() for run in runs]
    are_cut = [*map(_is_cut, runs)]
    if not any(are_cut):
        _pair_threads(*tables)
    pairs = [*_pairs(*tables)]
    _count_calls(runs, pairs, any(are_cut))
    return _begin_together(pairs, are_cut) if any(are_cut) else pairs, [*lanes]


class _Reader:
    """The records of a run by line, as `key_of` knows it."""

    def __init__(self, run: Run, lanes: dict[tuple[int, ...], int]):
        self._run = run
        self._lanes = lanes

    def tables(self) -> dict[tuple[Any, ...], Table]:
        found: dict[tuple[Any, ...], list[Table]] = {}
        run = self._run
        for at, number, count, *_ in sorted(run._records.count(), key=lambda count: count[3]):  # by the first record
            site, process = run.sites[number], run.processes[at]
            data, _ = run._records.select([number], None, [at], 0.0).read(0, count)
            records = Records(data, count, run._known_site)
            if isinstance(site.content, Composite) or site.hidden or records.only_site is None:
                self._add_one_by_one(found, process, records)
            else:
                found.setdefault(key_of(site), []).append(self._of_one_site(site, process, records))
        joined = {key: _joined(tables) for key, tables in found.items()}
        return {key: table for key, table in joined.items() if len(table)}  # a mask may leave no lane

    def _of_one_site(self, site: Site, process: Process, records: Records) -> Table:
        """The records of a site that all have the same layout."""

        def by_lane(operand: Operand, offset: int) -> np.ndarray:
            column = records.operand_column(operand, offset, site)
            inner = operand.shape[sum(operand.lanes) :]
            shape = tuple(size if differs else 1 for size, differs in zip(site.lanes, operand.lanes, strict=True))
            column = np.broadcast_to(column.reshape(len(column), *shape, *inner), (len(column), *site.lanes, *inner))
            return column.reshape(len(token), *inner).astype(operand.dtype, copy=False)

        token, device, time = (
            np.repeat(column, size, axis=0) if (size := math.prod(site.lanes)) != 1 else column
            for column in (records.header_column(name, site) for name in ("token", "device", "time"))
        )
        places, columns = iter(site.places), {}
        for name, leaf in zip(site.leaf_names, site.leaves, strict=True):
            if isinstance(leaf, Static):
                columns[name] = np.broadcast_to(np.asarray(leaf.value), len(token))
            else:
                columns[name] = by_lane(leaf, next(places)[2])
        lanes = [self._lanes.setdefault(lane, len(self._lanes)) for lane in np.ndindex(*site.lanes)]
        lane = np.resize(lanes, len(token)) if site.lanes else lanes[0]
        table = self._table(site, process, {"token": token, "device": device, "time": time}, lane, columns)
        return table if site.mask is None else table.of(by_lane(site.mask, site.offsets[0]))

    def _add_one_by_one(self, found: dict[Any, Any], process: Process, records: Records) -> None:
        groups: dict[Any, list[Any]] = {}
        for part in records.parts():
            for record in self._run.of_part(process, part):
                site, values = site_of(record), jax.tree.leaves((record.args, record.fields))
                types = tuple((np.shape(value), np.asarray(value).dtype) for value in values)
                groups.setdefault((key_of(site), site.leaf_names, types), []).append((record, values))
        for (key, names, _), rows in groups.items():
            first = rows[0][0]
            header = {
                "token": np.array([record.token for record, _ in rows]),
                "device": np.array([number_of_device(record) for record, _ in rows]),
                "time": np.array([record.time for record, _ in rows]),
            }
            lanes = []
            for record, _ in rows:
                bounds = tuple(n for part in record.index or () for n in (part.start, part.stop))
                lane = record.lane + (record.grid or ()) + bounds
                lanes.append(self._lanes.setdefault(lane, len(self._lanes)))
            columns = {name: np.stack([np.asarray(values[at]) for _, values in rows]) for at, name in enumerate(names)}
            table = self._table(site_of(first), process, header, np.array(lanes), columns)
            if first.index is not None:  # a shard is the same on whatever device
                table.device = np.broadcast_to(np.int64(-1), len(rows))
            table.shares_tokens |= first.grid is not None
            found.setdefault(key, []).append(table)

    def _table(self, site: Site, process: Process, header: dict[str, np.ndarray], lane: Any, columns: Any) -> Table:
        token, count = header["token"], len(header["token"])
        stream, epoch, phase, index = (token[:, at] for at in range(4))
        thread = stream >> DOMAIN_BITS
        device = np.broadcast_to(np.int64(-1), count)
        if (phase & 1).any():
            numbers, which = np.unique(header["device"], return_inverse=True)
            device = np.where(phase & 1, np.array([process.place(int(number)) for number in numbers])[which], -1)
        return Table(
            site,
            thread=thread,
            call=epoch,
            domain=stream & ((1 << DOMAIN_BITS) - 1),
            phase=phase,
            index=index,
            device=device,
            lane=np.broadcast_to(lane, count),
            time=header["time"],
            position=epoch,
            columns=[(np.arange(count), columns)],
            shares_tokens=not site.effect.ordered,
        )


def key_of(site: Site) -> tuple[Any, ...]:
    """What a line is known by in another run: effect and title, and file and number."""
    title = str(site.content.title)
    if site.content.functions:  # it may be in another function or class
        title = title.rpartition(".")[2]
    return site.effect.name, title, os.path.basename(site.where.file), site.where.line


def _joined(tables: list[Table]) -> Table:
    """The same as one table, in program order."""
    if len(tables) == 1:
        return tables[0]
    arrays = {name: np.concatenate([getattr(table, name) for table in tables]) for name in _PLACE}
    order = np.lexsort([arrays[name] for name in ("index", "phase", "domain", "call", "thread")])
    place = np.argsort(order)
    starts = itertools.accumulate((len(table) for table in tables), initial=0)
    columns = [
        (place[start + rows], columns)
        for start, table in zip(starts, tables, strict=False)
        for rows, columns in table.columns
    ]
    arrays = {name: array[order] for name, array in arrays.items()}
    return Table(tables[0].site, **arrays, columns=columns, shares_tokens=any(table.shares_tokens for table in tables))


def codes_of(a: list[np.ndarray], b: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """A number for each row of several columns: the same where all columns are, and in their order."""
    codes, size = [np.zeros(len(a[0]), np.int64), np.zeros(len(b[0]), np.int64)], 1
    for columns in zip(a, b, strict=True):
        low, high = min(int(each.min()) for each in columns), max(int(each.max()) for each in columns)
        if size * (high - low + 1) >= 1 << 62:
            distinct, dense = np.unique(np.concatenate(codes), return_inverse=True)
            codes, size = [dense[: len(codes[0])], dense[len(codes[0]) :]], len(distinct)
        if low < high:
            codes = [
                code * (high - low + 1) + (each.astype(np.int64) - low)
                for code, each in zip(codes, columns, strict=True)
            ]
            size *= high - low + 1
    return codes[0], codes[1]


def _pairs(a: Tables, b: Tables) -> Iterator[Pairs]:
    """The lines that correspond: those of one effect and title, in their order. If one run has more of them, those of
    the same number, and what is left of both counts as one line."""
    for title in dict.fromkeys(key[:2] for key in [*a, *b]):
        lines_a, lines_b = (sorted(key for key in tables if key[:2] == title) for tables in (a, b))
        if len(lines_a) == len(lines_b):
            yield from ((a[one], b[other]) for one, other in zip(lines_a, lines_b, strict=True))
            continue
        both = {*lines_a} & {*lines_b}
        yield from ((a[key], b[key]) for key in lines_a if key in both)
        left_a, left_b = ([key for key in lines if key not in both] for lines in (lines_a, lines_b))
        if left_a and left_b:
            yield _joined([a[key] for key in left_a]), _joined([b[key] for key in left_b])
        else:
            yield from [*((a[key], None) for key in left_a), *((None, b[key]) for key in left_b)]


def distinct(x: np.ndarray) -> list[int]:
    return [int(x[0])] if (x == x[0]).all() else np.unique(x).tolist()


def _pair_threads(a: Tables, b: Tables) -> None:
    """Gives threads that only one run has the same numbers, in their order. Functions of the user's dispatch in one of
    the drain's threads or another, which count as one, whose calls are in the order of time."""
    known = []
    for tables in (a, b):
        nested: dict[tuple[int, ...], float] = collections.defaultdict(lambda: np.inf)
        for table in tables.values():
            is_nested = (table.thread >= FIRST_NESTED_THREAD) & (table.thread < PLACED_THREAD)
            if not is_nested.any():
                continue
            calls = np.stack([table.thread[is_nested], table.call[is_nested]], axis=1)
            for call, time in zip(map(tuple, calls.tolist()), table.time[is_nested].tolist(), strict=True):
                nested[call] = min(nested[call], time)
        number = {call: at for at, call in enumerate(sorted(nested, key=lambda call: nested[call]))}
        for table in tables.values() if number else ():
            is_nested = (table.thread >= FIRST_NESTED_THREAD) & (table.thread < PLACED_THREAD)
            calls = zip(table.thread[is_nested].tolist(), table.call[is_nested].tolist(), strict=True)
            table.position, table.thread = table.call.astype(np.int64), table.thread.copy()
            table.position[is_nested] = [number[call] for call in calls]
            table.thread[is_nested] = FIRST_NESTED_THREAD
        known.append({thread for table in tables.values() for thread in distinct(table.thread)})
    pairs = dict(zip(sorted(known[1] - known[0]), sorted(known[0] - known[1]), strict=False))
    for table in b.values() if pairs else ():
        table.thread = np.array([pairs.get(thread, thread) for thread in table.thread.tolist()])


def _side(pairs: list[Pairs], at: int) -> list[tuple[Table, bool]]:
    """The tables of one run, and whether the other has the line too."""
    return [(table, None not in pair) for pair in pairs if (table := pair[at]) is not None]


def _count_calls(runs: list[Run], pairs: list[Pairs], is_cut: bool) -> None:
    """Counts calls from the first of each thread on, without those in which the other run has no line. A run whose
    beginning is overwritten has the numbers that calls have in their process."""
    sides = [_side(pairs, at) for at in range(2)]
    firsts = [_first_calls(side) for side in sides]
    events = () if is_cut or firsts[0] == firsts[1] else [run.events() for run in runs]  # a call may have no record
    for first, of_run in zip(firsts, events, strict=False):
        for event in of_run:
            thread, call = event.program
            if event.kind == Kind.DISPATCHED and thread in first:
                first[thread] = min(first[thread], call)
    for side, first in zip(sides, firsts, strict=True):
        for thread, start in first.items():
            calls: dict[bool, list[np.ndarray]] = {True: [np.zeros(0, int)], False: [np.zeros(0, int)]}
            for table, in_both in side if not all(in_both for _, in_both in side) else ():
                calls[in_both].append(np.unique(table.call[table.thread == thread]))
            left_out = np.setdiff1d(np.concatenate(calls[False]), np.concatenate(calls[True]))
            for table, _ in side:
                of_thread = table.thread == thread
                position = table.call.astype(np.int64) - (0 if is_cut else start)
                if len(left_out):
                    position -= np.searchsorted(left_out, table.call)
                table.position = position if of_thread.all() else np.where(of_thread, position, table.position)


def _first_calls(side: list[tuple[Table, bool]]) -> dict[int, int]:
    """By thread: its first call that has a record."""
    first: dict[int, int] = {}
    for table, _ in side:
        for thread in {*distinct(table.thread)} - {FIRST_NESTED_THREAD}:
            call = int(table.call[table.thread == thread].min())
            first[thread] = min(call, first.get(thread, call))
    return first


def _is_cut(run: Run) -> bool:
    """Whether its beginning is overwritten, since a file keeps the newest records."""
    of_processes = (run._records.select(None, None, [at], 0.0) for at in range(len(run.processes)))
    all_records = [run._records] if len(run.processes) == 1 else of_processes
    firsts = [records.read(0, 1)[0] for records in all_records]
    return any(first and read_header(first).reply > 0 for first in firsts)


def _begin_together(pairs: list[Pairs], are_cut: list[bool]) -> list[Pairs]:
    """Takes from both runs what is before the first that a run has whose beginning is overwritten."""
    tables = [(table, at) for at in range(2) for table, _ in _side(pairs, at)]
    columns = [np.concatenate([np.asarray(getattr(table, name), np.int64) for table, _ in tables]) for name in _BEGIN]
    codes, _ = codes_of(columns, [column[:1] for column in columns])
    places = np.split(codes, np.cumsum([len(table) for table, _ in tables])[:-1])
    first: dict[tuple[int, ...], int] = {}  # of each run, thread, order domain and device
    for (table, at), place in zip(tables, places, strict=True):
        streams = np.stack([np.full(len(table), at), table.thread, table.domain, table.device])
        for stream in np.unique(streams, axis=1).T if are_cut[at] else ():
            key = tuple(stream.tolist())
            first_here = int(place[(streams == stream[:, None]).all(axis=0)].min())
            first[key] = min(first_here, first.get(key, first_here))
    begin: dict[tuple[int, int], int] = {}  # of each thread and domain: all devices have what is behind
    for (_, thread, domain, _), place in first.items():
        begin[thread, domain] = max(place, begin.get((thread, domain), place))
    kept: dict[int, Table] = {}
    for (table, _), place in zip(tables, places, strict=True):
        keep = np.ones(len(table), bool)
        for (thread, domain), begins in begin.items():
            keep &= (table.thread != thread) | (table.domain != domain) | (place >= begins)
        if keep.any():
            kept[id(table)] = table.of(keep)
    both = [(kept.get(id(a)), kept.get(id(b))) for a, b in pairs]
    return [pair for pair in both if pair != (None, None)]
