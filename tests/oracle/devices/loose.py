"""Which regions are loose: only each device's own order is known, and compared with records that were captured. And in
which of the others devices skip the numbers of effects that are in other branches than theirs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from tests.oracle.counts import Unknown, Unsaid, count
from tests.oracle.devices.region import Region
from tests.oracle.devices.statements import Talk
from tests.oracle.language import Block_, Program, Statement, is_native, statements
from tests.oracle.statements.asynchronous import InFlight
from tests.oracle.statements.callback import Callback
from tests.oracle.statements.calls import Call, Vmap
from tests.oracle.statements.control import Cond, Fori, Switch, While
from tests.oracle.statements.derivatives import CustomRule, Derivative
from tests.oracle.statements.effects import Check, Effect

BRANCHES = (Cond, Switch, While)


def is_branched(tree: object) -> bool:
    """Whether there are branches or loops whose predicate may differ between devices, or lanes."""
    return any(
        isinstance(s, BRANCHES) or (isinstance(s, Fori) and not isinstance(s.trips, int)) for s in statements(tree)
    )


def is_loose(region: Region, calls: Mapping[str, Block_], inside: Sequence[Statement]) -> bool:
    """Whether only the order of each device's own effects in this region is known, by what may be in functions too.

    A device counts what lanes skip, in branches and loops that are made for others' sake. And where devices diverge
    and also talk to each other, what is waited for may come ahead of its place in the order. JAX talks by itself where
    something is differentiated that all devices have the same of.
    """
    whole = (region.body, tuple(body for name, body in calls.items() if _is_called(name, region)))
    waits = _waits(whole)
    skips = devices_skip(region, calls)
    has_checks = any(isinstance(s, Check) for s in statements(whole))
    if waits and has_checks and any(isinstance(s, Vmap | Derivative) for s in inside):
        return True
    if waits and (is_branched(whole) or has_checks) and skips is None:
        return True
    talks = any(isinstance(s, Talk | CustomRule) for s in statements(whole))
    if any(isinstance(s, Vmap) and is_branched((s, whole[1])) for s in statements(whole)):
        return True
    if any(isinstance(s, Vmap) for s in inside) and (is_branched(whole) or _has_native(whole)):
        return True
    differentiated = any(isinstance(s, Derivative) for s in inside)
    return waits and is_branched(whole) and (differentiated or (talks and not skips))


def devices_skip(region: Region, calls: Mapping[str, Block_]) -> bool | None:
    """Whether devices skip the numbers that only other branches have; None if that is not known here. They do where
    they wait for callbacks, if it is known how many effects there are."""
    if not _waits((region.body, *(body for name, body in calls.items() if _is_called(name, region)))):
        return False
    try:
        count(region.body, calls)
    except Unknown:
        return False
    except Unsaid:
        return None
    return True


def _waits(tree: object) -> bool:
    return any(
        (isinstance(s, Callback) and s.awaited) or (isinstance(s, InFlight) and s.kind == "async_host")
        for s in statements(tree)
    )


def _has_native(tree: object) -> bool:
    return any(isinstance(s, Effect) and is_native(s.kind) for s in statements(tree))


def _is_called(name: str, tree: object) -> bool:
    return any(isinstance(s, Call) for s in statements(tree))


@functools.lru_cache(maxsize=256)
def skipping_regions(program: Program) -> frozenset[str]:
    """The regions in which devices skip numbers, or would if they diverged."""
    calls = {function.name: function.body for function in program.functions}

    def may_diverge(region: Region) -> bool:
        whole = (region, *calls.values())
        return is_branched(whole) or any(isinstance(s, Check) for s in statements(whole))

    regions = [s for s in statements(program) if isinstance(s, Region) and may_diverge(s)]
    return frozenset(region.label for region in regions if devices_skip(region, calls))


@functools.lru_cache(maxsize=256)
def loose_regions(program: Program) -> frozenset[str]:
    calls = {function.name: function.body for function in program.functions}
    found = set()

    def look(tree: object, inside: tuple[Statement, ...]) -> None:
        if isinstance(tree, tuple):
            for item in tree:
                look(item, inside)
        elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
            if isinstance(tree, Region) and is_loose(tree, calls, inside):  # and so are those around and inside
                nested = (tree, *statements(tree.body), *inside)
                found.update(region.label for region in nested if isinstance(region, Region))
            below = (*inside, tree) if hasattr(tree, "kinds") else inside
            for part in dataclasses.fields(tree):
                look(getattr(tree, part.name), below)  # type: ignore[arg-type]

    look(program.body, ())
    return frozenset(found)
