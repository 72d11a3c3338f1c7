"""The tokens of what was captured in a case over several devices: they must be in order, and count without a gap."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from tests.oracle.devices.loose import is_branched, loose_regions, skipping_regions
from tests.oracle.devices.region import PARTS, Region
from tests.oracle.language import Case, statements
from tests.oracle.statements.calls import Vmap
from tests.oracle.statements.derivatives import Derivative
from tests.oracle.tokens import Seen, leaves_out


def compare_tokens(runs: Case, tokens: Sequence[Seen]) -> list[str]:
    """What is wrong with the tokens of a thread's records, which stand in the order of the output."""
    if any(loose_regions(run.program) for run in runs.runs):
        return []
    programs = tuple(run.program for run in runs.runs)
    in_parts = any(isinstance(s, Region) and s.form in PARTS for s in statements(programs))
    has_lanes = any(isinstance(s, Vmap | Derivative) for s in statements(programs))
    skips = any(skipping_regions(program) for program in programs)
    counts_all = not in_parts and not skips and not leaves_out(programs) and not (has_lanes and is_branched(programs))
    complaints = []
    last: dict[tuple[int, int], tuple[Any, ...]] = {}
    indices: dict[Any, list[int]] = collections.defaultdict(list)
    for record in tokens:
        if not record.ordered or record.is_nested:
            continue
        stream, epoch, phase, index = record.token
        in_region = phase % 2 == 1
        place = epoch, phase, index, record.device if in_region else -1, record.lane
        if last.setdefault((record.thread, record.domain), (-1,)) >= place:
            complaints.append(f"{record} comes behind {last[record.thread, record.domain]}")
        last[record.thread, record.domain] = place
        if in_region and record.device < 0:
            complaints.append(f"{record} is in a region and of no device")
        own = indices[stream, epoch, phase if in_region else 0, record.device if in_region else -1]
        if not own or own[-1] != index:
            own.append(index)
    if counts_all:
        for where, own in indices.items():
            if own != list(range(len(own))):
                complaints.append(f"the effects of (stream, epoch, phase, device) {where} have the indices {own}")
    return complaints
