"""Whether a program calls handlers of the native module, and who counts its effects.

A CPU's handlers read tokens where they lie and write the next ones. On a GPU they see copies, later, and write nothing:
there, and in programs for several platforms of which one is such, the call gives the token back as it came, and the
program makes of it what the handler would. Of records that follow each other each call says how many are ahead of it,
and what is added behind each of them but the last is used by none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from effects import _jax
from effects._config import config
from effects._model.device import PLATFORMS
from effects._model.wire import COUNT_STEP, ENTER_STEP, INDEX, LEAVE_STEP, TokenStep, counts, step_numbers
from effects.lowering.emit.record import Edges
from effects.lowering.host.native import has_usable_driver


def calls_handlers(ctx: Any) -> bool:
    """Whether what is lowered calls handlers: those of all its platforms, with the setting `native`."""
    return config.native and have_handlers(ctx)


def have_handlers(ctx: Any) -> bool:
    """Whether there are handlers on all platforms that this is lowered for.

    Those of a GPU need a driver. In a process without such a GPU it is another process that will run the program.
    """
    for platform in _jax.platforms_here(ctx):
        row = PLATFORMS.get(platform)
        if row is None or row.records != "native":
            return False
        runs_here = row.needs_driver and not _jax.is_for_export(ctx) and _jax.missing_platform(ctx) is None
        if runs_here and not has_usable_driver():
            return False
    return True


def is_counted(ctx: Any) -> bool:
    """Whether the program counts by itself."""
    rows = (PLATFORMS.get(platform) for platform in _jax.platforms_of(ctx))
    return any(row is not None and row.records == "native" and not row.tokens_on_host for row in rows)


def steps_of_record(ordered: bool, edges: Edges, ahead: int = 0) -> list[TokenStep]:
    """What a record makes of its token, or the last one of a region of the token around."""
    if edges.leaves or edges.enters:
        inside = [LEAVE_STEP] if edges.leaves else [ENTER_STEP, *[COUNT_STEP] * ordered]
        return [*[counts(ahead)] * (ahead > 0 and edges.enters), *inside]
    return [counts(ahead + ordered)] if ahead or ordered else []


def take_ahead(token: Any, length: int) -> tuple[Any, int]:
    """A token without the effects that the program has added to it, and their number."""
    ahead, each = 0, np.array(step_numbers(COUNT_STEP, length)[1], np.uint32)
    while True:
        before, added = _jax.added_to(token)
        if added is None or not np.array_equal(added, each * added[INDEX]):
            return token, ahead
        token, ahead = before, ahead + int(added[INDEX])


def place_of_token(edges: Edges) -> int:
    """Which operand of a record's call the token is that it gives back."""
    return int(edges.leaves and not edges.enters)


def take_steps(ctx: Any, token: Any, steps: Sequence[TokenStep], aval: Any, replicated: bool) -> Any:
    """The token after these steps. `replicated`: as for the call that gave it back."""
    for step in steps:
        token = _jax.mask_and_add(token, *step_numbers(step, aval.shape[0]))
        if replicated:
            _jax.mark_replicated(ctx.replace(avals_out=[aval]), _jax.owner_of(token))
    return token
