"""The primitives of asynchronous operations, and what transformations make of them.

`async_start_p` takes operands and returns a ticket; `async_update_p` takes a ticket and returns one; `async_done_p`
takes a ticket and returns the results. Under a mask, a primitive whose operation has a site takes a boolean as its
first operand. For an operation that passes on its values, start and done are linear, and each is the transpose of the
other.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax

from effects import _errors as errors
from effects import _jax
from effects._model.effect import jax_effects
from effects.extensions.asynchronous.operation import HostAwait, Operation
from effects.extensions.asynchronous.primitives import ASYNC, async_done_p, async_start_p, async_update_p

MSG_ASYNC_DERIVATIVE = (
    "A derivative was asked of the results of the asynchronous callback `{name}` at {where}. JAX cannot look into a "
    "Python function. Wrap start and done in a `jax.custom_jvp` or `jax.custom_vjp`, or the operands in "
    "`jax.lax.stop_gradient`."
)
MSG_ASYNC_LANES = (
    "The future that is {ended} at {where} has a ticket of shape {shape}, and one of shape {expected} is wanted there. "
    "What is started in each lane of a `vmap`, or in each turn of a loop, is {ended} in each. Write `jax.vmap` or "
    "`jax.lax.map` around `{call}`, as around the start."
)


@async_start_p.def_effectful_abstract_eval
def _start_abstract_eval(*operands: Any, operation: Operation) -> tuple[list[Any], set[Any]]:
    return [operation.ticket], jax_effects(ASYNC)


def _check_ticket(ticket: Any, operation: Operation, ended: str, call: str) -> None:
    expected = operation.ticket.shape
    if ticket.shape != expected:
        shown = {"ended": ended, "where": operation.where, "shape": ticket.shape, "expected": expected, "call": call}
        raise errors.FutureError(MSG_ASYNC_LANES.format(**shown))


@async_update_p.def_effectful_abstract_eval
def _update_abstract_eval(ticket: Any, *, operation: Operation) -> tuple[list[Any], set[Any]]:
    _check_ticket(ticket, operation, "updated", "fx.async_update")
    return [ticket], jax_effects(ASYNC)


@async_done_p.def_effectful_abstract_eval
def _done_abstract_eval(*operands: Any, operation: Operation) -> tuple[list[Any], set[Any]]:
    _check_ticket(operands[-1], operation, "done", "fx.async_done")
    found = jax_effects(ASYNC)
    if isinstance(operation, HostAwait):  # the host function's effects become visible at the done
        found = found | jax_effects(operation.site.effect)
    return operation.results_of_lanes, found


def _call_by_itself(primitive: Any, *operands: Any, **params: Any) -> Any:
    """Runs a start, update or done outside of programs, as a separate program."""
    with jax.disable_jit(False):
        return _jax.jit(functools.partial(primitive.bind, **params))(*operands)


for _primitive in (async_start_p, async_update_p, async_done_p):
    _primitive.def_impl(functools.partial(_call_by_itself, _primitive))
    _jax.infer_types_each_time(_primitive)


# Derivatives


def _start_jvp(primals: Any, tangents: Any, *, operation: Operation) -> tuple[list[Any], list[Any]]:
    (ticket,) = outs = async_start_p.bind(*primals, operation=operation)
    if not operation.is_linear:
        if any(type(tangent) is not _jax.ad.Zero for tangent in tangents):
            raise _not_differentiable(operation)
        return outs, [_jax.zero_tangent(ticket)]
    own = [tangents[at] for at in operation.differentiable]
    if all(type(tangent) is _jax.ad.Zero for tangent in own):
        return outs, [_jax.zero_tangent(ticket)]
    return outs, async_start_p.bind(*map(_jax.ad.instantiate_zeros, own), operation=operation.tangent())


def _update_jvp(primals: Any, tangents: Any, *, operation: Operation) -> tuple[list[Any], list[Any]]:
    (ticket,) = outs = async_update_p.bind(*primals, operation=operation)
    if type(tangents[0]) is _jax.ad.Zero:
        return outs, [_jax.zero_tangent(ticket)]
    return outs, async_update_p.bind(*tangents, operation=operation.tangent())


def _done_jvp(primals: Any, tangents: Any, *, operation: Operation) -> tuple[list[Any], list[Any]]:
    outs = async_done_p.bind(*primals, operation=operation)
    out_tangents = [_jax.zero_tangent(out) for out in outs]
    if type(tangents[0]) is not _jax.ad.Zero:
        found = async_done_p.bind(*tangents, operation=operation.tangent())
        for at, tangent in zip(operation.differentiable, found, strict=True):
            out_tangents[at] = tangent
    return outs, out_tangents


def _start_transpose(cotangents: Any, *operands: Any, operation: Operation) -> Sequence[Any]:
    (cotangent,) = cotangents
    if not operation.is_linear:
        raise _not_differentiable(operation)
    undefined = [_jax.ad.is_undefined_primal(x) for x in operands]
    if type(cotangent) is _jax.ad.Zero:
        return [_jax.ad.Zero(x.aval) if linear else None for x, linear in zip(operands, undefined, strict=True)]
    outs = async_done_p.bind(cotangent, operation=operation.transposed())
    return [out if linear else None for out, linear in zip(outs, undefined, strict=True)]


def _update_transpose(cotangents: Any, ticket: Any, *, operation: Operation) -> Sequence[Any]:
    (cotangent,) = cotangents
    if type(cotangent) is _jax.ad.Zero:
        return [_jax.ad.Zero(ticket.aval)]
    return async_update_p.bind(cotangent, operation=operation.transposed())


def _done_transpose(cotangents: Any, ticket: Any, *, operation: Operation) -> Sequence[Any]:
    if not operation.is_linear:
        raise _not_differentiable(operation)
    if all(type(cotangent) is _jax.ad.Zero for cotangent in cotangents):
        return [_jax.ad.Zero(ticket.aval)]
    values = operation.of_cotangents([*map(_jax.ad.instantiate_zeros, cotangents)])
    return async_start_p.bind(*values, operation=operation.transposed())


def _not_differentiable(operation: Operation) -> errors.NotDifferentiable:
    return errors.NotDifferentiable(MSG_ASYNC_DERIVATIVE.format(name=operation.name, where=operation.where))


# Lanes


def _batch(
    primitive: Any, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any], *, operation: Operation
) -> tuple[list[Any], list[Any]]:
    """Batches a start into one operation for all lanes. An update or a done is batched if its ticket is."""
    differs = [dim is not None for dim in dims]
    starts = primitive is async_start_p
    in_lanes = any(differs) or not _jax.is_axis_of_tangents(axis_data) if starts else differs[-1]
    if in_lanes:
        # Kept values are broadcast to all lanes. A record only notes which operands differ.
        operands = [
            _jax.lanes_at_front(x, dim, axis_data) if operation.is_linear or dim is not None else x
            for x, dim in zip(operands, dims, strict=True)
        ]
        operation = operation.in_lanes(axis_data.size, differs)
    outs = primitive.bind(*operands, operation=operation)
    return outs, [0 if in_lanes else None] * len(outs)


_jax.ad.primitive_jvps[async_start_p] = _start_jvp
_jax.ad.primitive_jvps[async_update_p] = _update_jvp
_jax.ad.primitive_jvps[async_done_p] = _done_jvp
_jax.ad.primitive_transposes[async_start_p] = _start_transpose
_jax.ad.primitive_transposes[async_update_p] = _update_transpose
_jax.ad.primitive_transposes[async_done_p] = _done_transpose
for _primitive in (async_start_p, async_update_p, async_done_p):
    _jax.batching.fancy_primitive_batchers[_primitive] = functools.partial(_batch, _primitive)
