"""Which regions are loose: only each device's own order is known, and compared with records that were captured."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from tests.oracle.devices.region import Region
from tests.oracle.devices.statements import Talk
from tests.oracle.language import DOMAINS, Program, Statement, statements
from tests.oracle.statements.callback import Callback
from tests.oracle.statements.calls import Call, Vmap
from tests.oracle.statements.control import Cond, Fori, Switch, While
from tests.oracle.statements.derivatives import CustomRule, Derivative
from tests.oracle.statements.effects import Effect

BRANCHES = (Cond, Switch, While)


def is_branched(tree: object) -> bool:
    """Whether there are branches or loops whose predicate may differ between devices, or lanes."""
    return any(
        isinstance(s, BRANCHES) or (isinstance(s, Fori) and not isinstance(s.trips, int)) for s in statements(tree)
    )


def is_loose(region: Region, calls: Mapping[str, object], inside: Sequence[Statement]) -> bool:
    """Whether only the order of each device's own effects in this region is known, by what may be in functions too.

    A device counts what lanes skip, in branches and loops that are made for others' sake. And where devices diverge
    and also talk to each other, what is waited for may come ahead of its place in the order. JAX talks by itself where
    something is differentiated that all devices have the same of.
    """
    whole = (region.body, tuple(body for name, body in calls.items() if _is_called(name, region)))
    waits = any(isinstance(s, Callback) and s.awaited for s in statements(whole))
    talks = any(isinstance(s, Talk | CustomRule) for s in statements(whole))
    if any(isinstance(s, Vmap) and is_branched((s, whole[1])) for s in statements(whole)):
        return True
    if any(isinstance(s, Vmap) for s in inside) and (is_branched(whole) or _has_native(whole)):
        return True
    return (talks or any(isinstance(s, Derivative) for s in inside)) and waits and is_branched(whole)


def _has_native(tree: object) -> bool:
    return any(isinstance(s, Effect) and (s.kind in DOMAINS or s.kind.startswith("native")) for s in statements(tree))


def _is_called(name: str, tree: object) -> bool:
    return any(isinstance(s, Call) for s in statements(tree))


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
