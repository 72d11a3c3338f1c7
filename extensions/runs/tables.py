"""The records of two runs as tables, one for each line, with their places counted in the same way in both."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from effects import _errors as errors
from effects._model import wire
from effects._model.content import Composite
from effects._model.operand import Operand, Static
from effects._model.record import Records, number_of_device, site_of
from effects._model.site import Site
from effects._model.wire import DOMAIN_BITS, EPOCH, FIRST_NESTED_THREAD, PLAIN_THREAD, STREAM, Kind, thread_of
from effects.extensions.runs.reading import Process, Run, RunError


@dataclasses.dataclass(eq=False)
class Table:
    """The records of one line in one run. Each array has an element for each record."""

    site: Site
    thread: np.ndarray
    call: np.ndarray  # from the beginning of the recording; negative before
    domain: np.ndarray
    phase: np.ndarray
    index: np.ndarray
    device: np.ndarray
    lane: np.ndarray  # as a number
    time: np.ndarray
    position: np.ndarray  # the number of the call, since the beginning and among corresponding calls
    columns: list[tuple[np.ndarray, dict[str, np.ndarray]]]  # blocks of row numbers, and arguments by name
    shares_tokens: bool = False  # true for unordered effects, and for a kernel's

    def __len__(self) -> int:
        return len(self.thread)

    def of(self, keep: np.ndarray) -> Table:
        """The table with the rows that `keep` selects."""
        place = np.cumsum(keep) - 1
        columns = [
            (place[rows[keep[rows]]], {name: column[keep[rows]] for name, column in columns.items()})
            for rows, columns in self.columns
        ]
        arrays = {name: getattr(self, name)[keep] for name in _PLACE}
        return dataclasses.replace(self, **arrays, columns=columns)


_DOMAIN = (1 << DOMAIN_BITS) - 1
Tables = dict[tuple[Any, ...], Table]
Pairs = tuple[Table | None, Table | None]

_PLACE = ("thread", "call", "domain", "phase", "index", "device", "lane", "time", "position")
ORDER = ("thread", "position", "domain", "phase", "index", "device", "lane")

MSG_TOLERANCE = (
    "The tolerances are rtol={rtol} and atol={atol}. Each is 0 or a positive number. Pass such numbers as `rtol` and "
    "`atol`."
)
MSG_LOST = (
    "The run file {path} lacks {count} or more, for which it had no room. Runs are compared record by record, so none "
    "may be missing. Record with a larger `max_bytes`."
)
MSG_NO_CALL = (
    "The run file {path} has no call from its beginning on, since what came later has overwritten it. Runs are "
    "compared from the first call that both have whole. Record with a larger `max_bytes`."
)
MSG_THREADS = (
    "The first records of {path} are overwritten, and the runs have programs of threads {threads}. Which threads "
    "correspond is seen in whole runs. Record with a larger `max_bytes`."
)


def aligned(runs: list[Run]) -> tuple[list[Pairs], list[tuple[int, ...]], int, bool]:
    """The records of two runs by line, the lane that each lane number stands for, the call with which they begin, and
    whether calls by callbacks are left out.

    Raises:
        RunError: if the records of the runs cannot be paired.
    """
    begin = _first_call(runs)
    lanes: dict[tuple[int, ...], int] = {(): 0}
    a, b = (_Reader(run, lanes).tables() for run in runs)
    if begin:
        a, b = (_kept(tables, lambda x: (x.thread < FIRST_NESTED_THREAD) & (x.position >= begin)) for tables in (a, b))
    beside = any(map(_run_beside, (a, b)))
    if beside:
        a, b = (_kept(tables, lambda table: ~_is_nested(table)) for tables in (a, b))
    for run, tables in zip(runs, (a, b), strict=True):
        _number_nested(run, tables)
    threads = [{thread for table in tables.values() for thread in _threads_of(table)} for tables in (a, b)]
    if begin and len(both := set.union(*threads)) > 1:
        path, shown = " or ".join(run._path for run in runs), ", ".join(map(str, sorted(both)))
        raise RunError(MSG_THREADS.format(path=path, threads=shown))
    _pair_threads(a, b, *threads)
    pairs = [*_pairs(a, b)]
    if not begin and len({*map(_count_dispatches, runs)}) > 1:  # else no call lacks all of its lines
        _leave_out_calls(pairs)
    return pairs, [*lanes], begin, beside


class _Reader:
    """Reads the records of a run into tables, by `key_of` their line."""

    def __init__(self, run: Run, lanes: dict[tuple[int, ...], int]):
        self._run = run
        self._lanes = lanes

    def tables(self) -> dict[tuple[Any, ...], Table]:
        found: dict[tuple[Any, ...], list[Table]] = {}
        run = self._run
        for at, number, count, *_ in sorted(run._records.count(), key=lambda count: count[3]):  # by the first record
            site, process = run.sites[number], run.processes[at]
            data, _ = run._records.select([number], None, [at], 0.0).read(0, count)
            records = Records(data, count, run.sites.__getitem__)
            if isinstance(site.content, Composite) or site.hidden or records.only_site is None:
                self._add_one_by_one(found, process, records)
            else:
                found.setdefault(key_of(site), []).append(self._of_one_site(site, process, records))
        joined = {key: _joined(tables) for key, tables in found.items()}
        for table in joined.values():
            if (unordered := _is_unordered(table)).any():  # no token tells if each device has a record of its own
                table.device = np.where(unordered & ~_differs_in_call(table), -1, table.device)
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
            if first.index is not None:  # a shard is known by its index, on whatever device it is
                table.device = np.broadcast_to(np.int64(-1), len(rows))
            table.shares_tokens |= first.grid is not None
            found.setdefault(key, []).append(table)

    def _table(self, site: Site, process: Process, header: dict[str, np.ndarray], lane: Any, columns: Any) -> Table:
        token, count = header["token"], len(header["token"])
        stream, epoch, phase, index = (token[:, at] for at in range(4))
        thread = stream >> DOMAIN_BITS
        device = np.broadcast_to(np.int64(-1), count)
        each = (phase & 1 == 1) | (stream & _DOMAIN == wire.NO_DOMAIN) | (not site.effect.ordered)
        if each.any():
            numbers, which = np.unique(header["device"], return_inverse=True)
            places = [-1 if number == wire.ALL_DEVICES else process.place(int(number)) for number in numbers]
            device = np.where(each, np.array(places)[which], -1)
        position = epoch.astype(np.int64)
        for number, first in process.calls.items():
            position[thread == number] -= first
        return Table(
            site,
            thread=thread,
            call=np.where(thread < FIRST_NESTED_THREAD, position, epoch),
            domain=stream & _DOMAIN,
            phase=phase,
            index=index,
            device=device,
            lane=np.broadcast_to(lane, count),
            time=header["time"],
            position=position,
            columns=[(np.arange(count), columns)],
            shares_tokens=not site.effect.ordered,
        )


def _is_unordered(table: Table) -> np.ndarray:
    """True for each record without a place in an order: also a handler's line, if the handler's call has none."""
    return (table.domain == wire.NO_DOMAIN) | (not table.site.effect.ordered)


def _differs_in_call(table: Table) -> np.ndarray:
    """True for each record of a call that several devices have published."""
    call = table.thread.astype(np.int64) << 32 | table.call & 0xFFFFFFFF
    _, first, call = np.unique(call, return_index=True, return_inverse=True)
    return np.isin(call, call[table.device != table.device[first][call]])


def key_of(site: Site) -> tuple[Any, ...]:
    """The key of a line in any run: its effect, title, file name and line number."""
    title = str(site.content.title)
    if site.content.functions:  # it may be in another function or class
        title = title.rpartition(".")[2]
    return site.effect.name, title, os.path.basename(site.where.file), site.where.line


def _joined(tables: list[Table]) -> Table:
    """Concatenates tables, in program order. Unordered records, which a program may publish from several threads, have
    the order of their times."""
    is_unordered = any(_is_unordered(table).any() for table in tables)
    if len(tables) == 1 and not is_unordered:
        return tables[0]
    arrays = {name: np.concatenate([getattr(table, name) for table in tables]) for name in _PLACE}
    keys = ("time",) * is_unordered + ("index", "phase", "domain", "call", "thread")
    order = np.lexsort([arrays[name] for name in keys])
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
    """A number for each row of several columns. Equal rows have equal numbers, and numbers sort as rows do."""
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
    """Pairs the lines of each effect and title, in their order. If one run has more of them, lines with the same file
    and number are paired, and the rest of each run is joined into one line."""
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


def _threads_of(table: Table) -> list[int]:
    """The user's threads that have records."""
    return [thread for thread in distinct(table.thread) if thread < FIRST_NESTED_THREAD]


def _is_nested(table: Table) -> np.ndarray:
    """True for each record of a call that a callback has made."""
    return (table.thread >= FIRST_NESTED_THREAD) & (table.thread != PLAIN_THREAD)


def _run_beside(tables: Tables) -> bool:
    """True if callbacks have made calls, and may have run beside each other: the calls have no order then."""
    if not any(_is_nested(table).any() for table in tables.values()):
        return False
    effects = {table.site.effect for table in tables.values() if table.site.content.functions}
    threads = {thread for table in tables.values() for thread in _threads_of(table)}
    return len(threads) > 1 or len({x.domain for x in effects}) > 1 or not all(x.ordered for x in effects)


def _count_dispatches(run: Run) -> int:
    """The number of calls by the user's threads of programs with effects."""
    return sum(x.kind == Kind.DISPATCHED and x.program[0] < FIRST_NESTED_THREAD for x in run.events())


def _number_nested(run: Run, tables: Tables) -> None:
    """Numbers the calls that callbacks make, and effects of programs of plain `jax.jit`, in program order. Callbacks
    run in any of the drain's threads, which count as one."""
    others = [(table, table.thread >= FIRST_NESTED_THREAD) for table in tables.values()]
    others = [(table, rows) for table, rows in others if rows.any()]
    numbers: dict[tuple[int, int], int] = {}
    counts: collections.Counter[bool] = collections.Counter()
    for _, (_, token, *_) in run._parts() if others else ():
        program = thread, _ = thread_of(token[STREAM]), token[EPOCH]
        if thread >= FIRST_NESTED_THREAD and program not in numbers:
            numbers[program] = counts[thread == PLAIN_THREAD]
            counts[thread == PLAIN_THREAD] += 1
    for table, rows in others:
        calls = zip(table.thread[rows].tolist(), table.call[rows].tolist(), strict=True)
        table.position[rows] = table.call[rows] = [numbers[call] for call in calls]
        table.thread = np.where(rows & (table.thread != PLAIN_THREAD), FIRST_NESTED_THREAD, table.thread)


def _pair_threads(a: Tables, b: Tables, threads_a: set[int], threads_b: set[int]) -> None:
    """Renumbers the second run's threads like the first run's: like a thread with the same records, else with most
    records of the same lines, else the next in order. Threads that only the second run has get numbers after these."""
    if len(threads_a) == len(threads_b) == 1:
        scores = [(False, 0, *threads_a, *threads_b)]
    else:
        here, there = (_records_by_thread(*each) for each in ((a, threads_a), (b, threads_b)))
        scores = [
            (records != others, -(lines & other_lines).total(), one, other)
            for one, (records, lines) in here.items()
            for other, (others, other_lines) in there.items()
        ]
    pairs: dict[int, int] = {}
    left = {*threads_a}
    for *_, one, other in sorted(scores):
        if one in left and other not in pairs:
            pairs[other] = one
            left.remove(one)
    pairs |= zip(sorted(threads_b - {*pairs}), itertools.count(max(threads_a, default=0) + 1), strict=False)
    for table in b.values() if any(one != other for one, other in pairs.items()) else ():
        table.thread = np.array([pairs.get(thread, thread) for thread in table.thread.tolist()])


def _records_by_thread(tables: Tables, threads: set[int]) -> dict[int, tuple[collections.Counter[Any], ...]]:
    """Counts each record of each thread, and the records of each line."""
    found = {thread: (collections.Counter[Any](), collections.Counter[Any]()) for thread in threads}
    for key, table in tables.items():
        place = [getattr(table, name) for name in ORDER[1:]]
        for rows, columns in table.columns:
            values = [*(each[rows] for each in place), *columns.values()]
            values = [each.astype(str) if each.dtype == object else each for each in values]
            of_row = np.concatenate(
                [np.ascontiguousarray(each).view(np.uint8).reshape(len(rows), -1) for each in values], axis=1
            )
            for thread, row in zip(table.thread[rows].tolist(), of_row, strict=True):
                if thread in found:
                    records, lines = found[thread]
                    records[key[:2], *columns, row.tobytes()] += 1
                    lines[key[:2]] += 1
    return found


def _leave_out_calls(pairs: list[Pairs]) -> None:
    """Leaves calls out of the count of calls if the other run has none of their lines."""
    for at in range(2):
        side = [(table, None not in pair) for pair in pairs if (table := pair[at]) is not None]
        if all(in_both for _, in_both in side):
            continue
        for thread in {number for table, _ in side for number in distinct(table.thread)}:
            calls: dict[bool, list[np.ndarray]] = {True: [np.zeros(0, int)], False: [np.zeros(0, int)]}
            for table, in_both in side:
                calls[in_both].append(table.position[table.thread == thread])
            left_out = np.setdiff1d(np.concatenate(calls[False]), np.concatenate(calls[True]))
            for table, _ in side:
                of_thread = table.thread == thread
                table.position[of_thread] -= np.searchsorted(left_out, table.position[of_thread])


def _first_call(runs: list[Run]) -> int:
    """The first call from which on both runs have all records. If the first records of a file are overwritten, that is
    the first call whose dispatch the file still has."""
    begin = 0
    for run in runs:
        for process in run.processes:
            if process.lost:
                raise RunError(MSG_LOST.format(path=process.path, count=errors.counted(process.lost, "record")))
        cut = [process for process in run.processes if process.is_cut]
        first: dict[tuple[Process, int], int] = {}
        for event in run.events() if cut else ():
            thread, call = event.program
            if event.kind == Kind.DISPATCHED and event.process in cut and thread < FIRST_NESTED_THREAD:
                first.setdefault((event.process, thread), call - event.process.calls.get(thread, 0))
        for process in {*cut} - {process for process, _ in first}:
            raise RunError(MSG_NO_CALL.format(path=process.path))
        begin = max([begin, *first.values()])
    return begin


def _kept(tables: Tables, keep: Callable[[Table], np.ndarray]) -> Tables:
    """The records that `keep` selects."""
    kept = {key: table.of(keep(table)) for key, table in tables.items()}
    return {key: table for key, table in kept.items() if len(table)}
