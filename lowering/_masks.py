"""The mask pass: effects only where a predicate holds.

Under `vmap`, a branch whose predicate differs between lanes runs for all of them, and so does a loop until the last is
through. The pass gives every effect in there a mask, so that only the lanes that a Python program would have brought
there have it. It is of the same shape as the token pass: a loop over the equations of a jaxpr, and a rule for each
primitive that holds one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from effects import _errors as errors
from effects import _jax as compat
from effects._custom_call import custom_call_p
from effects._primitive import effect_p
from effects._print_grad import print_grad_p
from effects._sites import Site
from lowering._rules import effects_inside, own_effects
from lowering._signature import with_mask
from lowering._state import run_discharged

_MaskRule = Callable[..., Sequence[Any]]
"""`(primitive, active, *args, **params) -> outs`: binds an equation so that its effects happen where `active` holds."""

_mask_rules: dict[Any, _MaskRule] = {}


def _register(*primitives: Any) -> Callable[[_MaskRule], _MaskRule]:
    def register(rule: _MaskRule) -> _MaskRule:
        for primitive in primitives:
            _mask_rules[primitive] = rule
        return rule

    return register


def mask_effects(jaxpr: Any, active: Any, args: Sequence[Any]) -> list[Any]:
    """Evaluates a jaxpr with constants, with its effects only where `active` holds."""

    def apply(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        if not _is_masked(eqn):
            return compat.bind(eqn, operands)
        if (rule := _mask_rules.get(eqn.primitive)) is None:
            effects = own_effects(eqn.effects).union(*map(effects_inside, compat.jaxprs_in(eqn.params)))
            names = ", ".join(sorted(f"`{effect}`" for effect in effects)) or "of a backward pass"
            raise errors.MissingTokenRule(
                errors.MSG_MISSING_MASK.format(effects=names, primitive=eqn.primitive, where=compat.source_of(eqn))
            )
        return rule(eqn.primitive, active, *operands, **eqn.params)

    return compat.interpret(jaxpr, args, apply)


@compat.weakref_lru_cache
def needs_masks(jaxpr: Any) -> bool:
    """Whether a jaxpr has effects, or will have them when it is transposed."""
    return any(map(_is_masked, jaxpr.eqns))


def _is_masked(eqn: Any) -> bool:
    return (
        eqn.primitive is print_grad_p
        or bool(own_effects(eqn.effects))
        or any(needs_masks(inner) for inner in compat.jaxprs_in(eqn.params))
    )


@compat.weakref_lru_cache
def masked_jaxpr(jaxpr: Any) -> Any:
    """The jaxpr with the predicate ahead of its inputs. Cached, so that one function stays one function."""
    avals = [compat.boolean(), *jaxpr.in_avals]
    return compat.trace_to_jaxpr(lambda active, *args: mask_effects(jaxpr, active, args), avals, like=jaxpr)


def masked(jaxpr: Any) -> Any:
    """The same, of a jaxpr that may hold constants or not."""
    return masked_jaxpr(compat.closed_jaxpr(jaxpr))


@_register(effect_p, print_grad_p)
def _mask_site(primitive: Any, active: Any, *operands: Any, site: Site) -> Sequence[Any]:
    if site.mask is None:
        return primitive.bind(active, *operands, site=site.with_mask())
    mask, *others = operands
    return primitive.bind(mask & active, *others, site=site)


@_register(custom_call_p)
def _mask_custom_call(
    primitive: Any, active: Any, *operands: Any, masked: bool, lanes: Any, lanes_of: Any, **params: Any
) -> Sequence[Any]:
    if masked:
        first = operands[0] & active
        return primitive.bind(first, *operands[1:], masked=True, lanes=lanes, lanes_of=lanes_of, **params)
    same = (False,) * len(lanes)
    return primitive.bind(active, *operands, masked=True, lanes=lanes, lanes_of=(same, *lanes_of), **params)


@_register(compat.cond_p)
def _mask_cond(primitive: Any, active: Any, index: Any, *args: Any, branches: Any, **params: Any) -> Sequence[Any]:
    return primitive.bind(index, active, *args, branches=tuple(map(masked, branches)), **params)


@_register(compat.while_p)
def _mask_while(
    primitive: Any,
    active: Any,
    *args: Any,
    cond_jaxpr: Any,
    body_jaxpr: Any,
    cond_nconsts: int,
    body_nconsts: int,
    **params: Any,
) -> Sequence[Any]:
    return primitive.bind(
        active,
        *args[:cond_nconsts],
        active,
        *args[cond_nconsts:],
        cond_jaxpr=masked(cond_jaxpr),
        body_jaxpr=masked(body_jaxpr),
        cond_nconsts=cond_nconsts + 1,
        body_nconsts=body_nconsts + 1,
        **params,
    )


@_register(compat.scan_p)
def _mask_scan(primitive: Any, active: Any, *args: Any, jaxpr: Any, **params: Any) -> Sequence[Any]:
    return primitive.bind(active, *args, **compat.with_scan_const(params, masked(jaxpr)))


@_register(compat.jit_p, *compat.annotated_calls())
def _mask_call(primitive: Any, active: Any, *args: Any, **params: Any) -> Sequence[Any]:
    body = "jaxpr" if "jaxpr" in params else "call_jaxpr"
    params[body] = masked(params[body])
    return primitive.bind(active, *args, **with_mask(params))


@_register(compat.remat_p)
def _mask_remat(primitive: Any, active: Any, *args: Any, jaxpr: Any, **params: Any) -> Sequence[Any]:
    body = masked(jaxpr)
    return primitive.bind(*body.consts, active, *args, jaxpr=compat.open_jaxpr(body), **params)


@_register(*compat.inlined_calls())
def _mask_inlined(primitive: Any, active: Any, *args: Any, **params: Any) -> Sequence[Any]:
    return mask_effects(compat.closed_jaxpr(compat.inlined_calls()[primitive](params)), active, args)


@_register(compat.run_state_p)
def _mask_run_state(
    primitive: Any, active: Any, *args: Any, jaxpr: Any, is_initialized: Any, **params: Any
) -> Sequence[Any]:
    return run_discharged(lambda pure, values: mask_effects(pure, active, values), args, jaxpr, is_initialized)


@_register(compat.linear_solve_p)
def _mask_linear_solve(primitive: Any, active: Any, *args: Any, const_lengths: Any, jaxprs: Any) -> Sequence[Any]:
    """What runs is `solve`."""
    at = const_lengths.matvec + const_lengths.vecmat
    return primitive.bind(
        *args[:at],
        active,
        *args[at:],
        const_lengths=const_lengths._replace(solve=const_lengths.solve + 1),
        jaxprs=jaxprs._replace(solve=masked(jaxprs.solve)),
    )


@_register(compat.shard_map_p)
def _mask_shard_map(
    primitive: Any,
    active: Any,
    *args: Any,
    jaxpr: Any,
    mesh: Any,
    in_specs: Any,
    out_specs: Any,
    check_vma: bool,
    newly_manual_axes: Any,
) -> Sequence[Any]:
    """All devices are there, or none."""
    body = compat.closed_jaxpr(jaxpr)
    return jax.shard_map(
        lambda active, *args: tuple(mask_effects(body, active, args)),
        mesh=mesh,
        in_specs=(PartitionSpec(), *in_specs),
        out_specs=tuple(out_specs),
        axis_names=newly_manual_axes,
        check_vma=check_vma,
    )(active, *args)


def _mask_function(fun: Callable[..., Sequence[Any]], active: Any, args: Sequence[Any]) -> list[Any]:
    """Calls a function of flat values, with its effects only where `active` holds. What JAX does not trace, such as
    zeros that are known to be so, goes in and out as it is."""
    known: list[Any] = []

    def flat(values: Sequence[Any]) -> list[Any]:
        given = iter(values)
        outs = fun(*[next(given) if compat.is_value(x) else x for x in args])
        known[:] = [None if compat.is_value(out) else out for out in outs]
        return [out for out in outs if compat.is_value(out)]

    values = [x for x in args if compat.is_value(x)]
    outs = iter(mask_effects(jax.make_jaxpr(flat)(values), active, values))
    return [next(outs) if out is None else out for out in known]


def _mask_first(fun: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """The function with the predicate ahead of its arguments."""
    return lambda active, *args: _mask_function(fun, active, args)


@_register(compat.custom_jvp_call_p)
def _mask_custom_jvp(primitive: Any, active: Any, *args: Any, **params: Any) -> Sequence[Any]:
    """The function and its rule, each with the predicate ahead."""

    def masked_rule(rule: Any) -> Any:
        def with_both(*both: Any) -> Sequence[Any]:
            half = len(both) // 2
            return _mask_function(rule, both[0], [*both[1:half], *both[half + 1 :]])

        return with_both

    return compat.bind_custom_jvp(params, [active, *args], _mask_first, masked_rule)


@_register(compat.custom_vjp_call_p)
def _mask_custom_vjp(primitive: Any, active: Any, *args: Any, **params: Any) -> Sequence[Any]:
    """The function and its rules, each with the predicate ahead, which is a residual too."""

    def masked_forward(forward: Any) -> Any:
        # Each input comes with whether it is differentiated.
        return lambda active, _, *args: _mask_function(forward, active, args)

    return compat.bind_custom_vjp(params, [active, *args], _mask_first, masked_forward, _mask_first)


@_register(compat.custom_vmap_p)
def _mask_custom_vmap(
    primitive: Any, active: Any, *args: Any, call: Any, rule: Any, in_tree: Any, out_tree: Any
) -> Sequence[Any]:
    """The rule is for all lanes together: its effects happen if any lane is there."""

    def masked_rule(size: int, batched: Any, active: Any, *args: Any) -> tuple[Any, Any]:
        outs_batched: list[Any] = []

        def flat(*args: Any) -> list[Any]:
            outs, which = rule(size, list(in_tree.unflatten(batched[1:])), *in_tree.unflatten(args))
            outs_batched.append(which)
            return jax.tree.leaves(outs)

        outs = _mask_function(flat, active.any(), args)
        return out_tree.unflatten(outs), outs_batched[0]

    return primitive.bind(
        active,
        *args,
        call=masked(call),
        rule=masked_rule,
        in_tree=compat.custom_vmap_arguments(1 + len(args)),
        out_tree=out_tree,
    )
