"""Differentiation of loops with effects.

Where JAX divides a `scan` into what runs forward and what runs backward, it does what is the same in every turn once,
ahead of the loop. Effects must stay inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from effects import _jax_compat as compat
from lowering._masks import mask_effects
from lowering._rules import own_effects


def _has_effects(holder: Any) -> bool:
    return bool(own_effects(holder.effects))


@compat.weakref_lru_cache
def _anchored_jaxpr(jaxpr: Any, num_consts: int) -> Any:
    """A loop's body that carries a mask, ahead of all else."""

    def with_indices(mask: Any, *args: Any) -> list[Any]:
        """What chooses a branch seems to come of the mask, too: else JAX divides the branches, and forgets effects."""

        def apply(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
            if eqn.primitive is compat.cond_p and _has_effects(eqn):
                operands = [jax.lax.select(mask, operands[0], operands[0]), *operands[1:]]
            return compat.bind(eqn, operands)

        return compat.interpret(jaxpr, args, apply)

    def body(*args: Any) -> list[Any]:
        consts, mask, others = args[:num_consts], args[num_consts], args[num_consts + 1 :]
        return [mask, *mask_effects(chosen, mask, [mask, *consts, *others])]

    avals = jaxpr.in_avals
    boolean = compat.ShapedArray((), bool)
    chosen = compat.trace_to_jaxpr(with_indices, [boolean, *avals], like=jaxpr)
    return compat.trace_to_jaxpr(body, [*avals[:num_consts], boolean, *avals[num_consts:]], like=jaxpr)


def _anchors(divide: Callable[..., Any]) -> Callable[..., Any]:
    """In a rematerialized region, effects get a mask that always holds. As the loop carries it, JAX takes them for
    different in every turn. Where there are no lanes the mask goes when the program is lowered."""

    def rule(saveable: Any, unknown: Sequence[bool], instantiated: Sequence[bool], eqn: Any) -> Any:
        if not _has_effects(eqn.params["jaxpr"]):
            return divide(saveable, unknown, instantiated, eqn)
        at, _ = compat.read_scan(eqn.params)
        params = compat.with_scan_tokens(eqn.params, _anchored_jaxpr(eqn.params["jaxpr"], at), 1)
        known, staged, unknown_outs, instantiated_outs, values = divide(
            saveable,
            [*unknown[:at], False, *unknown[at:]],
            [*instantiated[:at], True, *instantiated[at:]],
            compat.with_carry(eqn, at, True, params),
        )
        return known, staged, unknown_outs[1:], instantiated_outs[1:], values

    return rule


compat.keep_in_scans(_has_effects)
compat.partial_eval_rules[compat.scan_p] = _anchors(compat.partial_eval_rules[compat.scan_p])
