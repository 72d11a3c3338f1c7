"""The primitive of host effects, and what transformations make of it.

`effect_p` takes the operands of one site and gives what the program waits for: the results of a callback, else nothing.
How it becomes part of a program stands in `lowering/`; how it happens at once, outside of any program, in `dispatch/`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from effects import _errors as errors
from effects import _jax_compat as compat
from effects._content import HostCall
from effects._sites import Operand, Site
from effects._types import Effect, jax_effects

effect_p = compat.Primitive("effect")
effect_p.multiple_results = True


def result_avals(site: Site) -> list[Any]:
    """Types of what a program waits for at this site."""
    return [compat.ShapedArray(result.shape, result.stored) for result in site.results or ()]


@effect_p.def_effectful_abstract_eval
def _effect_abstract_eval(*operands: Any, site: Site) -> tuple[list[Any], set[Any]]:
    return result_avals(site), jax_effects(site.effect)


def _effect_jvp(primals: Any, tangents: Any, *, site: Site) -> tuple[list[Any], list[Any]]:
    """The primal program has the effect; tangents have none. A function of the user's has no derivative."""
    if site.results and any(type(tangent) is not compat.ad.Zero for tangent in tangents):
        assert isinstance(site.content, HostCall)
        raise errors.NotDifferentiable(
            errors.MSG_NOT_DIFFERENTIABLE.format(function=site.content.function.name, where=site.where)
        )
    outs = effect_p.bind(*primals, site=site)
    return outs, [compat.zero_tangent(out) for out in outs]


def _effect_batch(operands: Any, dims: Any, *, site: Site) -> tuple[list[Any], list[Any]]:
    """One record with lanes, replayed lane by lane; or as the callback's `vmap_method` says, one call for all."""
    size = next(x.shape[dim] for x, dim in zip(operands, dims, strict=True) if dim is not None)
    moved = [x if dim is None else jnp.moveaxis(x, dim, 0) for x, dim in zip(operands, dims, strict=True)]
    batched = [dim is not None for dim in dims]
    method = site.content.vmap_method if isinstance(site.content, HostCall) else None
    if method is None or method.startswith("sequential"):
        outs = effect_p.bind(*moved, site=site.with_lanes(size, batched))
    else:
        outs = _call_with_batch(moved, batched, size, method, site)
    return outs, [0] * len(outs)


def _call_with_batch(operands: list[Any], batched: list[bool], size: int, method: str, site: Site) -> Any:
    values = []
    for x, is_batched in zip(operands, batched, strict=True):
        if not is_batched and method == "expand_dims":
            x = x[None]
        elif not is_batched and method == "broadcast_all":
            x = jnp.broadcast_to(x, (size, *x.shape))
        values.append(x)
    shapes = iter([x.shape for x in values])
    leaves = tuple(
        dataclasses.replace(leaf, shape=tuple(next(shapes))) if isinstance(leaf, Operand) else leaf
        for leaf in site.leaves
    )
    content: Any = site.content
    if content.results is not None:
        results = tuple(dataclasses.replace(result, shape=(size, *result.shape)) for result in content.results)
        content = dataclasses.replace(content, results=results)
    return effect_p.bind(*values, site=dataclasses.replace(site, leaves=leaves, content=content))


compat.ad.primitive_jvps[effect_p] = _effect_jvp
compat.batching.primitive_batchers[effect_p] = _effect_batch


def _refuse_batched_predicate(jaxpr: Any) -> None:
    """Under a predicate that differs between lanes, both branches run for all of them: their effects would be wrong."""
    if names := sorted({str(effect) for effect in jaxpr.effects if isinstance(effect, Effect)}):
        raise errors.MissingTokenRule(errors.MSG_BATCHED_COND.format(effects=", ".join(names)))


compat.on_batched_cond(_refuse_batched_predicate)
