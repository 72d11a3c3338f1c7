"""Summaries of the values that a function computes, as `summary=True` logs them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from effects import _jax
from effects._api.log import LOG, Event
from effects._model.filter import OF_LINES
from effects._model.operand import take_arguments
from effects._model.primitive import effect_p
from effects._model.site import Site
from effects._model.where import Where
from effects.extensions.watching.tables import is_float


def bind_summaries(operation: str, where: Where, outs: Sequence[Any], around: Sequence[Any]) -> None:
    """Logs a summary of each result of an operation. `around`: the iterations of the loops."""
    for out in outs:
        if not is_float(_jax.typeof(out)) or not out.size:
            continue
        fields = {"iteration": jnp.stack(around)} if around else {}
        operands, leaves, tree = take_arguments((), {**fields, **_summary(out)}, "fx.watch", where)
        names = (*fields, *_NUMBERS)
        site = Site(LOG, Event(operation, logging.INFO, names), leaves, tree, where, filter=OF_LINES)
        effect_p.bind(*operands, site=site)


_NUMBERS = ("min", "max", "mean", "norm", "zeros", "nonfinite")


def _summary(x: Any) -> dict[str, Any]:
    """The numbers of a summary: the first four are of the finite elements; the last two are shares of all elements."""
    x = jnp.abs(x) if jnp.issubdtype(x.dtype, jnp.complexfloating) else x
    x = x.astype(jax.dtypes.canonicalize_dtype(np.float64))
    finite = jnp.isfinite(x)
    count, zero = finite.sum(), jnp.where(finite, x, 0)
    numbers = (
        jnp.where(count > 0, jnp.where(finite, x, jnp.inf).min(), jnp.nan),
        jnp.where(count > 0, jnp.where(finite, x, -jnp.inf).max(), jnp.nan),
        zero.sum() / count,
        jnp.sqrt((zero * zero).sum()),
        (x == 0).mean(dtype=x.dtype),
        (~finite).mean(dtype=x.dtype),
    )
    return dict(zip(_NUMBERS, numbers, strict=True))
