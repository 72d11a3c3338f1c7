"""The log of a compiled kernel: one record, from which those of the kernel's effects are read.

A kernel cannot call the host. Each program of its grid writes its effects into a row of words of its own; after the
kernel the rows are published as one record, and the host takes that apart. The results are ordinary records of ordinary
sites, in the order of the grid and within each program in that of its effects.

A row begins with two words: the number of words that the program's effects need, and the number of effects. Then come
the effects: the site's number plus one, and the words of its operands. An effect that does not fit is incomplete in the
row, and neither it nor any effect behind it counts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from effects._model.content import Composite, described_by
from effects._model.effect import Effect
from effects._model.operand import Operand
from effects._model.site import Site, site_from

MSG_DROPPED = (
    "{dropped} effects of the kernel `{kernel}` at {where} were dropped. Its log has room for {capacity} words in each "
    "program of the grid, and a program needed {need}. {remedy}"
)
THEN_GROWS = (
    "It has more room where the kernel is traced again, which a function of `fx.jit` is at its next call. Write "
    "`fx.pallas_call(..., log_capacity={need})` to lose none."
)
THEN_STAYS = "Give `log_capacity` so many words, or record less."

grown: dict[tuple[Any, ...], int] = {}
"""By kernel: the words that a program of its grid needed, where the log had too few. Only drain threads write it, and
tracing reads it."""

COUNTS = 2
"""The number of words ahead of the effects in a row."""


def words_of(operand: Operand) -> int:
    """The number of 32-bit words that a program writes for an operand."""
    return math.prod(operand.shape) * max(1, operand.stored.itemsize // 4)


def logged_operands(site: Site) -> tuple[Operand, ...]:
    """The operands of a site that a program writes: its place in the grid is that of its row."""
    return tuple(operand for operand in site.operands if operand is not _grid_of(site))


def _grid_of(site: Site) -> Operand | None:
    found = site.find_hidden("grid")
    return None if found is None else found[0]


def need_of(site: Site) -> int:
    """The number of words that a record of this site takes in a log."""
    return 1 + sum(map(words_of, logged_operands(site)))


@described_by("kernel_log")
@dataclasses.dataclass(frozen=True)
class KernelLog(Composite):
    """The content of a kernel's log, from which its records are read."""

    kernel: str  # its name
    sites: tuple[Site, ...]  # by their numbers in the log
    grid: tuple[int, ...]  # all axes, including those added by `vmap`
    index: tuple[int | None, ...]  # the axes that effects show; None: the next of the lane inputs
    capacity: int  # words for a program's effects
    grows: bool = True  # True if later programs get more room after an overflow

    def describe(self) -> dict[str, Any]:
        return {
            "kernel_log": self.kernel,
            "sites": [site.description for site in self.sites],
            "grid": self.grid,
            "index": self.index,
            "capacity": self.capacity,
            "grows": self.grows,
        }

    @classmethod
    def from_description(cls, description: Mapping[str, Any], read_operand: Callable[[Any], Operand]) -> KernelLog:
        return cls(
            description["kernel_log"],
            tuple(map(site_from, description["sites"])),
            tuple(description["grid"]),
            tuple(description["index"]),
            description["capacity"],
            description["grows"],
        )

    def text(self, record: Any) -> str:
        return f"the log of the kernel {self.kernel}"

    def parts(self, site: Site, payload: Any) -> Iterator[tuple[Site, bytes]]:
        """The effects in a record of this log, whose site is `site`: those of the site's order. A kernel whose effects
        have several orders has a record for each."""
        rows, *lanes = site.read(payload)
        has_part = [order_of(inner.effect) == order_of(site.effect) for inner in self.sites]
        for program, row in enumerate(rows):
            index = None
            for number, words in self._effects(row):
                if has_part[number]:
                    index = self._index_of(program, lanes) if index is None else index
                    yield self.sites[number], _payload(self.sites[number], words, index)

    def _effects(self, row: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """The effects in a row that are there as a whole: the number of the site, and the words of the operands."""
        at, end = COUNTS, min(int(row[0]), self.capacity) + COUNTS
        while at < end:
            number = int(row[at]) - 1
            after = at + need_of(self.sites[number])
            if after > self.capacity + COUNTS:
                return
            yield number, row[at + 1 : after]
            at = after

    @property
    def key(self) -> tuple[Any, ...]:
        """The key of the kernel, the same in every program that calls it."""
        return self.kernel, self.sites

    def warning(self, site: Site, payload: Any) -> tuple[str, int] | None:
        rows = site.read(payload)[0]
        if (need := int(rows[:, 0].max())) <= self.capacity:
            return None
        dropped = int(rows[:, 1].sum()) - sum(1 for row in rows for _ in self._effects(row))
        if self.grows:
            grown[self.key] = max(need, grown.get(self.key, 0))
        shown = {"kernel": self.kernel, "where": site.where, "capacity": self.capacity, "need": need}
        remedy = THEN_GROWS.format(need=need) if self.grows else THEN_STAYS
        text = MSG_DROPPED.format(dropped=dropped, remedy=remedy, **shown)
        return text, sum(grown.values())

    def _index_of(self, program: int, lanes: list[np.ndarray]) -> np.ndarray:
        """The place in the grid of the program with this row, as its effects show it."""
        along, given = np.unravel_index(program, self.grid) if self.grid else (), iter(lanes)
        return np.array([next(given)[0, 0] if axis is None else along[axis] for axis in self.index], np.int32)


def order_of(effect: Effect) -> str | None:
    """The key of an effect's order: its domain, or None without an order."""
    return effect.domain if effect.ordered else None


def _payload(site: Site, words: np.ndarray, index: np.ndarray) -> bytes:
    """The payload of a record, as a program outside of a kernel would have published it."""
    payload = bytearray(site.payload_size)
    at, grid = 0, _grid_of(site)
    for operand, offset in zip(site.operands, site.offsets, strict=True):
        if operand is grid:
            value = index
        else:
            count = words_of(operand)
            value = _value(words[at : at + count], operand.stored)
            at += count
        payload[offset : offset + value.nbytes] = value.tobytes()
    return bytes(payload)


def _value(words: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Reads a value from the words that `as_words` in `extensions/kernels/log_writer.py` wrote."""
    if dtype.itemsize >= 4:
        parts = words.reshape(dtype.itemsize // 4, -1)
        return np.ascontiguousarray(parts.T).view(dtype)
    if dtype.kind in "biu":
        return words.astype(dtype)
    return words.view(np.float32).astype(dtype)
