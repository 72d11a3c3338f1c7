"""The slips, a file for each part of the library."""

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
    progress,
    regions,
    release,
    replay,
    rings,
    runs,
    text,
    threads,
    token_pass,
    watching,
)

PARTS = (
    *(token_pass, masks, differentiation, regions, rings, release, replay, failures, export, kernels),
    *(asynchronous, progress, plain, text, imports, gpus, keys, calls, threads, filters, runs, watching),
)
SLIPS: tuple[Slip, ...] = tuple(slip for part in PARTS for slip in part.SLIPS)
