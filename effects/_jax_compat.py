"""Every import of JAX's private names, and what differs between JAX 0.10, 0.11 and 0.12.

No other module of the project imports `jax._src`. What stands here is either a plain name, or a small function that
does one thing on every supported version.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax._src import (
    ad_checkpoint,
    ad_util,
    compute_on,
    core,
    custom_batching,
    custom_derivatives,
    dispatch,
    pjit,
    source_info_util,
    traceback_util,
    xla_metadata,
)
from jax._src import callback as jax_callback
from jax._src import config as jax_config
from jax._src import effects as jax_effects
from jax._src import linear_util as lu
from jax._src.interpreters import ad, batching, mlir
from jax._src.interpreters import partial_eval as pe
from jax._src.lax.control_flow import conditionals, loops, solves
from jax._src.lib import xla_client
from jax._src.pjit import jit_p
from jax._src.sharding_impls import UNSPECIFIED
from jax._src.state import discharge
from jax._src.state.types import AbstractRef
from jax._src.util import weakref_cache_key_types, weakref_lru_cache
from jax.extend.core import ClosedJaxpr

__all__ = [
    "DEVICE_MEMORY",
    "UNSPECIFIED",
    "JaxEffect",
    "Primitive",
    "ShapedArray",
    "Tracer",
    "abstract_token",
    "ad",
    "annotated_calls",
    "array_of",
    "automatic_devices",
    "batching",
    "bind",
    "block_until_token",
    "closed_jaxpr",
    "cond_p",
    "custom_jvp_call_p",
    "custom_vjp_call_p",
    "custom_vmap_p",
    "discharge_state",
    "equation_context",
    "evaluate",
    "forget_failed_tokens",
    "hide_frames_in",
    "hold_weakly_in_caches",
    "inlined_calls",
    "is_reference",
    "is_token_ready",
    "jax_tokens",
    "jaxprs_in",
    "jit_p",
    "keep_with_program",
    "linear_solve_p",
    "lower_as_callback",
    "mark_replicated",
    "mlir",
    "on_batched_cond",
    "open_jaxpr",
    "owner_of",
    "physical_key_data",
    "read_scan",
    "register_cpu_ffi_type",
    "register_effect_types",
    "remat_p",
    "run_state_p",
    "runs_now",
    "scan_p",
    "source_of",
    "trace_to_jaxpr",
    "typeof",
    "weakref_lru_cache",
    "while_p",
    "with_scan_tokens",
    "zero_tangent",
]

Primitive = core.Primitive
ShapedArray = core.ShapedArray
Tracer = core.Tracer
JaxEffect = jax_effects.Effect
abstract_token = core.abstract_token
typeof = core.typeof
zero_tangent = ad_util.zero_from_primal
"""The tangent of a value that does not depend on what is differentiated."""

scan_p = loops.scan_p
while_p = loops.while_p
cond_p = conditionals.cond_p
linear_solve_p = solves.linear_solve_p
remat_p = ad_checkpoint.remat_p
custom_jvp_call_p = custom_derivatives.custom_jvp_call_p
custom_vjp_call_p = custom_derivatives.custom_vjp_call_p
custom_vmap_p = custom_batching.custom_vmap_p
run_state_p = discharge.run_state_p


def runs_now() -> bool:
    """Whether a call of a jitted function is compiled and runs now: no trace is under way, and jit is not disabled."""
    return _trace.value is core.eval_trace and _axis_env.value is core.top_axis_env and not jax_config.disable_jit.value


_trace, _axis_env = core.trace_state_strong_ref, core.axis_env_state


def hide_frames_in(folder: str) -> None:
    """Leaves a package of ours out of the tracebacks and source lines that JAX shows its users."""
    source_info_util.register_exclusion(folder + os.sep)
    traceback_util.register_exclusion(folder + os.sep)


def is_reference(x: Any) -> bool:
    """Whether this is a mutable reference, such as `jax.new_ref` makes."""
    return isinstance(getattr(x, "aval", None), AbstractRef)


def hold_weakly_in_caches(type_: type) -> None:
    """Lets JAX's caches refer weakly to parameters of this type, as they do to functions and jaxprs."""
    weakref_cache_key_types.add(type_)


# Effects


def register_effect_types(
    types: Sequence[type], *, ordered: type, control_flow: type, custom_derivatives: type, remat: type
) -> None:
    """Tells JAX of classes of effects: all of them may be lowered, parts of them may appear in places."""
    for type_ in types:
        jax_effects.lowerable_effects.add_type(type_)
        jax_effects.partial_eval_kept_effects.add_type(type_)
    jax_effects.ordered_effects.add_type(ordered)
    jax_effects.control_flow_allowed_effects.add_type(control_flow)
    jax_effects.custom_derivatives_allowed_effects.add_type(custom_derivatives)
    jax_effects.remat_allowed_effects.add_type(remat)


jax_tokens = dispatch.runtime_tokens
"""`current_tokens` of it: those of programs with ordered effects that this thread dispatched outside `effects.jit`."""


def block_until_token(token: Any) -> None:
    """Waits for a token of JAX's. What its program raised, the program's results say."""
    with contextlib.suppress(Exception):
        token.block_until_ready()


def forget_failed_tokens(is_ours: Callable[[str], bool]) -> None:
    """Drops this thread's tokens of programs that have failed with an error that is told otherwise.

    JAX would raise it in the next program that takes the token, and again when the process ends.
    """
    for tokens in (jax_tokens.current_tokens, jax_tokens.output_runtime_tokens):
        for key, token in list(tokens.items()):
            try:
                token.block_until_ready()
            except Exception as error:
                if is_ours(str(error)):
                    del tokens[key]


def array_of(value: Any) -> Any:
    """The array that a value is, or that a token of JAX's has; None if it is neither, or a tracer."""
    value = value._buf if isinstance(value, core.Token) else value
    return value if isinstance(value, jax.Array) and not isinstance(value, Tracer) else None


def is_token_ready(token: Any) -> bool:
    """Whether a token of JAX's is there."""
    return token._buf.is_ready()


# Jaxprs. In 0.12 a jaxpr holds its constants; before, a ClosedJaxpr did.


def closed_jaxpr(jaxpr: Any, consts: Sequence[Any] = ()) -> Any:
    """A jaxpr with its constants. The same jaxpr without constants gives the same object again."""
    if isinstance(jaxpr, ClosedJaxpr) and not consts:
        return jaxpr
    return ClosedJaxpr(jaxpr, consts) if consts else pe.close_jaxpr(jaxpr)


def trace_to_jaxpr(fun: Callable[..., Sequence[Any]], avals: Sequence[Any], like: Any) -> Any:
    """Traces a function of flat values into a jaxpr with constants. `like` is the jaxpr that it was made from."""
    debug_info = like.jaxpr.debug_info.with_unknown_names()
    jaxpr, _, consts = pe.trace_to_jaxpr_dynamic(lu.wrap_init(fun, debug_info=debug_info), list(avals))
    return closed_jaxpr(jaxpr, consts)


def open_jaxpr(jaxpr: Any) -> Any:
    """The jaxpr whose constants are its first arguments."""
    if not jaxpr.consts:
        return jaxpr.jaxpr
    return pe.convert_constvars_jaxpr(jaxpr.jaxpr)


def evaluate(jaxpr: Any, args: Sequence[Any]) -> list[Any]:
    """Evaluates a jaxpr with constants, as it is."""
    return core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *args)


def jaxprs_in(params: dict[str, Any]) -> Iterator[Any]:
    """The jaxprs among an equation's parameters, with or without constants."""
    return core.jaxprs_in_params(params)


def bind(eqn: Any, args: Sequence[Any]) -> Sequence[Any]:
    """Binds an equation as it is to new arguments; always returns a sequence."""
    bind_params = eqn.primitive.get_bind_params(eqn.params)
    if isinstance(bind_params, tuple):  # up to 0.10: functions apart from parameters
        subfuns, bind_params = bind_params
        out = eqn.primitive.bind(*subfuns, *args, **bind_params)
    else:
        out = eqn.primitive.bind(*args, **bind_params)
    return out if eqn.primitive.multiple_results else [out]


@contextlib.contextmanager
def equation_context(eqn: Any) -> Iterator[None]:
    """Under it, what is bound has the source line, name stack and settings of the equation."""
    name_stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with source_info_util.user_context(eqn.source_info.traceback, name_stack=name_stack), eqn.ctx.manager:
        yield


def source_of(eqn: Any) -> str:
    """`file:line (function)` of the user's code that made an equation."""
    return source_info_util.summarize(eqn.source_info)


# Control flow


def read_scan(params: dict[str, Any]) -> tuple[int, int]:
    """How many of a scan's operands are constants, and how many are carried."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def with_scan_tokens(params: dict[str, Any], jaxpr: Any, tokens: int) -> dict[str, Any]:
    """A scan's parameters for a body that carries this many tokens more, ahead of everything else it carries."""
    if "num_consts" in params:
        return {**params, "jaxpr": jaxpr, "num_carry": params["num_carry"] + tokens}
    from jax._src import flattree as ft  # since 0.12

    consts, carry, xs = params["ft_in"].unpack()
    carry_out, ys = params["ft_out"].unpack()
    return {
        **params,
        "jaxpr": jaxpr,
        "ft_in": ft.pack((consts, (ft.nones(tokens), carry), xs)),
        "ft_out": ft.pack(((ft.nones(tokens), carry_out), ys)),
    }


def discharge_state(jaxpr: Any, args: Sequence[Any], is_initialized: Sequence[bool]) -> tuple[Any, list[Any]]:
    """The pure jaxpr of a `run_state`, and its arguments, with the references that come uninitialized made up."""
    discharged = discharge.discharge_state(closed_jaxpr(jaxpr))
    given = iter(args)
    filled = [
        next(given) if initialized else discharge._default_initialization(var.aval)
        for initialized, var in zip(is_initialized, discharged.jaxpr.invars, strict=True)
    ]
    return discharged, filled


def inlined_calls() -> dict[Primitive, Callable[[dict[str, Any]], Any]]:
    """Primitives that by the time of lowering mean no more than their body: primitive -> the body in its parameters."""
    calls = {
        core.closed_call_p: lambda params: params.get("call_jaxpr", params.get("jaxpr")),
        core.call_p: lambda params: params.get("call_jaxpr", params.get("jaxpr")),
        custom_jvp_call_p: lambda params: params["call_jaxpr"],
        custom_vjp_call_p: lambda params: params["call_jaxpr"],
        custom_derivatives.remat_opt_p: lambda params: params["fwd_jaxpr"],
        custom_vmap_p: lambda params: params["call"],
    }
    return calls


def on_batched_cond(check: Callable[[Any], None]) -> None:
    """Calls `check` with every branch of a `cond` whose predicate `vmap` is about to batch."""
    batch = batching.fancy_primitive_batchers[cond_p]

    def checked(axis_data: Any, args: Any, dims: Any, **params: Any) -> Any:
        if dims[0] is not None:
            for branch in params["branches"]:
                check(branch)
        return batch(axis_data, args, dims, **params)

    batching.fancy_primitive_batchers[cond_p] = checked


def annotated_calls() -> list[Primitive]:
    """Primitives that call their jaxpr as jit does, with a note to the compiler. Not every version has all."""
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


DEVICE_MEMORY = core.MemorySpace.Device


# Lowering


def automatic_devices(ctx: Any) -> int:
    """How many devices run this program where XLA's partitioner decides what of it runs where; else 0."""
    axis_context = ctx.module_context.axis_context
    devices = getattr(axis_context, "num_devices", 1)
    return devices if devices > 1 and not getattr(axis_context, "manual_axes", None) else 0


def mark_replicated(ctx: Any, op: Any) -> None:
    """Tells the partitioner that every device runs this operation on the whole value."""
    if jax.config.jax_use_shardy_partitioner:
        sharding: Any = jax_callback._get_sdy_array_list_for_callbacks(ctx.avals_out)
    else:
        sharding = xla_client.OpSharding()
        sharding.type = xla_client.OpSharding.Type.REPLICATED
        if len(ctx.avals_out) > 1:
            each, sharding = sharding, xla_client.OpSharding()
            sharding.type = xla_client.OpSharding.Type.TUPLE
            sharding.tuple_shardings = [each] * len(ctx.avals_out)
    mlir.set_sharding(ctx.module_context, op, sharding)


def register_cpu_ffi_type(name: str, type_id: Any, type_info: Any) -> None:
    """Registers the type of what a loaded program keeps between calls of a handler."""
    # JAX registers what was asked for before there is a backend when it makes one, handlers first and types second. But
    # a handler wants its type to be there, so we make JAX register types at once.
    xla_client.register_custom_type_handler("cpu", xla_client._xla.register_custom_type)
    jax.ffi.register_ffi_type(name, {"type_id": type_id, "type_info": type_info}, platform="cpu")


def keep_with_program(ctx: Any, kept: object) -> None:
    """Keeps an object for as long as the program that is being lowered."""
    ctx.module_context.add_keepalive(kept)


def owner_of(lowered: Any) -> Any:
    """The operation whose result a lowering rule returned."""
    while isinstance(lowered, (list, tuple)):
        lowered = lowered[0]
    return lowered.owner


def lower_as_callback(
    ctx: Any, callback: Callable[..., Sequence[Any]], operands: Sequence[Any], order: JaxEffect | None
) -> Any:
    """Lowers an effect through JAX's Python callbacks, ordered by JAX's token for `order` if there is one."""
    ordered = order is not None
    results, token, _ = jax_callback.emit_python_callback(
        ctx,
        lambda *args: tuple(callback(*args)),
        ctx.tokens_in.get(order) if ordered else None,
        list(operands),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=True,
        returns_token=ordered,
    )
    if ordered:
        ctx.set_tokens_out(mlir.TokenSet({order: token}))
    return results


def physical_key_data(x: Any) -> Any:
    """The numbers of a PRNG key array."""
    return jax.random.key_data(x)
