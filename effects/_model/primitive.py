"""The primitive of host effects, and its rules for transformations.

`effect_p` takes the operands of one site and returns the results of a callback, if the program waits for any. Its
lowering is in `lowering/`; its evaluation outside of any program is in `dispatch/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from effects import _errors as errors
from effects import _jax
from effects._model.effect import jax_effects
from effects._model.site import Site

_PAGE = "docs/how-to/filters.md"
MSG_NOT_DIFFERENTIABLE = (
    "A derivative was asked of the results of the callback `{function}` at {where}. JAX cannot look into a Python "
    "function. Wrap the call in `jax.custom_jvp` or `jax.custom_vjp`, or its arguments in `jax.lax.stop_gradient`."
)
MSG_TRANSPOSED = (
    "Effect `{effect}` at {where} has an operand that depends on the argument of a linear function which is "
    "transposed. The transposed function gets a cotangent, and the argument never has a value there. Use "
    "`fx.print_grad` to see the cotangent, or move the effect out of the function."
)

MSG_WHEN = (
    "`{call}` at {where} was given {value} as `when`. `when` is one boolean, which the program may compute. Write a "
    "comparison, say `when=loss > 10`, or for an array `when=x.any()`."
)

effect_p = _jax.Primitive("effect")
effect_p.multiple_results = True


def result_avals(site: Site) -> list[Any]:
    """The types of the results that a program waits for at this site. In a per-device region a user function may
    return different results to each device; JAX takes the results of its own callbacks to be the same on all."""
    avals = [_jax.ShapedArray(result.shape, result.stored) for result in site.results or ()]
    return avals if site.origin is not None else [_jax.per_device(aval) for aval in avals]


@effect_p.def_effectful_abstract_eval
def _effect_abstract_eval(*operands: Any, site: Site) -> tuple[list[Any], set[Any]]:
    return result_avals(site), jax_effects(site.effect)


_jax.infer_types_each_time(effect_p)


def bind_where(when: Any, operands: Sequence[Any], site: Site, call: str) -> None:
    """Binds the effect of a site under the condition `when`; None: always. Its results are dropped."""
    when = take_when(when, site, call)
    if isinstance(when, _jax.Tracer):
        jax.lax.cond(when, lambda *given: effect_p.bind(*given, site=site)[:0], lambda *_: [], *operands)
    elif when:
        effect_p.bind(*operands, site=site)


def take_when(when: Any, site: Site, call: str) -> Any:
    """Checks a `when`, and returns its boolean; None stands for True."""
    if when is None:
        return True
    if _jax.is_reference(when):
        when = when[...]  # a copy of its present value
    is_boolean = isinstance(when, (bool, np.bool_)) or getattr(when, "dtype", None) == np.dtype(bool)
    if not is_boolean or np.shape(when) != ():
        is_array = hasattr(when, "dtype")
        shown = f"an array of {when.dtype}{list(np.shape(when))}" if is_array else errors.shown(when)
        raise errors.type_error(MSG_WHEN.format(call=call, where=site.where, value=shown))
    return when


def _effect_jvp(primals: Any, tangents: Any, *, site: Site) -> tuple[list[Any], list[Any]]:
    """Binds the effect to the primals alone: tangents have no effect, and a user function has no derivative."""
    if site.results and any(type(tangent) is not _jax.ad.Zero for tangent in tangents):
        raise errors.NotDifferentiable(MSG_NOT_DIFFERENTIABLE.format(function=site.content.title, where=site.where))
    outs = effect_p.bind(*primals, site=site)
    return outs, [_jax.zero_tangent(out) for out in outs]


def _effect_batch(
    axis_data: Any, operands: Sequence[Any], dims: Sequence[Any], *, site: Site
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Batches an effect to one record with lanes, which is replayed lane by lane even if no operand is batched. If no
    operand is batched, JAX's own effects happen once, as in JAX, and so do all effects along an axis of tangents."""
    masks = 0 if site.mask is None else 1
    happens_once = site.origin is not None or _jax.is_axis_of_tangents(axis_data)
    if happens_once and all(dim is None for dim in dims[masks:]):
        # A mask that differs along the axis holds if it holds anywhere along it.
        active = [x if dim is None else x.any(dim) for x, dim in zip(operands[:masks], dims[:masks], strict=True)]
        outs = effect_p.bind(*active, *operands[masks:], site=site)
        return outs, [None] * len(outs)
    moved = [
        x if dim is None else _jax.lanes_at_front(x, dim, axis_data) for x, dim in zip(operands, dims, strict=True)
    ]
    outs = effect_p.bind(*moved, site=site.with_lanes(axis_data.size, [dim is not None for dim in dims]))
    return outs, [0] * len(outs)


def _effect_transpose(cotangents: Any, *operands: Any, site: Site) -> Any:
    """Refuses to transpose an effect, since it has no primal value to show. JAX's own callbacks without results are
    dropped, as JAX drops them."""
    if site.origin is not None and site.results is None:
        return [None] * len(operands)
    raise errors.NotDifferentiable(MSG_TRANSPOSED.format(effect=site.effect, where=site.where))


_jax.ad.primitive_transposes[effect_p] = _effect_transpose
_jax.ad.primitive_jvps[effect_p] = _effect_jvp
_jax.batching.fancy_primitive_batchers[effect_p] = _effect_batch
