"""A watched function as one equation, `watch_p`, until its program is lowered.

It has the function twice: `body`, with checks, is computed and batched; `plain`, without checks, is differentiated.
Derivatives then get checks of their own: the forward pass at once, and the backward pass when the linear function is
transposed.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from effects import _errors as errors
from effects import _jax
from effects.dispatch.calling.jit import jit
from effects.extensions.watching.each import Each
from effects.extensions.watching.options import Watch, has_any, with_joined_lanes
from effects.extensions.watching.search import can_search, run_searched
from effects.extensions.watching.tables import is_float
from effects.lowering.holders import Extra, holds

MSG_NO_RESULTS = (
    "`fx.watch` at {where} was given `results` for a function inside or around a `jax.shard_map`, or with a reference "
    "from outside, a callback of JAX's own, or a callback whose result it awaits. The function is run again to find "
    "the source of a bad result, and such functions cannot be. Leave `results` out."
)

watch_p: _jax.Primitive = _jax.Primitive("watch")
watch_p.multiple_results = True
"""(*operands) -> the results of `body`, which is `plain` with the checks of `watch`, or without if it is linear."""


@dataclasses.dataclass(frozen=True, eq=False)
class Plain:
    """Hides a jaxpr in a parameter, so that passes do not take it for a part of the program."""

    jaxpr: Any


def bind_watched(jaxpr: Any, args: Sequence[Any], watch: Watch, names: tuple[str, ...] = ()) -> Sequence[Any]:
    """Evaluates a jaxpr with constants, adding checks. Dead code is removed, and is not checked."""
    args, names = [*jaxpr.consts, *args], (*[""] * len(jaxpr.consts), *names)
    jaxpr = with_joined_lanes(_jax.without_dead_code(jaxpr))
    if not has_any(jaxpr, watch):
        return _jax.evaluate(jaxpr, args)
    searches = not watch.summary and can_search(jaxpr, regions=watch.mode != "stop" and not watch.results)
    if watch.results and not searches:
        raise errors.value_error(MSG_NO_RESULTS.format(where=watch.where))

    def run(*args: Any) -> list[Any]:
        return run_searched(jaxpr, args, watch, names) if searches else Each(watch).run(jaxpr, args, names)

    body = _jax.trace_to_jaxpr(run, jaxpr.in_avals, like=jaxpr)
    if _jax.has_state(body):
        return _jax.evaluate(body, args)
    return watch_p.bind(*args, body=body, plain=Plain(jaxpr), watch=watch)


@watch_p.def_effectful_abstract_eval
def _abstract_eval(*avals: Any, body: Any, **_: Any) -> tuple[Any, Any]:
    return body.out_avals, set(body.effects) - {_jax.OWN_REFERENCE}


@watch_p.def_impl
def _run(*args: Any, body: Any, **_: Any) -> Any:
    return jit(lambda *args: _jax.evaluate(body, args))(*args)


@holds(watch_p)
def _hold(extra: Extra, *args: Any, body: Any, plain: Plain, watch: Watch) -> Sequence[Any]:
    """With state, such as tokens, runs `body` alone, since the transformations are over then."""
    if extra.state:
        return extra.run(body, args)
    plain = Plain(extra.rewrite(plain.jaxpr))
    return extra.bind(*extra.values, *args, body=extra.rewrite(body), plain=plain, watch=watch)


_batch = _jax.batching.fancy_primitive_batchers[watch_p]


def _batch_once(axis_data: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    """Binds once, without lanes, if no operand differs between tangents."""
    if all(dim is None for dim in dims) and _jax.is_axis_of_tangents(axis_data):
        outs = watch_p.bind(*args, **params)
        return outs, [None] * len(outs)
    return _batch(axis_data, args, dims, **params)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, plain: Plain, watch: Watch, **_: Any) -> tuple[Any, Any]:
    which = tuple(type(tangent) is not _jax.ad.Zero for tangent in tangents)
    forward, linear = _linearized(plain.jaxpr, which)
    count = len(plain.jaxpr.out_avals)
    flat = bind_watched(forward, primals, watch)
    outs, operands = flat[:count], [*flat[count:], *itertools.compress(tangents, which)]
    rest = iter(watch_p.bind(*operands, body=linear, plain=Plain(linear), watch=watch))
    return outs, [next(rest) if is_float(_jax.typeof(out)) else _jax.zero_tangent(out) for out in outs]


def _merged(which: Sequence[bool], chosen: Iterable[Any], others: Iterable[Any]) -> list[Any]:
    chosen, others = iter(chosen), iter(others)
    return [next(chosen if is_chosen else others) for is_chosen in which]


def _others(xs: Sequence[Any], which: Sequence[bool]) -> list[Any]:
    return [x for x, is_chosen in zip(xs, which, strict=True) if not is_chosen]


@_jax.weakref_lru_cache
def _linearized(jaxpr: Any, which: tuple[bool, ...]) -> tuple[Any, Any]:
    """The jaxpr of the results and residuals, and the linear jaxpr of residuals and tangents."""
    made: list[Any] = []

    def forward(*args: Any) -> list[Any]:
        chosen, others = [*itertools.compress(args, which)], _others(args, which)
        outs, pushforward = jax.linearize(lambda *xs: _jax.evaluate(jaxpr, _merged(which, xs, others)), *chosen)

        def tangents(*given: Any) -> list[Any]:
            return [*itertools.compress(pushforward(*given), [is_float(_jax.typeof(out)) for out in outs])]

        linear = jax.make_jaxpr(tangents)(*[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in chosen])
        made.append(_jax.closed_jaxpr(_jax.open_jaxpr(linear)))
        return [*outs, *linear.consts]

    return _jax.trace_to_jaxpr(forward, jaxpr.in_avals, like=jaxpr), made[0]


def _transpose(cotangents: Sequence[Any], *args: Any, plain: Plain, watch: Watch, **_: Any) -> list[Any]:
    which = tuple(_jax.ad.is_undefined_primal(x) for x in args)
    given = [_jax.ad.instantiate_zeros(cotangent) for cotangent in cotangents]
    backward = dataclasses.replace(watch, backward=True)
    outs = bind_watched(_transposed(plain.jaxpr, which), [*_others(args, which), *given], backward)
    return _merged(which, outs, itertools.repeat(None))


def _transposed(jaxpr: Any, which: tuple[bool, ...]) -> Any:
    known = _others(jaxpr.in_avals, which)
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in itertools.compress(jaxpr.in_avals, which)]

    def backward(*args: Any) -> list[Any]:
        def forward(*tangents: Any) -> list[Any]:
            return _jax.evaluate(jaxpr, _merged(which, tangents, args))

        return list(jax.linear_transpose(forward, *shapes)(list(args[len(known) :])))

    return _jax.trace_to_jaxpr(backward, [*known, *jaxpr.out_avals], like=jaxpr)


def _without_references(*args: Any, body: Any, **_: Any) -> list[Any]:
    return _jax.evaluate(*_jax.discharge_state(body, args, [True] * len(args)))


_jax.batching.fancy_primitive_batchers[watch_p] = _batch_once
_jax.ad.primitive_jvps[watch_p] = _jvp
_jax.ad.primitive_transposes[watch_p] = _transpose
_jax.mlir.register_lowering(watch_p, _jax.mlir.lower_fun(_without_references))
