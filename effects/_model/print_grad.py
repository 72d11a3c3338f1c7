"""The primitive of `fx.print_grad`, with its derivatives, batching and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from effects import _jax
from effects._model.primitive import effect_p
from effects._model.site import Site

print_grad_p = _jax.Primitive("print_grad")
print_grad_p.multiple_results = True
"""The identity, which is linear; its transpose prints the cotangents."""


def _split(args: Sequence[Any], site: Site) -> tuple[list[Any], list[Any], list[Any]]:
    """Splits operands into three: the mask, if there is one; the values whose cotangents are shown, which are the first
    argument of the site; and the other arguments."""
    masks = 0 if site.mask is None else 1
    end = masks + site.tree.children()[0].children()[0].num_leaves
    return list(args[:masks]), list(args[masks:end]), list(args[end:])


def _print_grad(*args: Any, site: Site) -> list[Any]:
    return _split(args, site)[1]


def _print_grad_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, site: Site) -> tuple[Any, Any]:
    mask, xs, others = _split(primals, site)
    _, tangents, _ = _split(tangents, site)
    if all(type(tangent) is _jax.ad.Zero for tangent in tangents):
        return xs, tangents
    return xs, print_grad_p.bind(*mask, *map(_jax.ad.instantiate_zeros, tangents), *others, site=site)


def _print_grad_transpose(cotangents: Sequence[Any], *args: Any, site: Site) -> list[Any]:
    mask, _, others = _split(args, site)
    cotangents = [_jax.ad.instantiate_zeros(cotangent) for cotangent in cotangents]
    _, operands, _ = _split(site.operands, site)
    stored = [jnp.asarray(x, operand.stored) for x, operand in zip(cotangents, operands, strict=True)]
    effect_p.bind(*mask, *stored, *others, site=site)
    return [*(None for _ in mask), *cotangents, *(None for _ in others)]


def _print_grad_batch(axis_data: Any, args: Sequence[Any], dims: Sequence[Any], *, site: Site) -> tuple[Any, Any]:
    """Batches the values even if they are equal in all lanes, since each lane has its own cotangent."""
    if all(dim is None for dim in dims) and _jax.is_axis_of_tangents(axis_data):
        outs = print_grad_p.bind(*args, site=site)
        return outs, [None] * len(outs)
    mask, xs, others = _split(dims, site)
    differs = [True] * len(mask + xs) + [dim is not None for dim in others]
    moved = [
        _jax.lanes_at_front(x, dim, axis_data) if own else x for x, dim, own in zip(args, dims, differs, strict=True)
    ]
    outs = print_grad_p.bind(*moved, site=site.with_lanes(axis_data.size, differs))
    return outs, [0] * len(outs)


print_grad_p.def_impl(_print_grad)
print_grad_p.def_abstract_eval(_print_grad)
_jax.ad.primitive_jvps[print_grad_p] = _print_grad_jvp
_jax.ad.primitive_transposes[print_grad_p] = _print_grad_transpose
_jax.batching.fancy_primitive_batchers[print_grad_p] = _print_grad_batch
_jax.mlir.register_lowering(print_grad_p, lambda ctx, *args, site: _split(args, site)[1])
