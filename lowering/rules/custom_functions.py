"""Functions with rules of their own for transformations: `custom_jvp`, `custom_vjp` and `custom_vmap`.

When tokens are threaded their transformations are over, and they are no more than their bodies (see `holders.py`). When
effects get masks they are still to come, so each rule gets the predicate ahead of its arguments, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from effects import _jax
from effects.lowering.passes.masks import MaskContext, mask_effects, mask_lane_by_lane, register_mask_rule


def _mask_function(fun: Callable[..., Sequence[Any]], active: Any, args: Sequence[Any]) -> list[Any]:
    """Calls a function of flat values, with its effects only where `active` holds. What JAX does not trace, such as
    zeros that are known to be so, goes in and out as it is."""
    known: list[Any] = []

    def flat(values: Sequence[Any]) -> list[Any]:
        given = iter(values)
        outs = fun(*[next(given) if _jax.is_value(x) else x for x in args])
        known[:] = [None if _jax.is_value(out) else out for out in outs]
        return [out for out in outs if _jax.is_value(out)]

    values = [x for x in args if _jax.is_value(x)]
    outs = iter(mask_effects(jax.make_jaxpr(flat)(values), active, values))
    return [next(outs) if out is None else out for out in known]


def _mask_first(fun: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """The function with the predicate ahead of its arguments."""
    return lambda active, *args: _mask_function(fun, active, args)


@register_mask_rule(_jax.custom_jvp_call_p)
def _mask_custom_jvp(ctx: MaskContext, active: Any, *args: Any, **params: Any) -> Sequence[Any]:
    """The function and its rule, each with the predicate ahead."""

    def masked_rule(rule: Any) -> Any:
        def with_both(*both: Any) -> Sequence[Any]:
            half = len(both) // 2
            return _mask_function(rule, both[0], [*both[1:half], *both[half + 1 :]])

        return with_both

    return _jax.bind_custom_jvp(params, [active, *args], _mask_first, masked_rule)


@register_mask_rule(_jax.custom_vjp_call_p)
def _mask_custom_vjp(ctx: MaskContext, active: Any, *args: Any, **params: Any) -> Sequence[Any]:
    """The function and its rules, each with the predicate ahead, which is a residual too."""

    def masked_forward(forward: Any) -> Any:
        # Each input comes with whether it is differentiated.
        return lambda active, _, *args: _mask_function(forward, active, args)

    return _jax.bind_custom_vjp(params, [active, *args], _mask_first, masked_forward, _mask_first)


@register_mask_rule(_jax.custom_vmap_p)
def _mask_custom_vmap(
    ctx: MaskContext, active: Any, *args: Any, call: Any, rule: Any, in_tree: Any, out_tree: Any
) -> Sequence[Any]:
    """The rule is for all lanes together: its effects happen if any lane is there. The rule of `plgpu.kernel` is JAX's
    and not the user's, so that kernel is called for one lane after the other."""
    if _jax.calls_mesh_kernel(call):
        return mask_lane_by_lane(ctx.eqn, active, args)

    def masked_rule(size: int, batched: Any, active: Any, *args: Any) -> tuple[Any, Any]:
        outs_batched: list[Any] = []

        def flat(*args: Any) -> list[Any]:
            outs, which = rule(size, list(in_tree.unflatten(batched[1:])), *in_tree.unflatten(args))
            outs_batched.append(which)
            return jax.tree.leaves(outs)

        # A branch, and no mask: its effects have no lanes, and a mask without lanes is one that always holds.
        jaxpr = jax.make_jaxpr(flat)(*args)

        def skip(*args: Any) -> list[Any]:
            return [jax.lax.full(aval.shape, 0, aval.dtype) for aval in jaxpr.out_avals]

        outs = jax.lax.cond(active.any(), lambda *args: _jax.evaluate(jaxpr, args), skip, *args)
        return out_tree.unflatten(outs), outs_batched[0]

    return ctx.primitive.bind(
        active,
        *args,
        call=ctx.masked(call),
        rule=masked_rule,
        in_tree=_jax.custom_vmap_arguments(1 + len(args)),
        out_tree=out_tree,
    )
