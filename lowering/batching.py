"""`vmap` of control flow that differs between lanes: each lane has the effects that it would have by itself.

A branch runs for all lanes, and a loop until the last lane has ended; masks suppress the effects of inactive lanes.
Control flow without effects of ours is left to JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from effects import _errors as errors
from effects import _jax
from effects._jax import patches
from effects._model.primitive import effect_p
from effects.lowering.holders import Extra, Holder, on_holder
from effects.lowering.masks import MSG_MASKED_STATE, masked, needs_masks

_Rule = Callable[..., tuple[Sequence[Any], Sequence[Any]]]


@patches.implements("vmap of cond")
def _batch_cond(batch: _Rule) -> _Rule:
    def rule(axis_data: Any, args: Any, dims: Any, *, branches: Any, **params: Any) -> Any:
        differs = dims[0] is not None and "branches_platforms" not in params
        if not (differs and any(map(needs_masks, branches))):
            return batch(axis_data, args, dims, branches=branches, **params)
        if any(map(_jax.has_state, branches)):
            raise errors.unsupported(MSG_MASKED_STATE.format(control="`cond` or `switch`"))
        index, *operands = (_jax.lanes_at_front(x, dim, axis_data) for x, dim in zip(args, dims, strict=True))
        results = []
        for i, branch in enumerate(branches):
            active = index == i
            for_all, _ = _jax.batched(masked(branch), axis_data, [True] * (1 + len(operands)), True)
            chosen = [_as_of_lanes(active, x) for x in operands]
            results.append(_run_branch(for_all, active, chosen, only_effects=_has_only_effects(branch)))
        outs = [_jax.select_n(index, *cases) for cases in zip(*results, strict=True)]
        return outs, [0] * len(outs)

    return rule


def _as_of_lanes(active: Any, x: Any) -> Any:
    """An operand of a branch that runs for all lanes. As in JAX, the `select` maps it along all axes of the predicate,
    and keeps a NaN of an inactive lane out of the derivative of the active ones: JAX's issue 1052. Integers have no
    derivative: in a region they keep their types."""
    takes_type = jnp.issubdtype(x.dtype, jnp.inexact) or _jax.axes_of_same(x) == _jax.axes_of_same(active)
    return _jax.select(active, x, jax.lax.stop_gradient(x)) if takes_type else x


def _has_only_effects(branch: Any) -> bool:
    """True if a branch has only effects, and so no collective. The program waits only for those that may end it, and
    the branch returns only their results."""
    given = {id(out) for eqn in branch.eqns for out in eqn.outvars}
    if not branch.eqns or any(id(out) not in given for out in branch.jaxpr.outvars):
        return False
    return all(
        eqn.primitive is effect_p and (not eqn.outvars or eqn.params["site"].content.raises_itself)
        for eqn in branch.eqns
    )


def _run_branch(branch: Any, active: Any, operands: Sequence[Any], *, only_effects: bool) -> Sequence[Any]:
    """Runs a branch for all lanes. One that has only effects runs only if a lane takes it: a check that holds, or a
    print that no lane has, costs a loop nothing."""
    if not only_effects:
        return _jax.evaluate(branch, [active, *operands])

    def skip(*_: Any) -> list[Any]:
        return [_jax.as_per_device(jax.lax.full(aval.shape, 0, aval.dtype)) for aval in branch.out_avals]

    any_lane = active.any()
    if not isinstance(any_lane, _jax.Tracer):  # eager: effects happen at once
        with jax.transfer_guard("allow"):  # the user's guard is not for our transfer
            takes = bool(any_lane)
        return _jax.evaluate(branch, [active, *operands]) if takes else skip()
    return jax.lax.cond(any_lane, lambda *args: _jax.evaluate(branch, args), skip, active, *operands)


@patches.implements("vmap of while")
def _batch_while(batch: _Rule) -> _Rule:
    def rule(
        axis_data: Any, args: Any, dims: Any, *, cond_nconsts: int, cond_jaxpr: Any, body_nconsts: int, body_jaxpr: Any
    ) -> Any:
        split = cond_nconsts + body_nconsts
        consts_batched = [dim is not None for dim in dims[:split]]
        in_cond, in_body = consts_batched[:cond_nconsts], consts_batched[cond_nconsts:]
        carried = [dim is not None for dim in dims[split:]]
        has_effects = needs_masks(cond_jaxpr) or needs_masks(body_jaxpr)
        if not (has_effects and _differs(axis_data, cond_jaxpr, in_cond, body_jaxpr, in_body, carried)):
            return batch(
                axis_data,
                args,
                dims,
                cond_nconsts=cond_nconsts,
                cond_jaxpr=cond_jaxpr,
                body_nconsts=body_nconsts,
                body_jaxpr=body_jaxpr,
            )
        if _jax.has_state(cond_jaxpr) or _jax.has_state(body_jaxpr):
            raise errors.unsupported(MSG_MASKED_STATE.format(control="`while_loop`"))
        consts = [
            x if dim is None else _jax.lanes_at_front(x, dim, axis_data)
            for x, dim in zip(args[:split], dims[:split], strict=True)
        ]
        carry = [_jax.lanes_at_front(x, dim, axis_data) for x, dim in zip(args[split:], dims[split:], strict=True)]
        each = [True] * len(carry)
        cond, _ = _jax.batched(masked(cond_jaxpr), axis_data, [True, *in_cond, *each], True)
        body, _ = _jax.batched(masked(body_jaxpr), axis_data, [True, *in_body, *each], True)

        def goes_on(*flat: Any) -> list[Any]:
            return [flat[0].any()]

        def evaluate_condition(running: Any, consts: Sequence[Any], carry: Sequence[Any]) -> Any:
            """The lanes that continue. An ended lane stays ended, and the condition has no effects for it."""
            return running & _jax.evaluate_as_typed(cond, [running, *consts[:cond_nconsts], *carry])[0]

        def step(*flat: Any) -> list[Any]:
            consts, running, carry = flat[:split], flat[split], flat[split + 1 :]
            stepped = _jax.evaluate(body, [running, *consts[cond_nconsts:], *carry])
            carry = [_jax.select(running, new, old) for new, old in zip(stepped, carry, strict=True)]
            return [evaluate_condition(running, consts, carry), *carry]

        running, *in_carry = (body.in_avals[0], *body.in_avals[1 + body_nconsts :])
        consts_avals = [*cond.in_avals[1 : 1 + cond_nconsts], *body.in_avals[1 : 1 + body_nconsts]]
        every = jax.numpy.ones(axis_data.size, bool)
        _, *outs = _jax.while_p.bind(
            *consts,
            evaluate_condition(every, consts, carry),
            *carry,
            cond_jaxpr=_jax.trace_to_jaxpr(goes_on, [running, *in_carry], like=cond),
            body_jaxpr=_jax.trace_to_jaxpr(step, [*consts_avals, running, *in_carry], like=body),
            cond_nconsts=0,
            body_nconsts=split,
        )
        return outs, [0] * len(outs)

    return rule


@patches.implements("vmap of custom_vmap")
def _batch_custom_vmap(batch: _Rule) -> _Rule:
    """Leaves batched operands to the user's rule. If none is batched, every lane calls a function with effects."""

    def rule(axis_data: Any, args: Any, dims: Any, *, call: Any, **params: Any) -> Any:
        if any(dim is not None for dim in dims) or not needs_masks(call):
            return batch(axis_data, args, dims, call=call, **params)
        return _for_all_lanes(call, axis_data, args, dims)

    return rule


@patches.implements("vmap of run_state")
def _batch_run_state(_: None) -> _Rule:
    """JAX (0.10 to 0.12) has no batching rule for `run_state`. Effects happen in each lane even if no operand is
    batched, so a `run_state` with effects needs a rule: references become values, as when JAX lowers `run_state`."""

    def rule(axis_data: Any, args: Any, dims: Any, *, jaxpr: Any, is_initialized: Any, **params: Any) -> Any:
        if needs_masks(jaxpr) and not any(map(_jax.is_reference, args)):
            pure, values = _jax.discharge_state(jaxpr, args, is_initialized)
            return _for_all_lanes(pure, axis_data, values, dims)
        if any(dim is not None for dim in dims) or needs_masks(jaxpr):
            raise NotImplementedError("Batching rule for 'run_state' not implemented")
        outs = _jax.run_state_p.bind(*args, jaxpr=jaxpr, is_initialized=is_initialized, **params)
        return outs, [None] * len(outs)

    return rule


def _for_all_lanes(jaxpr: Any, axis_data: Any, args: Sequence[Any], dims: Sequence[Any]) -> Any:
    """Evaluates a jaxpr for all lanes at once, in place of its equation."""
    values = [x if dim is None else _jax.lanes_at_front(x, dim, axis_data) for x, dim in zip(args, dims, strict=True)]
    for_all, batched = _jax.batched(jaxpr, axis_data, [dim is not None for dim in dims], False)
    return _jax.evaluate(for_all, values), [0 if differs else None for differs in batched]


def _differs(
    axis_data: Any,
    cond_jaxpr: Any,
    in_cond: Sequence[bool],
    body_jaxpr: Any,
    in_body: Sequence[bool],
    carried: Sequence[bool],
) -> bool:
    """True if a loop's condition differs between lanes."""
    while True:
        _, stepped = _jax.batched(body_jaxpr, axis_data, [*in_body, *carried], carried)
        if stepped == list(carried):
            break
        carried = stepped
    _, [differs] = _jax.batched(cond_jaxpr, axis_data, [*in_cond, *carried], False)
    return differs


def _batch_held(primitive: Any, holder: Holder) -> None:
    """Registers a batching rule for a primitive with a holder. The rule maps operands if the primitive had none before,
    and effects even if no operand is mapped."""
    rules = _jax.batching.fancy_primitive_batchers
    original = rules.get(primitive)  # runs an equation without mapped operands once, not per lane

    def rule(axis_data: Any, args: Any, dims: Any, **params: Any) -> Any:
        is_mapped = any(dim is not None for dim in dims)
        if not is_mapped and not any(map(needs_masks, _jax.jaxprs_in(params))):
            outs = primitive.bind(*args, **params)
            return (outs, [None] * len(outs)) if primitive.multiple_results else (outs, None)
        if is_mapped and original is not None:
            return original(axis_data, args, dims, **params)

        def rewrite(body: Any, _: int) -> Any:
            return _jax.batched(body, axis_data, [True] * len(body.in_avals), True)[0]

        def run(body: Any, state: Sequence[Any], args: Sequence[Any]) -> Any:
            return state, _jax.evaluate(rewrite(body, 0), args)

        def bind(*operands: Any, **params: Any) -> Sequence[Any]:
            outs = primitive.bind(*operands, **params)
            return outs if primitive.multiple_results else [outs]

        values = [_jax.lanes_at_front(x, dim, axis_data) for x, dim in zip(args, dims, strict=True)]
        outs = holder(Extra(bind, rewrite, run), *values, **params)
        return (outs, [0] * len(outs)) if primitive.multiple_results else (outs[0], 0)

    rules[primitive] = rule


on_holder(_batch_held)
