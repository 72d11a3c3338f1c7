"""`vmap` of control flow that differs between lanes: effects happen in the lanes that a Python program brings there.

A branch runs for all lanes, and a loop until the last is through; masks keep the effects of the others back. What has
no effects of ours is left to JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from effects import _jax_compat as compat
from lowering._masks import masked, needs_masks

_Rule = Callable[..., tuple[Sequence[Any], Sequence[Any]]]


def _batches(primitive: Any) -> Callable[[Callable[[_Rule], _Rule]], None]:
    """Replaces the rule by which JAX batches a primitive with one that is made from it."""
    rules = compat.batching.fancy_primitive_batchers

    def replace(make: Callable[[_Rule], _Rule]) -> None:
        rules[primitive] = make(rules[primitive])

    return replace


@_batches(compat.cond_p)
def _batch_cond(batch: _Rule) -> _Rule:
    def rule(axis_data: Any, args: Any, dims: Any, *, branches: Any, **params: Any) -> Any:
        differs = dims[0] is not None and "branches_platforms" not in params
        if not (differs and any(map(needs_masks, branches))):
            return batch(axis_data, args, dims, branches=branches, **params)
        index, *operands = (compat.lanes_at_front(x, dim, axis_data) for x, dim in zip(args, dims, strict=True))
        results = []
        for i, branch in enumerate(branches):
            active = index == i
            for_all, _ = compat.batched(masked(branch), axis_data, [True] * (1 + len(operands)), True)
            # What is not a number in another lane must not reach this one's derivative: JAX's issue 1052.
            chosen = [compat.select(active, x, jax.lax.stop_gradient(x)) for x in operands]
            results.append(compat.evaluate(for_all, [active, *chosen]))
        outs = [compat.select_n(index, *cases) for cases in zip(*results, strict=True)]
        return outs, [0] * len(outs)

    return rule


@_batches(compat.while_p)
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
        consts = [
            x if dim is None else compat.lanes_at_front(x, dim, axis_data)
            for x, dim in zip(args[:split], dims[:split], strict=True)
        ]
        carry = [compat.lanes_at_front(x, dim, axis_data) for x, dim in zip(args[split:], dims[split:], strict=True)]
        each = [True] * len(carry)
        cond, _ = compat.batched(masked(cond_jaxpr), axis_data, [True, *in_cond, *each], True)
        body, _ = compat.batched(masked(body_jaxpr), axis_data, [True, *in_body, *each], True)

        def asks(running: Any, carry: Sequence[Any]) -> Any:
            """Which lanes go on. Those that are through are not asked again."""
            return running & compat.evaluate(cond, [running, *consts[:cond_nconsts], *carry])[0]

        def step(state: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
            running, carry = state
            stepped = compat.evaluate(body, [running, *consts[cond_nconsts:], *carry])
            carry = [compat.select(running, new, old) for new, old in zip(stepped, carry, strict=True)]
            return asks(running, carry), carry

        every = jax.numpy.ones(axis_data.size, bool)
        _, outs = jax.lax.while_loop(lambda state: state[0].any(), step, (asks(every, carry), carry))
        return outs, [0] * len(outs)

    return rule


def _differs(
    axis_data: Any,
    cond_jaxpr: Any,
    in_cond: Sequence[bool],
    body_jaxpr: Any,
    in_body: Sequence[bool],
    carried: Sequence[bool],
) -> bool:
    """Whether a loop's condition differs between lanes."""
    while True:
        _, stepped = compat.batched(body_jaxpr, axis_data, [*in_body, *carried], carried)
        if stepped == list(carried):
            break
        carried = stepped
    _, [differs] = compat.batched(cond_jaxpr, axis_data, [*in_cond, *carried], False)
    return differs
