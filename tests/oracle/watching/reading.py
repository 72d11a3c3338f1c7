"""The reading of a jaxpr equation by equation, with loops in Python: what `fx.watch` is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from effects import _jax
from effects._model.primitive import effect_p

_CALLS = {**_jax.inlined_calls(), _jax.jit_p: lambda params: params["jaxpr"], _jax.remat_p: lambda p: p["jaxpr"]}


class Bad(Exception):
    """Operation, file and line, and iterations of the first equation that makes a NaN of operands without."""


def read(jaxpr: Any, args: Sequence[Any], iterations: tuple[int, ...] = (), around: str = "") -> list[Any]:
    """The results of a jaxpr, or `Bad`. Effects are left out."""
    closed = _jax.closed_jaxpr(jaxpr)

    def apply(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        line = _jax.source_of(eqn).split(" (")[0]
        line = around if "does not know" in line else line

        def inside(body: Any, args: Sequence[Any], *more: int) -> list[Any]:
            return read(body, args, (*iterations, *more), line)

        if eqn.primitive is effect_p:
            return []
        if eqn.primitive in _CALLS and eqn.primitive is not _jax.custom_vmap_p:
            return inside(_CALLS[eqn.primitive](eqn.params), operands)
        if eqn.primitive is _jax.cond_p:
            branches = eqn.params["branches"]
            return inside(branches[int(np.clip(int(operands[0]), 0, len(branches) - 1))], operands[1:])
        if eqn.primitive is _jax.scan_p:
            return _scan(inside, eqn.params, operands)
        if eqn.primitive is _jax.while_p:
            return _while(inside, eqn.params, operands)
        if eqn.primitive is _jax.run_state_p:
            return _run_state(inside, eqn.params, operands)
        outs = _jax.bind(eqn, operands)
        if any(map(_has_nan, outs)) and not any(map(_has_nan, operands)):
            raise Bad(eqn.primitive.name, line, iterations)
        return outs

    return _jax.interpret(closed, args, apply)


def _scan(inside: Any, params: dict[str, Any], operands: Sequence[Any]) -> list[Any]:
    consts, carried = _jax.read_scan(params)
    carry, xs, length = list(operands[consts : consts + carried]), operands[consts + carried :], params["length"]
    rows: dict[int, list[Any]] = {}
    for i in reversed(range(length)) if params["reverse"] else range(length):
        outs = inside(params["jaxpr"], [*operands[:consts], *carry, *(x[i] for x in xs)], i)
        carry, rows[i] = outs[:carried], outs[carried:]
    avals = _jax.closed_jaxpr(params["jaxpr"]).out_avals[carried:]
    empty = [jnp.zeros((0, *aval.shape), aval.dtype) for aval in avals]
    return [*carry, *(jnp.stack([rows[i][k] for i in range(length)]) if length else e for k, e in enumerate(empty))]


def _while(inside: Any, params: dict[str, Any], operands: Sequence[Any]) -> list[Any]:
    in_cond, in_body = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    carry, i = list(operands[in_body:]), 0
    while np.any(lanes := np.asarray(inside(params["cond_jaxpr"], [*operands[:in_cond], *carry], i)[0])):
        after = inside(params["body_jaxpr"], [*operands[in_cond:in_body], *carry], i)
        carry = [_chosen(lanes, new, old) for new, old in zip(after, carry, strict=True)] if lanes.ndim else after
        i += 1
    return carry


def _chosen(lanes: Any, new: Any, old: Any) -> Any:
    return jnp.where(lanes.reshape(lanes.shape + (1,) * (new.ndim - lanes.ndim)), new, old)


def _run_state(inside: Any, params: dict[str, Any], operands: Sequence[Any]) -> list[Any]:
    """With values in place of references; of those of the function around it what became of them is written back."""
    values = [x[...] if _jax.is_reference(x) else x for x in operands]
    outs = inside(*_jax.discharge_state(params["jaxpr"], values, params["is_initialized"]))
    for x, out in zip(operands, outs, strict=True):
        if _jax.is_reference(x):
            x[...] = out
    return [x if _jax.is_reference(x) else out for x, out in zip(operands, outs, strict=True)]


def _has_nan(x: Any) -> bool:
    if _jax.is_reference(x) or not jax.dtypes.issubdtype(x.dtype, np.inexact):
        return False
    x = np.asarray(x)
    return bool(np.isnan(x if np.iscomplexobj(x) else x.astype(np.float64)).any())
