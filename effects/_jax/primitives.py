"""JAX's primitives that hold jaxprs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import (
    ad_checkpoint,
    api,
    api_util,
    compute_on,
    core,
    custom_batching,
    custom_derivatives,
    hijax,
    pjit,
    shard_map,
    xla_metadata,
)
from jax._src import linear_util as lu
from jax._src.interpreters import ad, batching
from jax._src.interpreters import partial_eval as pe
from jax._src.lax.control_flow import conditionals, loops, solves
from jax._src.sharding_impls import UNSPECIFIED
from jax._src.state import discharge

from effects._jax.core import Primitive, closed_jaxpr, typeof
from effects._jax.lowering import boolean

cond_p = conditionals.cond_p
while_p = loops.while_p
scan_p = loops.scan_p
linear_solve_p = solves.linear_solve_p
remat_p = ad_checkpoint.remat_p
shard_map_p = shard_map.shard_map_p
custom_jvp_call_p = custom_derivatives.custom_jvp_call_p
custom_vjp_call_p = custom_derivatives.custom_vjp_call_p
custom_vmap_p = custom_batching.custom_vmap_p
run_state_p = discharge.run_state_p

inlined_late: dict[str, Any] = {"inline": api.Inline.JAX_LATE} if hasattr(api, "Inline") else {}
"""The parameters of a jitted function that JAX inlines when it lowers a call. JAX 0.10 has none."""


def inlined_calls() -> dict[Primitive, Callable[[dict[str, Any]], Any]]:
    """Primitives that are lowered by inlining their body: primitive -> a function from its parameters to the body."""
    calls = {
        core.closed_call_p: lambda params: params.get("call_jaxpr", params.get("jaxpr")),
        core.call_p: lambda params: params.get("call_jaxpr", params.get("jaxpr")),
        custom_jvp_call_p: lambda params: params["call_jaxpr"],
        custom_vjp_call_p: lambda params: params["call_jaxpr"],
        custom_derivatives.remat_opt_p: lambda params: params["fwd_jaxpr"],
        custom_vmap_p: lambda params: params["call"],
        hijax.call_hi_primitive_p: lambda params: _expanded(params["_prim"]),  # since 0.11.2 `custom_root` is one
    }
    return calls


def _expanded(primitive: Any) -> Any:
    """The jaxpr that a primitive of hijax expands to."""

    def expand(*args: Any) -> Any:
        return primitive.out_tree.flatten_up_to(primitive.expand(*primitive.in_tree.unflatten(args)))

    debug_info = api_util.debug_info("expand", expand, primitive.in_avals_flat, {})
    jaxpr, _, consts = pe.trace_to_jaxpr_dynamic(lu.wrap_init(expand, debug_info=debug_info), primitive.in_avals_flat)
    return closed_jaxpr(jaxpr, consts)


def is_plain_call(params: dict[str, Any]) -> bool:
    """True if a call of a jitted function may be inlined: it has no shardings, layouts or compiler options."""
    return (
        all(x is UNSPECIFIED or x is None for name in _SAID_OF_EACH for x in params.get(name, ()))
        and not params["compiler_options_kvs"]
    )


_SAID_OF_EACH = ("in_shardings", "out_shardings", "in_layouts", "out_layouts")


def annotated_calls() -> list[Primitive]:
    """Primitives that call their jaxpr as jit does, with an annotation for the compiler. Not every version has all."""
    modules = [compute_on, xla_metadata, pjit]
    with contextlib.suppress(ImportError):
        from jax._src import program_order  # since 0.12; in `pjit` before

        modules.append(program_order)
    return [
        primitive
        for module in modules
        for name in ("compute_on_p", "xla_metadata_call_p", "program_order_p")
        if (primitive := getattr(module, name, None)) is not None
    ]


# Loops and their parameters: `jax._src.lax.control_flow` and `jax._src.state`.


def read_scan(params: dict[str, Any]) -> tuple[int, int]:
    """The number of a scan's constants, and the number of values in its carry."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def with_scan_values(params: dict[str, Any], *, consts: int, carry: int) -> dict[str, Any]:
    """A scan's parameters for a body with this many more constants, and more values in the carry, each ahead of the
    present ones."""
    if "num_consts" in params:
        return {**params, "num_consts": params["num_consts"] + consts, "num_carry": params["num_carry"] + carry}
    from jax._src import flattree as ft  # since 0.11

    old_consts, old_carry, xs = params["ft_in"].unpack()
    carry_out, ys = params["ft_out"].unpack()
    return {
        **params,
        "ft_in": ft.pack(((ft.nones(consts), old_consts), (ft.nones(carry), old_carry), xs)),
        "ft_out": ft.pack(((ft.nones(carry), carry_out), ys)),
    }


def literal(value: Any) -> Any:
    """A value as an operand of an equation."""
    return core.Literal(value, typeof(value))


def with_more_outputs(eqn: Any, invars: Sequence[Any], params: dict[str, Any]) -> Any:
    """An equation with other operands and parameters, and an additional first result, an unused predicate."""
    return eqn.replace(invars=list(invars), outvars=[core.DropVar(boolean()), *eqn.outvars], params=params)


def hoisting_unless(has_effects: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """Wraps JAX's hoisting of values out of a `scan`, so that nothing is hoisted if the body has effects."""

    def make(hoist: Any) -> Any:
        def rule(jaxpr: Any, consts: Any, num_residuals: int, *others: Any) -> Any:
            if has_effects(jaxpr):
                return jaxpr, consts, [False] * num_residuals, []
            return hoist(jaxpr, consts, num_residuals, *others)

        return rule

    return make


def discharge_state(jaxpr: Any, args: Sequence[Any], is_initialized: Sequence[bool]) -> tuple[Any, list[Any]]:
    """The pure jaxpr of a `run_state`, and its arguments, with default values for uninitialized references."""
    discharged = discharge.discharge_state(closed_jaxpr(jaxpr))
    given = iter(args)
    filled = [
        next(given) if initialized else discharge._default_initialization(var.aval)
        for initialized, var in zip(is_initialized, discharged.jaxpr.invars, strict=True)
    ]
    return discharged, filled


# Functions with custom rules for differentiation and `vmap`.


def is_value(x: Any) -> bool:
    """True for an array or tracer; False for a flag or symbolic zero among the arguments of a custom rule."""
    return not isinstance(x, (bool, custom_derivatives.SymbolicZero, ad.Zero))


def bind_custom_jvp(
    params: dict[str, Any], args: Sequence[Any], with_fun: Callable[..., Any], with_rule: Callable[..., Any]
) -> Sequence[Any]:
    """Binds a `custom_jvp_call` to new arguments, with its flat functions wrapped."""
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
    """Binds a `custom_vjp_call` to arguments with an additional first one, which the backward rule gets first too."""
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
                outs, *logs[:] = outs  # since JAX 0.11.1, the rule may return logs too
                return outs

            outs = [ad.Zero(typeof(first).to_tangent_aval()), *with_backward(cotangents)(first, *rest)]
            return (outs, *logs) if logs else outs

        return rule

    subfuns = _changed(fun, with_fun), _changed(forward, with_forward), _changed(backward, backward_with_first)
    return custom_vjp_call_p.bind(*args, subfuns=subfuns, out_trees=out_trees_with_first, **bind_params)


def _changed(fun: Any, change: Callable[..., Any]) -> Any:
    return lu.wrap_init(change(fun.call_wrapped), debug_info=fun.debug_info.with_unknown_names())


# `vmap`: `jax._src.interpreters.batching`.


def batched(jaxpr: Any, axis_data: Any, which: Sequence[bool], outs: bool | Sequence[bool]) -> tuple[Any, list[bool]]:
    """Batches a jaxpr: inputs in `which` have lanes in their leading axis. Returns the jaxpr and, for each result, True
    if it has lanes; results in `outs` always have."""
    instantiate = outs if isinstance(outs, bool) else list(outs)
    jaxpr, outs_batched = batching.batch_jaxpr(closed_jaxpr(jaxpr), axis_data, list(which), instantiate)
    return closed_jaxpr(jaxpr), list(outs_batched)


MSG_LANES_OF_ALL = (
    "An effect takes a value that a `jax.shard_map` closes over, under `jax.vmap` with `spmd_axis_name={axis!r}`. JAX "
    "then passes the lanes of all devices into the region, not each device's own. Pass the value to the region as "
    "an argument. See docs/reference/transformations.md."
)


def lanes_at_front(x: Any, dim: int | None, axis_data: Any) -> Any:
    """Moves the lanes of a value to its leading axis; without lanes, the value is broadcast."""
    if dim is not None and x.shape[dim] != axis_data.size:
        raise NotImplementedError(MSG_LANES_OF_ALL.format(axis=axis_data.spmd_name))
    return batching.bdim_at_front(x, dim, axis_data.size, mesh_axis=axis_data.explicit_mesh_axis)


def without_lanes(x: Any, dim: int | None) -> Any:
    """The type of a value in each lane."""
    aval = typeof(x)
    return aval if dim is None else core.mapped_aval(aval.shape[dim], dim, aval)


def select(predicate: Any, x: Any, y: Any) -> Any:
    """`x` where the predicate is true, else `y`. The predicate has only the leading axes."""
    return jax.lax.select(_for_all_axes(predicate, x), x, y)


def select_n(index: Any, *cases: Any) -> Any:
    """The case that `index` selects. The index has only the leading axes."""
    return jax.lax.select_n(_for_all_axes(index, cases[0]), *cases)


def _for_all_axes(leading: Any, like: Any) -> Any:
    """Broadcasts values of the leading axes to the shape of `like`, and to its sharding if that is explicit."""
    if leading.ndim == like.ndim:
        return leading
    sharding = typeof(like).sharding
    out_sharding = sharding if any(sharding.spec) else None
    return jax.lax.broadcast_in_dim(leading, like.shape, range(leading.ndim), out_sharding=out_sharding)
