"""Lanes one after the other: what cannot run for all lanes of a `vmap` at once is called for each of them.

Under several `vmap`s the lanes of the last one are the outermost, as they are for every other effect. A loop would not
give that: the `vmap`s around it map its body, so that the lanes of the first one would come first. Such a call is
therefore a primitive of its own until it is lowered, and each `vmap` puts a loop around all that it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from effects import _jax
from effects.lowering.holders import Extra, find_holder, holds
from effects.lowering.passes.summary import summarize

_Binder = TypeVar("_Binder", bound=Callable[..., Sequence[Any]])

_lane_p: _jax.Primitive = _jax.Primitive("lane_by_lane")
_lane_p.multiple_results = True
"""(*operands) -> the results of its body."""


_lane_takers: dict[_jax.Primitive, Callable[..., Sequence[Any]]] = {}
"""By primitive, what binds it such that its effects know in which lane they are: a function of (lane, *args, **params).
Pallas has such primitives."""


def takes_lane(primitive: _jax.Primitive) -> Callable[[_Binder], _Binder]:
    """Declares what binds a primitive such that its effects know in which lane they are."""

    def declare(bind: _Binder) -> _Binder:
        _lane_takers[primitive] = bind
        return bind

    return declare


def lane_by_lane(fun: Callable[..., Sequence[Any]], args: Sequence[Any]) -> list[Any]:
    """Calls a function such that `vmap` calls it for one lane after the other."""
    return _lane_p.bind(*args, body=jax.make_jaxpr(fun)(*args))


def call_lanes(axis_data: Any, args: Sequence[Any], dims: Sequence[int | None], *, body: Any) -> tuple[Any, Any]:
    """Calls a jaxpr for one lane after the other: a batching rule."""
    is_mapped = [dim is not None for dim in dims]
    values = [x if dim is None else _jax.lanes_at_front(x, dim, axis_data) for x, dim in zip(args, dims, strict=True)]
    if _jax.is_axis_of_tangents(axis_data):  # along which effects happen once
        loop, has_lanes = _jax.batched(body, axis_data, is_mapped, False)
        return _lane_p.bind(*values, body=loop), [0 if has else None for has in has_lanes]

    def call_each(*args: Any) -> Any:
        def call(given: tuple[Any, list[Any]]) -> list[Any]:
            lane, mapped = given[0], iter(given[1])
            operands = [next(mapped) if is_one else x for is_one, x in zip(is_mapped, args, strict=True)]
            return _with_lane(body, lane, operands)

        mapped = [x for is_one, x in zip(is_mapped, args, strict=True) if is_one]
        return jax.lax.map(call, (lanes_of(axis_data), mapped))

    outs = lane_by_lane(call_each, values)
    return outs, [0] * len(outs)


def lanes_of(axis_data: Any) -> Any:
    """The numbers of the lanes, as a kernel's input takes them."""
    return jnp.arange(axis_data.size, dtype=jnp.float32)[:, None, None]


def _with_lane(jaxpr: Any, lane: Any, args: Sequence[Any]) -> list[Any]:
    """Evaluates a jaxpr whose kernels know in which lane they are."""

    def apply(eqn: Any, operands: list[Any]) -> Sequence[Any]:
        if not any(summarize(inner).all_effects for inner in _jax.jaxprs_in(eqn.params)):
            return _jax.bind(eqn, operands)
        if (bind := _lane_takers.get(eqn.primitive)) is not None:
            return bind(lane, *operands, **eqn.params)
        if (holder := find_holder(eqn.primitive)) is None:
            return _jax.bind(eqn, operands)

        def run(body: Any, state: Sequence[Any], args: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
            return state, _with_lane(body, lane, args)

        def rewrite(body: Any, after: int) -> Any:
            avals = [_jax.typeof(lane), *body.in_avals]
            return _jax.trace_to_jaxpr(lambda lane, *args: _with_lane(body, lane, args), avals, like=body)

        return holder(Extra(eqn.primitive.bind, rewrite, run, consts=(lane,)), *operands, **eqn.params)

    return _jax.interpret(_jax.closed_jaxpr(jaxpr), args, apply)


@holds(_lane_p)
def _hold(extra: Extra, *args: Any, body: Any) -> Sequence[Any]:
    return extra.bind(*extra.values, *args, body=extra.rewrite(body))


@_lane_p.def_effectful_abstract_eval
def _abstract_eval(*avals: Any, body: Any) -> tuple[Any, Any]:
    return body.out_avals, set(body.effects)


@_lane_p.def_impl
def _run(*args: Any, body: Any) -> list[Any]:
    return _jax.evaluate(body, args)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, body: Any) -> tuple[Any, Any]:
    given = [x for x in tangents if not isinstance(x, _jax.ad.Zero)]
    which = [not isinstance(x, _jax.ad.Zero) for x in tangents]
    derivative, has_tangent = _jax.ad.jvp_jaxpr(body, which, False)
    outs = _lane_p.bind(*primals, *given, body=derivative)
    rest = iter(outs[len(has_tangent) :])
    outs = outs[: len(has_tangent)]
    return outs, [
        next(rest) if has else _jax.ad.Zero.from_primal_value(out) for has, out in zip(has_tangent, outs, strict=True)
    ]


_jax.batching.fancy_primitive_batchers[_lane_p] = call_lanes
_jax.ad.primitive_jvps[_lane_p] = _jvp
_jax.mlir.register_lowering(_lane_p, _jax.mlir.lower_fun(_run))
