"""Records that came together as lines that native code makes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from effects._model.mark import Unfilled
from effects._model.native import native
from effects._model.native_text import Plan
from effects._model.print_options import print_options
from effects._model.record import Record, Records
from effects._model.site import Site

Lines = tuple[bytes, Sequence[int]]
"""Lines one behind the other, and where each ends."""


class NativeRows:
    """Makes lines of records that came together.

    Args:
        plan: Of a site, how lines are made of its records; None if they have no lines. What it raises says that Python
            makes them.
    """

    def __init__(self, plan: Callable[[Site], Plan | None]):
        self._make = plan
        # By site; `_OF_PYTHON`, or None if there are no lines.
        self._plans: weakref.WeakKeyDictionary[Site, Any] = weakref.WeakKeyDictionary()

    def of(self, records: Iterable[Record]) -> Lines | None:
        """The lines of these records; None where Python must make them."""
        if not isinstance(records, Records):
            return None
        plans = {}
        for site in records.sites():
            plan = self._plan(site)
            if plan is _OF_PYTHON:
                return None
            if plan is not None:
                plans[site.id] = plan
        if (options := print_options(np.get_printoptions())) is None:
            return None
        return records.rows(plans, native.number_of_print_options(options))

    def _plan(self, site: Site) -> Any:
        if site not in self._plans:
            self._plans[site] = self._new_plan(site)
        return self._plans[site]

    def _new_plan(self, site: Site) -> Any:
        try:
            plan = self._make(site)
            return None if plan is None else native.Plan(plan)
        except Exception:  # whatever a mark cannot do
            return _OF_PYTHON


_OF_PYTHON = object()


def plan_of_text(site: Site) -> Plan:
    """How the text is made that showing the records of a site writes."""
    if (plan := site.content.native_plan(site)) is None:
        raise Unfilled
    return plan


def joined(lines: Sequence[bytes]) -> Lines:
    """Lines that Python has made."""
    ends, end = [], 0
    for line in lines:
        ends.append(end := end + len(line))
    return b"".join(lines), ends
