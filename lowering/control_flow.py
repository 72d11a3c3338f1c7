"""Branches in a region, where devices may take different ones.

`fx.error_if`: all devices end the program, or none. A device that ended the program alone would never reach the next
collective. The others would wait there, and XLA would end the process after a while without the cause.

Any other `cond`: each branch counts equally many effects, so that all devices have had as many after the `cond`. A
device skips the numbers that only other branches use, and publishes that at once. So a callback in one branch does not
wait for devices in another branch, and devices go on together from a callback after the `cond`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from effects import _errors as errors
from effects import _jax
from effects._model.primitive import effect_p
from effects.lowering.masks import (
    MSG_MISSING_MASK,
    MaskContext,
    mask_effects,
    mask_held,
    mask_lane_by_lane,
    register_mask_rule,
)
from effects.lowering.regions import ends_program, in_branch, in_region, inside, joins_error_vote, static_effect_counts
from effects.lowering.rewrite import rewritten
from effects.lowering.summary import effects_of
from effects.lowering.tokens import TokenContext, Tokens, register_token_rule, skip_p


@register_token_rule(_jax.cond_p)
def _cond_token_rule(
    ctx: TokenContext, tokens: Tokens, index: Any, *operands: Any, branches: Sequence[Any], **params: Any
) -> tuple[Tokens, Sequence[Any]]:
    if joins_error_vote(ctx.eqn):
        index, operands, branches = _taken_by_all(index, operands, branches)
    with inside(in_branch()):
        if in_region().branches_skip and not ends_program(ctx.eqn):
            return _skipping(ctx, tokens, index, operands, branches, params)
        return ctx.carry(ctx, tokens, index, *operands, branches=branches, **params)


def _taken_by_all(index: Any, operands: Sequence[Any], branches: Sequence[Any]) -> tuple[Any, Sequence[Any], Any]:
    """An `fx.error_if` that all devices take if one does, by an all-reduce. A mask marks the devices that fail."""
    is_wrong = _jax.as_per_device(index != 0)
    index = jax.lax.pmax(is_wrong.astype(index.dtype), jax.sharding.get_abstract_mesh().manual_axes)
    return index, (is_wrong, *operands), tuple(map(_for_all, branches))


def _for_all(branch: Any) -> Any:
    """A branch that all devices take. Its first input is true on a device that would have taken it alone. Only such a
    device calls the function; another learns from its call that the program has ended elsewhere."""

    def apply(eqn: Any, operands: list[Any]) -> Sequence[Any]:
        if eqn.primitive is not effect_p:
            return _jax.bind(eqn, operands)
        site = eqn.params["site"]
        content = dataclasses.replace(site.content, all_end=True)
        return effect_p.bind(*operands, site=dataclasses.replace(site, content=content))

    ends_all = rewritten(branch, apply)
    avals = [_jax.per_device(_jax.boolean()), *branch.in_avals]
    return _jax.trace_to_jaxpr(lambda active, *args: mask_effects(ends_all, active, args), avals, like=branch)


def _skipping(
    ctx: TokenContext, tokens: Tokens, index: Any, operands: Sequence[Any], branches: Sequence[Any], params: Any
) -> tuple[Tokens, Sequence[Any]]:
    """Binds a `cond` whose branches count equally many effects under each key."""
    counts = [static_effect_counts(branch) for branch in branches]
    assert None not in counts, "it is known of the whole region"
    most = [max(count.get(key, 0) for count in counts) for key in tokens]
    missing = [tuple(n - count.get(key, 0) for key, n in zip(tokens, most, strict=True)) for count in counts]
    threaded = [ctx.threaded(branch, tokens) for branch in branches]
    skipping = [_skipping_at_end(*each) if any(each[1]) else each[0] for each in zip(threaded, missing, strict=True)]
    flat = _jax.cond_p.bind(index, *tokens.values(), *operands, branches=tuple(skipping), **params)
    return dict(zip(tokens, flat, strict=False)), flat[len(tokens) :]


def _skipping_at_end(threaded: Any, missing: tuple[int, ...]) -> Any:
    """A threaded branch that at its end skips `missing` numbers, given for each token."""

    def skip(*args: Any) -> list[Any]:
        outs = _jax.evaluate(threaded, args)
        tokens = [skip_p.bind(token, count=n) if n else token for token, n in zip(outs, missing, strict=False)]
        return [*tokens, *outs[len(missing) :]]

    return _jax.trace_to_jaxpr(skip, threaded.in_avals, like=threaded)


@register_mask_rule(_jax.cond_p)
def _mask_cond(
    ctx: MaskContext, active: Any, index: Any, *operands: Any, branches: Sequence[Any], **params: Any
) -> Sequence[Any]:
    """Masks a branch. The mask of an `fx.error_if` is in its index: an inactive lane does not take the branch."""
    if ends_program(ctx.eqn):
        index = jnp.where(active, index, 0)
        return _jax.cond_p.bind(index, *operands, branches=branches, **params)
    return mask_held(ctx.eqn, active, [index, *operands])


# `while`.
#
# The holder carries the tokens, also if the condition has effects.


@register_token_rule(_jax.while_p)
def _while_token_rule(ctx: TokenContext, tokens: Tokens, *args: Any, **params: Any) -> tuple[Tokens, Sequence[Any]]:
    condition = params["cond_jaxpr"]
    if condition.out_avals[0].shape:  # batched by JAX: under `vmap`, our own rule masks loops with effects
        if any(effect.ordered for effect in effects_of(condition.effects)):
            names = ", ".join(sorted(map(str, ctx.effects)))
            raise errors.MissingTokenRule(MSG_MISSING_MASK.format(effects=names, primitive="while", where=ctx.where))
        args, params = without_lanes(args, **params)
    region = in_region()
    with inside(region._replace(trip_counts_agree=False) if region.trip_counts_agree else in_branch()):
        return ctx.carry(ctx, tokens, *args, **params)


LANES = "lanes that go on"


def without_lanes(
    args: Sequence[Any], cond_jaxpr: Any, body_jaxpr: Any, cond_nconsts: int, body_nconsts: int, **params: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments and parameters of a loop whose condition differs between lanes, as JAX lowers it. While any lane
    continues, the body runs for all lanes, effects included, and the new carry of ended lanes is dropped.

    The body then takes the condition's constants ahead of its own, and evaluates the condition once more, in a call
    named `LANES`.
    """

    def goes_on(*flat: Any) -> Any:
        return _jax.evaluate(cond_jaxpr, flat)[0]

    goes_on.__name__ = LANES

    def condition(*flat: Any) -> list[Any]:
        return [goes_on(*flat).any()]

    def body(*flat: Any) -> list[Any]:
        consts, rest, carry = flat[:cond_nconsts], flat[cond_nconsts:], flat[cond_nconsts + body_nconsts :]
        after = _jax.evaluate(body_jaxpr, rest)
        lanes = _jax.jit(goes_on)(*consts, *carry)
        return [
            jnp.where(jax.lax.expand_dims(lanes, range(lanes.ndim, new.ndim)), new, old)
            for new, old in zip(after, carry, strict=True)
        ]

    avals = [*cond_jaxpr.in_avals[:cond_nconsts], *body_jaxpr.in_avals]
    params["cond_jaxpr"] = _jax.trace_to_jaxpr(condition, cond_jaxpr.in_avals, like=cond_jaxpr)
    params["body_jaxpr"] = _jax.trace_to_jaxpr(body, avals, like=body_jaxpr)
    counts = {"cond_nconsts": cond_nconsts, "body_nconsts": cond_nconsts + body_nconsts}
    return (*args[:cond_nconsts], *args), {**params, **counts}


# `custom_linear_solve`, which holds several functions and runs one of them.


@register_token_rule(_jax.linear_solve_p)
def _linear_solve_token_rule(
    ctx: TokenContext, tokens: Tokens, *args: Any, const_lengths: Any, jaxprs: Any
) -> tuple[Tokens, list[Any]]:
    """Threads tokens through `solve`, which runs; the other functions are for differentiation and transposition."""
    begin = const_lengths.matvec + const_lengths.vecmat
    solve_consts = args[begin : begin + const_lengths.solve]
    return ctx.thread(jaxprs.solve, tokens, [*solve_consts, *args[sum(const_lengths) :]])


@register_mask_rule(_jax.linear_solve_p)
def _mask_linear_solve(ctx: MaskContext, active: Any, *args: Any, const_lengths: Any, jaxprs: Any) -> Sequence[Any]:
    """Masks `solve`, the only function that runs."""
    at = const_lengths.matvec + const_lengths.vecmat
    return ctx.primitive.bind(
        *args[:at],
        active,
        *args[at:],
        const_lengths=const_lengths._replace(solve=const_lengths.solve + 1),
        jaxprs=jaxprs._replace(solve=ctx.masked(jaxprs.solve)),
    )


# Functions with rules of their own for transformations: `custom_jvp`, `custom_vjp` and `custom_vmap`.
#
# The token pass runs after transformations, so it inlines their bodies (see `holders.py`). The mask pass runs before,
# so it adds the predicate as a first argument to each rule of a derivative, too.


def _mask_function(fun: Callable[..., Sequence[Any]], active: Any, args: Sequence[Any]) -> list[Any]:
    """Calls a function of flat values, with its effects only where `active` holds. Operands and results that JAX does
    not trace, such as symbolic zeros, are passed as they are."""
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
        # Each input comes with a boolean: True if it is differentiated.
        return lambda active, _, *args: _mask_function(forward, active, args)

    return _jax.bind_custom_vjp(params, [active, *args], _mask_first, masked_forward, _mask_first)


@register_mask_rule(_jax.custom_vmap_p)
def _mask_custom_vmap(ctx: MaskContext, active: Any, *args: Any, **params: Any) -> Sequence[Any]:
    """The function by itself, for one active lane after the other: its rule is for all lanes together."""
    return mask_lane_by_lane(ctx.eqn, active, args)
