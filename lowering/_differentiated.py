"""Differentiation of loops with effects.

Where JAX divides a `scan` into what runs forward and what runs backward, it does what is the same in every turn once,
ahead of the loop. Effects must stay inside. They get a mask that the loop carries, so that they differ between turns
as far as JAX knows; it always holds, and where there are no lanes it goes when the program is lowered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from effects import _jax_compat as compat
from lowering._masks import mask_effects
from lowering._rules import own_effects


@compat.weakref_lru_cache
def _anchored_jaxpr(jaxpr: Any, num_consts: int) -> Any:
    """A loop's body that carries a mask ahead of all else."""

    def body(*args: Any) -> list[Any]:
        consts, mask, others = args[:num_consts], args[num_consts], args[num_consts + 1 :]
        return [mask, *mask_effects(jaxpr, mask, [*consts, *others])]

    avals = jaxpr.in_avals
    boolean = compat.ShapedArray((), bool)
    return compat.trace_to_jaxpr(body, [*avals[:num_consts], boolean, *avals[num_consts:]], like=jaxpr)


def _anchors(jvp: Callable[..., Any]) -> Callable[..., Any]:
    def rule(primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Any, **params: Any) -> Any:
        if not own_effects(jaxpr.effects):
            return jvp(primals, tangents, jaxpr=jaxpr, **params)
        at, _ = compat.read_scan(params)
        mask = np.array(True)
        primals_out, tangents_out = jvp(
            [*primals[:at], mask, *primals[at:]],
            [*tangents[:at], compat.zero_tangent(mask), *tangents[at:]],
            **compat.with_scan_tokens(params, _anchored_jaxpr(jaxpr, at), 1),
        )
        return primals_out[1:], tangents_out[1:]

    return rule


def _linearizes(linearize: Callable[..., Any]) -> Callable[..., Any]:
    """What has effects is linearized by way of the rule above."""

    def rule(is_vjp: bool, nonzeros: Sequence[bool], *primals: Any, jaxpr: Any, **params: Any) -> Any:
        has_effects = own_effects(jaxpr.effects)
        chosen = compat.linearize_by_jvp(compat.scan_p) if has_effects else linearize
        return chosen(is_vjp, nonzeros, *primals, jaxpr=jaxpr, **params)

    return rule


compat.ad.primitive_jvps[compat.scan_p] = _anchors(compat.ad.primitive_jvps[compat.scan_p])
if compat.scan_p in compat.ad.primitive_linearizations:
    compat.ad.primitive_linearizations[compat.scan_p] = _linearizes(compat.ad.primitive_linearizations[compat.scan_p])
