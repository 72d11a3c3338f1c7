"""The slips, a file for each part of the library: those that no deleted line and no negated condition comes to."""

from __future__ import annotations

from tests.mutants.slip import Slip
from tests.mutants.slips import (
    asynchronous,
    calls,
    differentiation,
    export,
    failures,
    filters,
    gpus,
    imports,
    kernels,
    keys,
    masks,
    plain,
    regions,
    release,
    replay,
    rings,
    runs,
    text,
    token_pass,
    watching,
)

PARTS = (
    *(token_pass, masks, differentiation, regions, rings, release, replay, failures, export, kernels),
    *(asynchronous, plain, text, imports, gpus, keys, calls, filters, runs, watching),
)
SLIPS: tuple[Slip, ...] = tuple(slip for part in PARTS for slip in part.SLIPS)
