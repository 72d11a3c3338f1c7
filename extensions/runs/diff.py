"""`effects.runs.diff`: a comparison of two runs, record by record.

Records correspond if they are of the same line, in the same call, of the same device, lane and iteration. Neither
clocks nor numbers that depend on the program's version or the devices are compared:

- Lines are those of equal effect and title. They may have moved.
- Threads are those that have the same records, or else most of the same lines.
- Calls are counted by thread from the beginning of the recording, without those that have no line in common with the
  other run. If a file has overwritten its beginning, counting begins with the first call that both runs have whole.
- A device counts in a region only: elsewhere all devices have the same records.
- An iteration is the number of records of the line that came before, in the same call, device and lane.

The records of a line are a table of columns, so that whole columns are compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from effects import _removed
from effects._model.where import Where
from effects.extensions.runs.reading import Run, RunError, no_site, read, tell_missing
from effects.extensions.runs.report import report
from effects.extensions.runs.tables import MSG_TOLERANCE, ORDER, Table, aligned, codes_of, distinct, key_of
from effects.extensions.runs.values import Tolerance, differ, distance
from effects.extensions.sites.lines import Pattern

AnyRun = Run | str | os.PathLike[str]
"""A run, or its file or folder."""


@dataclasses.dataclass(eq=False)
class Pair:
    """A record of each run, which correspond and differ.

    Attributes:
        effect: The effect's name.
        title: The format, the event or the function.
        where: The line.
        thread: The thread that called the program.
        call: The number of the call in this thread since the recording began. Negative: before that.
        iteration: The number of records of the line that come before in this call, device and lane.
        device: The device, in a region; elsewhere -1.
        lane: The lane, or the program of a kernel's grid.
        argument: The argument that differs most, by name or position.
        a: The argument in the first run; None if the record there has no such argument.
        b: The argument in the second run.
        index: The index of the element that differs most. None if the shapes differ.
        distance: The absolute difference of that element. Infinite if that is no number.
        count: The number of elements that differ.
    """

    effect: str
    title: str
    where: Where
    thread: int
    call: int
    iteration: int
    device: int
    lane: tuple[int, ...]
    argument: str
    a: np.ndarray | None
    b: np.ndarray | None
    index: tuple[int, ...] | None
    distance: float
    count: int
    place: tuple[int, ...] = dataclasses.field(default=(), repr=False)  # in program order


@dataclasses.dataclass(eq=False)
class SiteDifference:
    """A line in both runs.

    Attributes:
        effect: The effect's name.
        title: The format, the event or the function.
        where: The line, of the first run that has it.
        compared: The number of records that both runs have.
        differing: The number of these that differ.
        only_a: The number of records that only the first run has.
        only_b: The number of records that only the second run has.
        first: The first that differ, in program order; None if none do.
        largest: Those that differ most.
        last: The last that differ.
    """

    effect: str
    title: str
    where: Where
    compared: int = 0
    differing: int = 0
    only_a: int = 0
    only_b: int = 0
    first: Pair | None = None
    largest: Pair | None = None
    last: Pair | None = None

    @property
    def differs(self) -> bool:
        """True if any record differs, or only one run has it."""
        return bool(self.differing or self.only_a or self.only_b)


@dataclasses.dataclass(eq=False)
class Parting:
    """The place from which on two runs have different effects, or one has none.

    Attributes:
        thread: The thread that called the program.
        call: The number of the call in this thread since the recording began. Negative: before that.
        device: The device, in a region; elsewhere -1.
        a: The first run's effect here, with its title and line. None if the run has no more effects in this call.
        b: The second run's effect.
    """

    thread: int
    call: int
    device: int
    a: SiteDifference | None
    b: SiteDifference | None


@dataclasses.dataclass(eq=False)
class Difference:
    """The result of `effects.runs.diff`. Its `str` is a report.

    Attributes:
        names: The paths of the runs' files.
        sites: Each line, in the order of the first difference; those that do not differ come last.
        parting: The place where programs part; None if both runs have the same effects in the same order.
        begin: The number of first calls that were not compared, since a file keeps the newest records only.
        beside: True if calls by callbacks were not compared, since the callbacks may have run beside each other.
    """

    names: tuple[str, str]
    sites: list[SiteDifference]
    parting: Parting | None
    begin: int = 0
    beside: bool = False

    @property
    def equal(self) -> bool:
        """True if both runs have the same effects, with the same values."""
        return self.parting is None and not any(site.differs for site in self.sites)

    @property
    def first(self) -> Pair | None:
        """The first records that differ, in program order."""
        return next((site.first for site in self.sites if site.first), None)

    @property
    def largest(self) -> Pair | None:
        """The records that differ most."""
        return max((site.largest for site in self.sites if site.largest), key=lambda pair: pair.distance, default=None)

    def __str__(self) -> str:
        return report(self)


@_removed.without_arguments("effects.testing.assert_same_run", "ulp")
def assert_same_run(a: AnyRun, b: AnyRun, *, rtol: float = 0.0, atol: float = 0.0, only: str | None = None) -> None:
    """Asserts that two runs have the same effects with the same values, as `effects.runs.diff` compares them.

    Raises:
        AssertionError: with the report, if they differ.
        RunError: as `diff` does.

    Example:
        >>> import effects as fx, pathlib, tempfile
        >>> from effects.testing import assert_same_run
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in ("a.fx", "b.fx"):
        ...     with fx.record(folder / name):
        ...         fx.jit(lambda x: fx.log("step", loss=x))(0.5)
        >>> assert_same_run(folder / "a.fx", folder / "b.fx")
    """
    __tracebackhide__ = True
    difference = diff(a, b, rtol=rtol, atol=atol, only=only)
    if not difference.equal:
        raise AssertionError(str(difference))


@_removed.without_arguments("effects.runs.diff", "ulp")
def diff(a: AnyRun, b: AnyRun, *, rtol: float = 0.0, atol: float = 0.0, only: str | None = None) -> Difference:
    """Compares two runs: of other versions, on other devices, in other precision, with kernels in place of plain code.

    Records correspond by line, call, iteration, lane and, in a region, device. So clocks do not matter, nor that lines
    have moved. Values of different types are compared as numbers. NaN is the same as NaN.

    Args:
        a: A run, or its file or folder.
        b: The other.
        rtol: The relative tolerance: numbers are equal if they differ by at most this fraction of the larger one.
        atol: The absolute tolerance, which is added to that.
        only: A line, as `fx.sites` takes it: `"train.py:31"`. Others are left out.

    Raises:
        RunError: if a tolerance is negative or not finite, a run cannot be read, neither run has a site of `only`, or a
            file lacks records, so that the records of the two runs cannot be paired.

    Example:
        >>> import effects as fx, pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> step = fx.jit(lambda x: fx.log("step", loss=x))
        >>> for name, loss in ("a.fx", 0.5), ("b.fx", 0.75):
        ...     with fx.record(folder / name):
        ...         step(loss)
        >>> difference = fx.runs.diff(folder / "a.fx", folder / "b.fx")
        >>> difference.equal, difference.first.argument, difference.first.distance
        (False, 'loss', 0.25)
        >>> fx.runs.diff(folder / "a.fx", folder / "b.fx", rtol=0.5).equal
        True
    """
    if not (0 <= rtol < np.inf and 0 <= atol < np.inf):
        raise RunError(MSG_TOLERANCE.format(rtol=rtol, atol=atol))
    runs = [run if isinstance(run, Run) else read(run) for run in (a, b)]
    return _Comparison(runs, Tolerance(rtol, atol), only).difference()


_OF_CALL = ("thread", "position", "device", "lane")


class _Comparison:
    def __init__(self, runs: list[Run], tolerance: Tolerance, only: str | None):
        self._tolerance = tolerance
        self._names = (runs[0]._path, runs[1]._path)
        self._pairs, self._lanes, self._begin, self._beside = aligned(runs)
        if only is None:
            return
        pattern = Pattern.read(only, "only")
        self._pairs = [pair for pair in self._pairs if any(table and pattern.names(table.site.where) for table in pair)]
        if not self._pairs:
            sites = {number: site for run in runs for number, site in run.sites.items()}
            raise RunError(no_site(" and ".join(self._names), only, sites.values()))

    def difference(self) -> Difference:
        sites: list[SiteDifference] = []
        in_step = True
        for a, b in self._pairs:
            effect, title, *_ = key_of(known := next(table.site for table in (a, b) if table))
            site = SiteDifference(effect, title, known.where)
            sites.append(site)
            if a and b:
                in_step &= self._compare(site, a, b)
            else:
                site.only_a, site.only_b, in_step = len(a or ()), len(b or ()), False
        parting = None if in_step else self._parting(sites)
        sites.sort(key=lambda site: site.first.place if site.first else (np.inf,))
        return Difference(self._names, sites, parting, self._begin, self._beside)

    def _compare(self, site: SiteDifference, a: Table, b: Table) -> bool:
        """Compares the records of a line. Returns True if they have the same places in both runs."""
        ranks = [{len(self._lanes[lane]) for lane in distinct(table.lane)} for table in (a, b)]
        if ranks[0] != ranks[1]:
            a.lane, b.lane = np.zeros(len(a), int), np.zeros(len(b), int)  # one run has lanes, the other a loop
        in_step = len(a) == len(b) and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ORDER)
        groups = codes_of(*([getattr(table, name) for name in _OF_CALL] for table in (a, b)))
        by_row = a.shares_tokens or b.shares_tokens
        nth_a, copy_a = _iterations(groups[0], a, by_row)
        if in_step:
            rows = np.arange(len(a)), np.arange(len(b))
        else:
            nth_b, copy_b = _iterations(groups[1], b, by_row)
            keys = codes_of([groups[0], nth_a], [groups[1], nth_b])
            *rows, site.only_a, site.only_b = _matched(*keys, copy_a, copy_b)
        site.compared = len(rows[0])
        self._compare_values(site, (a, b), (rows[0], rows[1]), nth_a)
        return in_step

    def _compare_values(
        self, site: SiteDifference, tables: tuple[Table, Table], rows: tuple[np.ndarray, np.ndarray], nth: np.ndarray
    ) -> None:
        found: list[tuple[np.ndarray, np.ndarray]] = []  # the differing rows, and their distances
        for at, a, b in _of_columns(tables, rows):
            different, apart = np.zeros(len(at), bool), np.zeros(len(at))
            if a.keys() != b.keys():
                different[:], apart[:] = True, np.inf
            for x, y in ((a[name], b[name]) for name in a if name in b):
                if x.shape[1:] != y.shape[1:]:
                    different[:], apart[:] = True, np.inf
                    continue
                axes = tuple(range(1, x.ndim))
                here = differ(x, y, self._tolerance).any(axis=axes)
                if here.any():
                    apart[here] = np.maximum(apart[here], distance(x[here], y[here]).max(axis=axes, initial=0.0))
                    different |= here
            found.append((at[different], apart[different]))
        which, apart = (np.concatenate([each[i] for each in found] or [np.zeros(0, int)]) for i in range(2))
        site.differing = len(which)
        if not len(which):
            return
        one, other = tables
        at = rows[0][which]
        order = np.lexsort([getattr(one, name)[at] for name in reversed(ORDER)])
        which, apart = which[order], apart[order]
        chosen = (which[at] for at in (0, int(np.argmax(apart)), -1))
        site.first, site.largest, site.last = (
            self._pair(site, one, other, int(rows[0][i]), int(rows[1][i]), nth) for i in chosen
        )

    def _pair(self, site: SiteDifference, a: Table, b: Table, row_a: int, row_b: int, nth: np.ndarray) -> Pair:
        place = tuple(int(getattr(a, name)[row_a]) for name in ORDER)
        pair = Pair(
            site.effect, site.title, a.site.where, thread=place[0], call=int(a.call[row_a]), iteration=int(nth[row_a]),
            device=place[5], lane=self._lanes[place[6]], argument="", a=None, b=None, index=None, distance=-1.0,
            count=0, place=place,
        )  # fmt: skip
        one, other = _values(a, row_a), _values(b, row_b)
        for name in dict.fromkeys([*one, *other]):
            x, y = one.get(name), other.get(name)
            found: tuple[Any, ...] = (np.inf, None, 0)
            if x is not None and y is not None and x.shape == y.shape:
                different = differ(x, y, self._tolerance)
                if not different.any():
                    continue
                apart = np.where(different, distance(x, y), -1)
                at = np.unravel_index(int(np.argmax(apart)), x.shape)
                found = (float(apart[at]), tuple(int(i) for i in at[1:]), int(different.sum()))
            if found[0] > pair.distance:
                pair.distance, pair.index, pair.count = found
                pair.argument = name
                pair.a, pair.b = (None if value is None else np.asarray(value[0], value.dtype) for value in (x, y))
        return pair

    def _parting(self, sites: list[SiteDifference]) -> Parting | None:
        """Finds the first place where the order of effects differs, or where only one run has an effect."""
        names = ("thread", "position", "device", "domain", "call", "phase", "index")
        sequences, devices = [], []
        for at in range(2):
            numbered = [
                (table, number)
                for number, pair in enumerate(self._pairs)
                if (table := pair[at]) and not any(each and each.shares_tokens for each in pair)
            ]
            rows = [
                np.stack([*(getattr(table, name).astype(np.int64) for name in names), np.full(len(table), number)])
                for table, number in numbered
            ]
            sequences.append(np.concatenate([np.zeros((len(names) + 1, 0), np.int64), *rows], axis=1))
            devices.append({-1, *sequences[-1][2].tolist()})
        for at, rows in enumerate(sequences):
            rows = rows[:, np.isin(rows[2], [*(devices[0] & devices[1])])]
            rows = rows[:, np.lexsort([rows[i] for i in (6, 5, 3, 2, 4, 1, 0)])]
            is_new = (np.diff(rows[:-1], axis=1, prepend=-2) != 0).any(axis=0)  # devices may have the same effect
            sequences[at] = rows[:, is_new]
        a, b = sequences
        both, what = min(a.shape[1], b.shape[1]), [0, 1, 2, 3, -1]
        parted = (a[what, :both] != b[what, :both]).any(axis=0)
        at = int(np.argmax(parted)) if parted.any() else both
        here = [rows[:, at] for rows in sequences if at < rows.shape[1]]
        if not here:
            return None
        first = min(here, key=lambda row: tuple(row[[0, 1, 2, 3, 5, 6]]))
        # A run that has no record at this place has None here: it has ended, or it is at a later place.
        one, other = (
            sites[rows[-1, at]] if at < rows.shape[1] and (rows[:3, at] == first[:3]).all() else None
            for rows in sequences
        )
        return Parting(thread=int(first[0]), call=int(first[4]), device=int(first[2]), a=one, b=other)


def _values(table: Table, row: int) -> dict[str, np.ndarray]:
    """The arguments of one record, each with an axis of one record ahead."""
    for rows, columns in table.columns:
        [at] = np.nonzero(rows == row)
        if len(at):
            return {name: column[at] for name, column in columns.items()}
    raise AssertionError(row)


def _of_columns(tables: tuple[Table, Table], rows: tuple[np.ndarray, np.ndarray]) -> Iterator[tuple[Any, Any, Any]]:
    """Yields, for each pair of column blocks, which of the paired rows lie in both, and their values in each table."""
    places = []
    for table, of in zip(tables, rows, strict=True):
        block, at = np.zeros(len(table), np.int32), np.zeros(len(table), np.int64)
        for number, (where, _) in enumerate(table.columns):
            block[where], at[where] = number, np.arange(len(where))
        places.append((block[of], at[of]))
    (block_a, at_a), (block_b, at_b) = places
    for i, (_, a) in enumerate(tables[0].columns):
        for j, (_, b) in enumerate(tables[1].columns):
            [which] = np.nonzero((block_a == i) & (block_b == j))
            if len(which):
                yield which, _take(a, at_a[which]), _take(b, at_b[which])


def _take(columns: dict[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    count = len(next(iter(columns.values()), rows))
    if len(rows) == count and np.array_equal(rows, np.arange(count)):
        return columns
    return {name: column[rows] for name, column in columns.items()}


def _iterations(group: np.ndarray, table: Table, by_row: bool) -> tuple[np.ndarray, np.ndarray]:
    """For each row, the number of places of its group that come before, and the number of rows that come before at the
    same place: several devices or processes may have the same record."""
    order = None if (group[1:] >= group[:-1]).all() else np.argsort(group, kind="stable")
    columns = [group, table.domain, table.phase, table.index]
    if order is not None:
        columns = [column[order] for column in columns]
    is_new = np.ones(len(group), bool)
    first = is_new.copy()
    first[1:] = columns[0][1:] != columns[0][:-1]
    if not by_row:
        is_new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    rows = np.arange(len(group))
    place = np.cumsum(is_new)
    nth = place - place[first][np.cumsum(first) - 1]
    copy = rows - rows[is_new][place - 1]
    if order is None:
        return nth, copy
    back = np.empty_like(order)
    back[order] = rows
    return nth[back], copy[back]


def _matched(
    a: np.ndarray, b: np.ndarray, copy_a: np.ndarray, copy_b: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int, int]:
    """The rows that correspond, and the number of rows that only one run has. If a run has more copies of a row than
    the other, the extra copies are paired with the first copy of the other."""
    full_a, full_b = codes_of([a, copy_a], [b, copy_b])
    to_b, to_a = _find(full_a, full_b), _find(full_b, full_a)
    first_a, first_b = np.flatnonzero(copy_a == 0), np.flatnonzero(copy_b == 0)
    left_a, left_b = np.flatnonzero((to_b < 0) & (copy_a > 0)), np.flatnonzero((to_a < 0) & (copy_b > 0))
    of_a, of_b = _find(a[left_a], b[first_b]), _find(b[left_b], a[first_a])
    rows = np.flatnonzero(to_b >= 0)
    parts_a = rows, left_a[of_a >= 0], first_a[of_b[of_b >= 0]]
    parts_b = to_b[rows], first_b[of_a[of_a >= 0]], left_b[of_b >= 0]
    only_a = int((to_b < 0).sum() - (of_a >= 0).sum())
    only_b = int((to_a < 0).sum() - (of_b >= 0).sum())
    return np.concatenate(parts_a), np.concatenate(parts_b), only_a, only_b


def _find(wanted: np.ndarray, among: np.ndarray) -> np.ndarray:
    """The position of each wanted number in `among`, or -1."""
    if not len(among):
        return np.full(len(wanted), -1)
    order = np.argsort(among, kind="stable")
    at = np.minimum(np.searchsorted(among, wanted, sorter=order), len(among) - 1)
    return np.where(among[order[at]] == wanted, order[at], -1)


# The command.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name in "ab":
        parser.add_argument(name, metavar=name.upper(), help="a run file, or a folder of those of a run's processes")
    parser.add_argument("--rtol", type=float, default=0.0, help="what part of the larger number a difference may be")
    parser.add_argument("--atol", type=float, default=0.0, help="what a difference may be")
    parser.add_argument("--only", metavar="site", help="a line, say train.py:31; others are left out")


def run_command(options: argparse.Namespace) -> int:
    """Shows how two runs differ. Returns 0 if they are equal, 1 if they differ, and 2 if they cannot be compared."""
    try:
        runs = [read(path) for path in (options.a, options.b)]
        for run in runs:
            tell_missing(run)
        difference = diff(*runs, rtol=options.rtol, atol=options.atol, only=options.only)
    except RunError as error:
        print(error, file=sys.stderr)
        return 2
    print(difference)
    return 0 if difference.equal else 1
