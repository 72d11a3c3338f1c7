"""The report of `effects.runs.diff`, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from effects import _errors as errors
from effects._model.wire import FIRST_NESTED_THREAD, PLAIN_THREAD

if TYPE_CHECKING:
    from effects.extensions.runs.diff import Difference, Pair, Parting, SiteDifference

BEGIN = (
    "The first {calls} and what callbacks and programs of plain jax.jit had are not compared: a file keeps the newest "
    "records only."
)
BESIDE = "What callbacks have called is not compared: they may have run beside each other, in no order."
_HEADINGS = ("line", "both have", "differ", "first", "largest", "last", "only A", "only B")


def report(difference: Difference) -> str:
    """The report of a difference, the most important first."""
    left_out = [BEGIN.format(calls=errors.counted(difference.begin, "call"))] if difference.begin else []
    return "\n".join([*_summary(difference), *left_out, *[BESIDE] * difference.beside, *_table(difference)])


def _summary(difference: Difference) -> Iterator[str]:
    compared = errors.counted(sum(site.compared for site in difference.sites), "record")
    a, b = difference.names
    if difference.equal:
        yield f"{a} and {b} are equal: {compared} at {errors.counted(len(difference.sites), 'line')}"
        return
    yield from (f"A: {a}", f"B: {b}")
    differing = sum(site.differing for site in difference.sites)
    yield f"{differing} of {compared} that both have differ." if differing else f"{compared} that both have are equal."
    first, largest = difference.first, difference.largest
    if first and largest:
        yield from ("", "They differ first at", *_shown_pair(first))
        if largest.place != first.place or largest.where != first.where:
            yield from ("", "They differ most at", *_shown_pair(largest))
    if difference.parting:
        yield from ("", *_shown_parting(difference.parting))


def _table(difference: Difference) -> Iterator[str]:
    sites = [site for site in difference.sites if site.differs]
    equal = len(difference.sites) - len(sites)
    if not sites:
        return
    yield ""
    yield from columns([_HEADINGS, *map(_cells, sites)])
    if equal:
        yield f"{errors.counted(equal, 'other line')} without a difference"


def columns(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """The lines of a table whose first column begins at the left, and whose others end at the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *others in rows:
        yield "  ".join([name.ljust(widths[0]), *map(str.rjust, others, widths[1:])]).rstrip()


def _name(site: Any) -> str:
    return f"{site.effect} {site.title!r} at {site.where}"


def _call(of: Pair | Parting) -> str:
    if of.thread == PLAIN_THREAD:
        return f"effect {of.call} of programs of plain jax.jit"
    return f"call {of.call} " + (f"of thread {of.thread}" if of.thread < FIRST_NESTED_THREAD else "by callbacks")


def _index(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""


def _shown_pair(pair: Pair) -> Iterator[str]:
    device = f", device {pair.device}" if pair.device >= 0 else ""
    lane = f", lane {_index(pair.lane)}" if pair.lane else ""
    yield f"  {_name(pair)}"
    yield f"  {_call(pair)}, iteration {pair.iteration}{device}{lane}"
    argument = f"argument {pair.argument}" if pair.argument.isdecimal() else pair.argument
    if pair.index is None or pair.a is None or pair.b is None:
        a, b = ("nothing" if x is None else f"{x.dtype}{list(x.shape)}" for x in (pair.a, pair.b))
        yield f"  {argument}: A has {a}, B has {b}"
        return
    a, b = (repr(x.item()) if x.dtype.kind in "UO" else str(x) for x in (pair.a[pair.index], pair.b[pair.index]))
    apart = f", {pair.distance:.3g} apart" if np.isfinite(pair.distance) else ""
    yield f"  {argument}{_index(pair.index)}: {a} in A, {b} in B{apart}"
    if pair.a.size > 1:
        yield f"  {pair.count} of its {pair.a.size} elements differ, this one the most"


def _shown_parting(parting: Parting) -> Iterator[str]:
    device = f" on device {parting.device}" if parting.device >= 0 else ""
    yield f"Their effects part in {_call(parting)}{device}:"
    for name, site in ("A", parting.a), ("B", parting.b):
        yield f"  {name} goes on with {_name(site)}" if site else f"  {name} has no more effects in this call"


def _cells(site: SiteDifference) -> tuple[str, ...]:
    sizes = [f"{pair.distance:.3g}" if pair else "" for pair in (site.first, site.largest, site.last)]
    compared, *counts = (f"{n:,}" if n else "" for n in (site.compared, site.differing, site.only_a, site.only_b))
    return _name(site), compared, counts[0], *sizes, *counts[1:]
