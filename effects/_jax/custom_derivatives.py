"""Functions with rules of their own for differentiation and `vmap`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import custom_derivatives, tree_util
from jax._src import linear_util as lu
from jax._src.interpreters import ad

from effects._jax.core import typeof
from effects._jax.primitives import custom_jvp_call_p, custom_vjp_call_p


def is_value(x: Any) -> bool:
    """Whether JAX traces this, and does not just know it."""
    return not isinstance(x, (bool, custom_derivatives.SymbolicZero, ad.Zero))


def bind_custom_jvp(
    params: dict[str, Any], args: Sequence[Any], with_fun: Callable[..., Any], with_rule: Callable[..., Any]
) -> Sequence[Any]:
    """Binds a `custom_jvp_call` to new arguments, with its functions of flat values changed."""
    bind_params = custom_jvp_call_p.get_bind_params(params)
    fun, rule = bind_params.pop("subfuns")
    subfuns = _changed(fun, with_fun), _changed(rule, with_rule)
    return custom_jvp_call_p.bind(*args, subfuns=subfuns, **bind_params)


def bind_custom_vjp(
    params: dict[str, Any],
    args: Sequence[Any],
    with_fun: Callable[..., Any],
    with_forward: Callable[..., Any],
    with_backward: Callable[..., Any],
) -> Sequence[Any]:
    """Binds a `custom_vjp_call` to arguments with one more ahead, which the backward rule gets ahead too."""
    bind_params = custom_vjp_call_p.get_bind_params(params)
    fun, forward, backward = bind_params.pop("subfuns")
    out_trees = bind_params.pop("out_trees")

    def out_trees_with_first() -> tuple[Any, Any, list[int | None]]:
        out, residuals, from_inputs = out_trees()
        residuals = jax.tree.structure((0,) * (1 + residuals.num_leaves))
        return out, residuals, [0, *(None if i is None else i + 1 for i in from_inputs)]

    def backward_with_first(backward: Callable[..., Any]) -> Callable[..., Any]:
        def rule(first: Any, *rest: Any) -> Any:
            logs: list[Any] = []

            def cotangents(*flat: Any) -> Any:
                outs = backward(*flat)
                if not isinstance(outs, tuple):
                    return outs
                outs, *logs[:] = outs  # since 0.11.1, what the rule wants to tell
                return outs

            outs = [ad.Zero(typeof(first).to_tangent_aval()), *with_backward(cotangents)(first, *rest)]
            return (outs, *logs) if logs else outs

        return rule

    subfuns = _changed(fun, with_fun), _changed(forward, with_forward), _changed(backward, backward_with_first)
    return custom_vjp_call_p.bind(*args, subfuns=subfuns, out_trees=out_trees_with_first, **bind_params)


def custom_vmap_arguments(count: int) -> Any:
    """The structure of this many arrays as arguments of a `custom_vmap`."""
    if hasattr(tree_util, "treedef_tuple_tracing_registry"):  # since 0.11
        return tree_util.tracing_registry.flatten((0,) * count)[1]
    return jax.tree.structure((0,) * count)


def _changed(fun: Any, change: Callable[..., Any]) -> Any:
    return lu.wrap_init(change(fun.call_wrapped), debug_info=fun.debug_info.with_unknown_names())
