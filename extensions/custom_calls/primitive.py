"""The primitive of custom calls, and what transformations make of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from effects import _errors as errors
from effects import _jax
from effects._model.effect import jax_effects
from effects._model.site import Site
from effects.extensions.custom_calls.message import message_of

MSG_CUSTOM_VMAP = (
    "The custom call `{target}` at {where} is under `vmap`, and has no `vmap_method`. JAX cannot know what a handler "
    "makes of one more axis. Pass `vmap_method='sequential'` to call it lane by lane, or another that it understands."
)
MSG_CUSTOM_DERIVATIVE = (
    "A derivative was asked of the results of the custom call `{target}` at {where}. JAX cannot look into native code. "
    "Wrap the call in `jax.custom_jvp` or `jax.custom_vjp`, or its arguments in `jax.lax.stop_gradient`."
)


custom_call_p: _jax.Primitive = _jax.Primitive("custom_call")
custom_call_p.multiple_results = True
"""(*operands) -> results, those that are scratch memory last. `site` is that of records that the handler publishes.

With `masked` a boolean comes first: True if the call is made. `lanes`: sizes of the `vmap`s around it, the outermost
first, if it is made lane by lane; `lanes_of`: for each operand and the boolean, if it differs in each of these."""


@custom_call_p.def_effectful_abstract_eval
def _custom_call_abstract_eval(
    *operands: Any, site: Site, results: Any, lanes: tuple[int, ...], **_: Any
) -> tuple[list[Any], set[Any]]:
    effects = jax_effects(site.effect) if message_of(site).has_effect else set()
    return [_jax.per_device(_mapped(result, lanes)) for result in results], effects


def _mapped(result: Any, lanes: tuple[int, ...]) -> Any:
    return _jax.ShapedArray((*lanes, *result.shape), result.dtype)


def _custom_call_jvp(primals: Any, tangents: Any, **params: Any) -> tuple[list[Any], list[Any]]:
    if any(type(tangent) is not _jax.ad.Zero for tangent in tangents):
        raise _not_differentiable(params["site"])
    outs = custom_call_p.bind(*primals, **params)
    return outs, [_jax.zero_tangent(out) for out in outs]


def _custom_call_transpose(cotangents: Any, *operands: Any, **params: Any) -> Any:
    raise _not_differentiable(params["site"])


def _not_differentiable(site: Site) -> errors.NotDifferentiable:
    return errors.NotDifferentiable(MSG_CUSTOM_DERIVATIVE.format(target=site.content.title, where=site.where))


def _custom_call_batch(
    axis_data: Any,
    operands: Sequence[Any],
    dims: Sequence[Any],
    *,
    results: Any,
    lanes: Any,
    lanes_of: Any,
    **params: Any,
) -> tuple[Sequence[Any], Sequence[Any]]:
    site, method, size, masked = params["site"], params["vmap_method"], axis_data.size, params["masked"]
    mapped = [dim is not None for dim in dims]
    bind = functools.partial(custom_call_p.bind, **params)
    if not any(mapped) and (not message_of(site).has_effect or _jax.is_axis_of_tangents(axis_data)):
        outs = bind(*operands, results=results, lanes=lanes, lanes_of=lanes_of)
        return outs, [None] * len(outs)
    if method is None:
        raise errors.unsupported(MSG_CUSTOM_VMAP.format(target=site.content.title, where=site.where))
    moved = [
        x if dim is None else _jax.lanes_at_front(x, dim, axis_data) for x, dim in zip(operands, dims, strict=True)
    ]
    # Lane by lane, the outermost `vmap` first: all lanes are known only when the program is complete, so they are noted
    # here.
    if method.startswith("sequential") or lanes or (masked and mapped[0]):
        lanes_of = tuple((m, *differs) for m, differs in zip(mapped, lanes_of, strict=True))
        outs = bind(*moved, results=results, lanes=(size, *lanes), lanes_of=lanes_of)
        return outs, [0] * len(outs)
    mask, moved, mapped = moved[:masked], moved[masked:], mapped[masked:]
    if method != "legacy_vectorized":
        length = size if method == "broadcast_all" else 1
        moved = [x if m else jnp.broadcast_to(x, (length, *x.shape)) for x, m in zip(moved, mapped, strict=True)]
    outs = bind(
        *mask,
        *moved,
        results=tuple(_mapped(result, (size,)) for result in results),
        lanes=lanes,
        lanes_of=lanes_of,
    )
    return outs, [0] * len(outs)


def by_lane(
    call: Callable[..., tuple[Any, Sequence[Any]]],
    carry: Any,
    operands: Sequence[Any],
    *,
    results: Sequence[Any],
    masked: bool,
    lanes: tuple[int, ...],
    lanes_of: Sequence[tuple[bool, ...]],
    unroll: bool,
) -> tuple[Any, list[Any]]:
    """Calls `call(carry, *operands) -> (carry, results)` for each active lane, in the order of the lanes."""
    if not lanes:  # there are no lanes to mask: the call is always made
        carry, outs = call(carry, *operands[masked:])
        return carry, list(outs)
    flat = [_by_lane(x, lanes, differs) for x, differs in zip(operands, lanes_of, strict=True)]

    def leave_out(carry: Any, *_: Any) -> tuple[Any, list[Any]]:
        return carry, [_jax.as_per_device(jnp.zeros(result.shape, result.dtype)) for result in results]

    def one(carry: Any, of_lane: Any) -> tuple[Any, Any]:
        given = iter(of_lane)
        args = [next(given) if any(d) else x for x, d in zip(operands, lanes_of, strict=True)]
        return jax.lax.cond(args[0], call, leave_out, carry, *args[1:]) if masked else call(carry, *args)

    count = math.prod(lanes)
    # The scan needs an array over all lanes even if no operand has lanes: their number may be symbolic.
    xs = [x for x, differs in zip(flat, lanes_of, strict=True) if any(differs)] or [jnp.zeros(count, bool)]
    carry, outs = jax.lax.scan(one, carry, xs, unroll=count if unroll and isinstance(count, int) else 1)
    return carry, [out.reshape(*lanes, *out.shape[1:]) for out in outs]


def _by_lane(x: Any, lanes: tuple[int, ...], differs: tuple[bool, ...]) -> Any:
    """An operand with one axis for all lanes."""
    inner = x.shape[sum(differs) :]
    sizes = [size if d else 1 for size, d in zip(lanes, differs, strict=True)]
    return jnp.broadcast_to(x.reshape(*sizes, *inner), (*lanes, *inner)).reshape(math.prod(lanes), *inner)


_jax.ad.primitive_jvps[custom_call_p] = _custom_call_jvp
_jax.ad.primitive_transposes[custom_call_p] = _custom_call_transpose
_jax.batching.fancy_primitive_batchers[custom_call_p] = _custom_call_batch
