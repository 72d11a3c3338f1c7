"""The primitive of host effects, and what transformations make of it.

`effect_p` takes the operands of one site and gives nothing back. How it becomes part of a program stands in
`lowering/`; how it happens at once, outside of any program, in `dispatch/`.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from effects import _errors as errors
from effects import _jax_compat as compat
from effects._sites import Site
from effects._types import Effect

effect_p = compat.Primitive("effect")
effect_p.multiple_results = True


@effect_p.def_effectful_abstract_eval
def _effect_abstract_eval(*operands: Any, site: Site) -> tuple[list[Any], set[Any]]:
    return [], {site.effect}


def _effect_jvp(primals: Any, tangents: Any, *, site: Site) -> tuple[list[Any], list[Any]]:
    """The primal program has the effect; tangents have none."""
    effect_p.bind(*primals, site=site)
    return [], []


def _effect_batch(operands: Any, dims: Any, *, site: Site) -> tuple[list[Any], list[Any]]:
    """One record with lanes, replayed lane by lane."""
    size = next(x.shape[dim] for x, dim in zip(operands, dims, strict=True) if dim is not None)
    moved = [x if dim is None else jnp.moveaxis(x, dim, 0) for x, dim in zip(operands, dims, strict=True)]
    effect_p.bind(*moved, site=site.with_lanes(size, [dim is not None for dim in dims]))
    return [], []


compat.ad.primitive_jvps[effect_p] = _effect_jvp
compat.batching.primitive_batchers[effect_p] = _effect_batch


def _refuse_batched_predicate(jaxpr: Any) -> None:
    """Under a predicate that differs between lanes, both branches run for all of them: their effects would be wrong."""
    if names := sorted({str(effect) for effect in jaxpr.effects if isinstance(effect, Effect)}):
        raise errors.MissingTokenRule(errors.MSG_BATCHED_COND.format(effects=", ".join(names)))


compat.on_batched_cond(_refuse_batched_predicate)
