"""Every import of JAX's private names, and what differs between JAX 0.10, 0.11 and 0.12.

No other module of the project imports `jax._src`. What stands here is either a plain name, or a small function that
does one thing on every supported version.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import (
    ad_checkpoint,
    ad_util,
    api,
    api_util,
    checkify,
    compute_on,
    core,
    custom_batching,
    custom_derivatives,
    debugging,
    dispatch,
    distributed,
    hijax,
    pjit,
    shard_map,
    sharding_impls,
    source_info_util,
    traceback_util,
    tree_util,
    xla_metadata,
)
from jax._src import callback as jax_callback
from jax._src import config as jax_config
from jax._src import effects as jax_effects
from jax._src import linear_util as lu
from jax._src import mesh as jax_mesh
from jax._src.array import ArrayImpl
from jax._src.interpreters import ad, batching, mlir, pxla
from jax._src.interpreters import partial_eval as pe
from jax._src.lax.control_flow import conditionals, loops, solves
from jax._src.lib import xla_client
from jax._src.pjit import jit_p
from jax._src.sharding_impls import UNSPECIFIED
from jax._src.state import discharge
from jax._src.state.types import AbstractRef, RefEffect
from jax._src.util import weakref_cache_key_types, weakref_lru_cache
from jax.extend.core import ClosedJaxpr

__all__ = [
    "DEVICE_MEMORY",
    "UNSPECIFIED",
    "JaxEffect",
    "Placing",
    "Primitive",
    "ShapedArray",
    "Tracer",
    "abstract_token",
    "ad",
    "annotated_calls",
    "array_of",
    "as_per_device",
    "automatic_devices",
    "batching",
    "bind",
    "block_until_token",
    "boolean",
    "call_handler",
    "call_partitioned",
    "callback_context",
    "closed_jaxpr",
    "cond_p",
    "coordination_service",
    "copies_in_parts",
    "custom_jvp_call_p",
    "custom_partial_eval_rules",
    "custom_vjp_call_p",
    "custom_vmap_p",
    "debug_callback_p",
    "debug_print_p",
    "device_place",
    "devices_of",
    "devices_of_program",
    "discharge_state",
    "element_type",
    "evaluate",
    "evaluate_as_typed",
    "forget_failed_tokens",
    "forget_fast_paths",
    "hide_frames_in",
    "hold_weakly_in_caches",
    "host_device",
    "infer_types_each_time",
    "inlined_calls",
    "inspect_sharding_p",
    "interpret",
    "io_callback_p",
    "is_closed",
    "is_reference",
    "is_reference_type",
    "is_tiled",
    "is_token_ready",
    "jax_callback_effects",
    "jax_tokens",
    "jaxprs_in",
    "jit_p",
    "keep_with_program",
    "launches_take_threads",
    "linear_solve_p",
    "log_callback",
    "lower_as_callback",
    "mark_replicated",
    "merge_arguments",
    "mlir",
    "need_devices",
    "on_barrier",
    "open_jaxpr",
    "outside_of_traces",
    "own_devices",
    "own_lanes",
    "owner_of",
    "physical_aval",
    "physical_key_data",
    "processes_of",
    "read_scan",
    "read_sharding",
    "region_axes",
    "register_effect_types",
    "register_ffi_type",
    "register_partitioner",
    "remat_p",
    "replicated_hlo_sharding",
    "rules_in_eager_regions",
    "run_id",
    "run_state_p",
    "runs_now",
    "scan_p",
    "shard_map_p",
    "sharding_of_call",
    "source_of",
    "trace_to_jaxpr",
    "typeof",
    "unordered_tokens",
    "user_frame",
    "user_function",
    "weakref_lru_cache",
    "while_p",
    "with_jaxprs",
    "with_scan_values",
    "without_results",
    "write_sharding",
    "zero_tangent",
]

Primitive = core.Primitive
ShapedArray = core.ShapedArray
physical_aval = core.physical_aval
Tracer = core.Tracer
JaxEffect = jax_effects.Effect
abstract_token = core.abstract_token
typeof = core.typeof
zero_tangent = ad_util.zero_from_primal
"""The tangent of a value that does not depend on what is differentiated."""

scan_p = loops.scan_p
shard_map_p = shard_map.shard_map_p
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


launches_take_threads = jax.__version_info__ < (0, 12)
"""Whether XLA launches programs over several CPU devices with the threads that compute. Who brings a device the 33rd
waits, and may have the thread that one of these needs."""


def forget_fast_paths(jitted: Any) -> None:
    """The next calls of a jitted function go through Python; what was traced and compiled is kept."""
    jitted._clear_cache()


@contextlib.contextmanager
def outside_of_traces() -> Iterator[None]:
    """Calls of jitted functions run now, wherever this is, and look for no NaN."""
    axis_env = core.trace_ctx.axis_env
    no_mesh = jax_mesh.use_abstract_mesh(jax_mesh.empty_abstract_mesh)
    checks = jax_config.debug_nans(False), jax_config.debug_infs(False)
    with core.eval_context(), jax.disable_jit(False), checks[0], checks[1], no_mesh:
        core.trace_ctx.set_axis_env(core.top_axis_env)
        try:
            yield
        finally:
            core.trace_ctx.set_axis_env(axis_env)


rules_in_eager_regions = shard_map.eager_rules
"""By primitive, what a `jax.shard_map` outside of jit does: a function of (mesh, *values, **params). Each value holds a
row for each device."""


_trace, _axis_env = core.trace_state_strong_ref, core.axis_env_state


def hide_frames_in(folder: str) -> None:
    """Leaves a package of ours out of the tracebacks and source lines that JAX shows its users."""
    source_info_util.register_exclusion(folder + os.sep)
    traceback_util.register_exclusion(folder + os.sep)


def is_reference(x: Any) -> bool:
    """Whether this is a mutable reference, such as `jax.new_ref` makes."""
    return is_reference_type(getattr(x, "aval", None))


def is_reference_type(aval: Any) -> bool:
    """Whether this is the type of a mutable reference."""
    return isinstance(aval, AbstractRef)


def has_state(jaxpr: Any) -> bool:
    """Whether a jaxpr reads or writes references of the function around it."""
    return any(isinstance(effect, RefEffect) for effect in jaxpr.effects)


def infer_types_each_time(primitive: Primitive) -> None:
    """Lets an equation's types and effects be inferred when it is traced. JAX remembers them by the parameters, which
    costs more where these differ between any two equations."""

    def stage(trace: Any, source_info: Any, *tracers: Any, **params: Any) -> list[Any]:
        avals, effects = primitive.abstract_eval(*(tracer.aval for tracer in tracers), **params)
        return trace.emit_eqn(tracers, avals, primitive, params, effects, source_info)

    pe.custom_staging_rules[primitive] = stage


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
    jax_effects.shardable_ordered_effects.add_type(ordered)  # else JAX refuses before our lowering can
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


# Processes


def coordination_service() -> Any:
    """The client of the service by which the processes of `jax.distributed` agree; None in a process by itself."""
    return distributed.global_state.client if jax.process_count() > 1 else None


def run_id() -> str | None:
    """What all processes of this run have and no other run has; None in a process by itself."""
    return None if jax.process_count() == 1 else _agreed_run_id()


@functools.cache
def _agreed_run_id() -> str:
    service = coordination_service()
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # another process was first
        service.key_value_set("token-effects/run", uuid.uuid4().hex)
    return service.blocking_key_value_get("token-effects/run", 60_000)


def device_place(ordinal: int) -> int:
    """Which of all CPU devices this is, from the number that handlers are given for it."""
    return _device_places().get(ordinal, ordinal)


@functools.cache
def _device_places() -> dict[int, int]:
    if jax.process_count() == 1:
        return {}  # the number is the place
    return {device.id: place for place, device in enumerate(jax.devices("cpu"))}


@functools.cache
def host_device() -> int:
    """The number of the device for which this process's host speaks."""
    return 0 if jax.process_count() == 1 else jax.local_devices(backend="cpu")[0].id


# Tokens of JAX's


def unordered_tokens() -> list[Any]:
    """The newest token of each device, of the programs that this thread dispatched with unordered effects of JAX's."""
    return list(jax_tokens.output_runtime_tokens.values())


def array_of(value: Any) -> Any:
    """The array that a value is, or that a token of JAX's has; None if it is neither, or a tracer."""
    value = value._buf if isinstance(value, core.Token) else value
    return value if isinstance(value, jax.Array) and not isinstance(value, Tracer) else None


def devices_of(value: Any) -> list[Any]:
    """The devices of what JAX's Python code dispatches a program with; none if the value is something else."""
    return list(value._local_devices) if isinstance(value, pxla.ExecuteReplicated) else []


def is_token_ready(token: Any) -> bool:
    """Whether a token of JAX's is there."""
    return token._buf.is_ready()


def on_barrier(wait: Callable[[], None]) -> None:
    """Calls `wait` at the end of every `jax.effects_barrier`, also when that raises."""
    tokens = type(jax_tokens)
    block = tokens.block_until_ready

    def block_until_ready(self: Any) -> None:
        try:
            block(self)
        finally:
            wait()

    tokens.block_until_ready = block_until_ready  # type: ignore[method-assign]


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


@weakref_lru_cache
def without_results(jaxpr: Any, count: int) -> Any:
    """A jaxpr with constants, without the first `count` of its results."""
    inner = jaxpr.jaxpr
    debug_info = inner.debug_info.with_unknown_names()
    return closed_jaxpr(inner.replace(outvars=inner.outvars[count:], debug_info=debug_info), jaxpr.consts)


def evaluate_as_typed(jaxpr: Any, args: Sequence[Any]) -> list[Any]:
    """The same where arguments may vary over more axes of a region than their types in the jaxpr say, as JAX itself
    gives them to loops. Such a jaxpr becomes a function of its own, inside of which its types hold. It cannot be
    transposed: it would sum what is not to be."""
    if any(_varying(typeof(x)) != _varying(aval) for x, aval in zip(args, jaxpr.in_avals, strict=True)):
        jaxpr = trace_to_jaxpr(jax.jit(core.jaxpr_as_fun(jaxpr)), jaxpr.in_avals, like=jaxpr)
    return evaluate(jaxpr, args)


def _varying(aval: Any) -> frozenset[Any]:
    """The axes of a region over which values of this type vary."""
    return aval.manual_axis_type.varying if isinstance(aval, core.ShapedArray) else frozenset()


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


def interpret(jaxpr: Any, args: Sequence[Any], apply: Callable[[Any, list[Any]], Sequence[Any]]) -> list[Any]:
    """Evaluates a jaxpr with constants, with `apply(equation, operands)` for each equation. What that binds has the
    source line, name stack and settings of the equation."""
    environment = dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))
    environment.update(zip(jaxpr.jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else environment[atom]

    for eqn in jaxpr.jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        source = eqn.source_info
        name_stack = source_info_util.current_name_stack() + source.name_stack
        with source_info_util.user_context(source.traceback, name_stack=name_stack), eqn.ctx.manager:
            outs = apply(eqn, operands)
        environment.update(zip(eqn.outvars, outs, strict=True))
    return [read(atom) for atom in jaxpr.jaxpr.outvars]


def source_of(eqn: Any) -> str:
    """`file:line (function)` of the user's code that made an equation."""
    return source_info_util.summarize(eqn.source_info) or "a line that JAX does not know"


def user_frame() -> tuple[str, int, str] | None:
    """File, line and function of the user's code that made the equation in whose context this is called."""
    frame = source_info_util.user_frame(source_info_util.current().traceback)
    return None if frame is None else (frame.file_name, frame.start_line, frame.function_name)


# JAX's own callbacks

debug_callback_p = debugging.debug_callback_p
debug_print_p = debugging.debug_print_p
inspect_sharding_p = debugging.inspect_sharding_p
io_callback_p = jax_callback.io_callback_p

jax_callback_effects = (
    (debugging.DebugEffect, debugging.OrderedDebugEffect),
    (jax_callback.IOEffect, jax_callback.OrderedIOEffect),
)
"""Types of the effects of `jax.debug` and of `io_callback`: (unordered, ordered) of each."""


@contextlib.contextmanager
def callback_context(x64: bool) -> Iterator[Callable[[Any], jax.Array]]:
    """What JAX puts around the function of a callback, and what makes an array of JAX's of a NumPy array for it."""
    device = jax.local_devices(backend="cpu")[0]
    with (
        jax_config.enable_x64(x64),
        jax_config.default_device(device),
        sharding_impls._internal_use_concrete_mesh(jax_mesh.empty_concrete_mesh),
        jax_mesh.use_abstract_mesh(jax_mesh.empty_abstract_mesh),
    ):
        yield _putting_on(device)


@functools.lru_cache(1)
def _putting_on(device: Any) -> Callable[[Any], jax.Array]:
    sharding = jax.sharding.SingleDeviceSharding(device)

    def put(x: Any) -> jax.Array:  # `jax.device_put` takes six times as long to get there
        return xla_client.batched_device_put(_aval(x.shape, x.dtype), sharding, [x], [device])

    return put


@functools.lru_cache(4096)
def _aval(shape: tuple[int, ...], dtype: Any) -> Any:
    return core.ShapedArray(shape, dtype)


def user_function(callback: Any) -> Any:
    """The user's function in the flat one that JAX made of it, or that one."""
    if isinstance(callback, jax_callback._FlatCallback):
        return callback.callback_func
    code, cells = getattr(callback, "__code__", None), getattr(callback, "__closure__", None)
    if code is not None and "callback" in code.co_freevars:
        return cells[code.co_freevars.index("callback")].cell_contents
    return callback


def merge_arguments(tree: Any, values: Sequence[Any], static: Sequence[tuple[int, Any]]) -> tuple[Any, Any]:
    """`(args, kwargs)` of `jax.debug.print`, from those that are arrays and those that were known while tracing."""
    return debugging.merge_callback_args(tree, values, static)


def log_callback(params: dict[str, Any]) -> Callable[..., Any]:
    """The flat function by which JAX logs what `jax.debug.log` says, from the equation's parameters."""
    log = functools.partial(
        debugging._format_print_callback,
        params["fmt"],
        dict(params["np_printoptions"]),
        params["has_placeholders"],
        params["logging_record"],
    )
    return debugging._make_flat_callback(params["in_tree"], log, params["static_args"])


# Control flow


def read_scan(params: dict[str, Any]) -> tuple[int, int]:
    """How many of a scan's operands are constants, and how many are carried."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def with_scan_values(params: dict[str, Any], *, consts: int, carry: int) -> dict[str, Any]:
    """A scan's parameters for a body that takes so many constants more, and carries so many values more, each ahead of
    what it has."""
    if "num_consts" in params:
        return {**params, "num_consts": params["num_consts"] + consts, "num_carry": params["num_carry"] + carry}
    from jax._src import flattree as ft  # since 0.12

    old_consts, old_carry, xs = params["ft_in"].unpack()
    carry_out, ys = params["ft_out"].unpack()
    return {
        **params,
        "ft_in": ft.pack(((ft.nones(consts), old_consts), (ft.nones(carry), old_carry), xs)),
        "ft_out": ft.pack(((ft.nones(carry), carry_out), ys)),
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
        hijax.call_hi_primitive_p: lambda params: _expanded(params["_prim"]),  # since 0.12 `custom_root` is one
    }
    return calls


def _expanded(primitive: Any) -> Any:
    """What a primitive of the higher level means in others."""

    def expand(*args: Any) -> Any:
        return primitive.out_tree.flatten_up_to(primitive.expand(*primitive.in_tree.unflatten(args)))

    debug_info = api_util.debug_info("expand", expand, primitive.in_avals_flat, {})
    jaxpr, _, consts = pe.trace_to_jaxpr_dynamic(lu.wrap_init(expand, debug_info=debug_info), primitive.in_avals_flat)
    return closed_jaxpr(jaxpr, consts)


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


# Functions with rules of their own for differentiation


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
                outs, *logs[:] = outs  # since 0.12, what the rule wants to tell
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


custom_partial_eval_rules = pe.custom_partial_eval_rules
"""How primitives are divided into what is known and what waits for a tangent."""

partial_eval_rules = pe.partial_eval_jaxpr_custom_rules
"""How equations of rematerialized regions are divided into what runs forward and what runs backward."""


def keep_in_scans(has_effects: Callable[[Any], bool]) -> None:
    """Lets nothing be moved out of a `scan` whose body has effects when it is divided like that elsewhere.

    JAX looks for values that are the same in every turn, and finds effects too.
    """
    hoist = loops._scan_known_hoisting

    def hoist_no_effects(jaxpr: Any, consts: Any, num_residuals: int, *others: Any) -> Any:
        if has_effects(jaxpr):
            return jaxpr, consts, [False] * num_residuals, []
        return hoist(jaxpr, consts, num_residuals, *others)

    loops._scan_known_hoisting = hoist_no_effects


def is_closed(jaxpr: Any) -> bool:
    """Whether a jaxpr holds its constants; in 0.12 all do."""
    return isinstance(jaxpr, ClosedJaxpr)


def with_jaxprs(eqn: Any, change: Callable[[Any], Any]) -> Any:
    """An equation with the jaxprs among its parameters changed into others of the same type."""

    def changed(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(map(changed, value))
        return change(value) if isinstance(value, (core.Jaxpr, ClosedJaxpr)) else value

    params = {name: changed(value) for name, value in eqn.params.items()}
    effects = frozenset().union(*(inner.effects for inner in core.jaxprs_in_params(params)))
    return eqn.replace(params=params, effects=effects & frozenset(eqn.effects))


def literal(value: Any) -> Any:
    """A value as an operand of an equation."""
    return core.Literal(value, typeof(value))


def with_more_outputs(eqn: Any, invars: Sequence[Any], params: dict[str, Any]) -> Any:
    """An equation with other operands and parameters, and one result more, ahead of all others, that is not used. It is
    of the type of a predicate."""
    return eqn.replace(invars=list(invars), outvars=[core.DropVar(boolean()), *eqn.outvars], params=params)


# `vmap`


class _Tangents:
    """The name of an axis along which a function's tangents are mapped."""

    def __repr__(self) -> str:
        return "<tangents>"


_TANGENTS = _Tangents()


def is_axis_of_tangents(axis_data: Any) -> bool:
    """Whether tangents are mapped along this axis, by `jax.jacfwd` or by the derivative of a `custom_vmap`. What is
    primal there is evaluated once, and so its effects happen once."""
    return axis_data.name is _TANGENTS


def name_axes_of_tangents() -> None:
    """Lets JAX name the axes along which it maps tangents itself, which else have no name.

    The name is part of what JAX's caches compare, so that a jaxpr with effects that was batched for `jacfwd` is not
    taken for one that was batched for a user's `vmap`.
    """
    vmap, vmap_of_rule = api.vmap, custom_batching.vmap_unrestricted

    @functools.wraps(vmap)
    def vmap_of_pushforward(fun: Any, *args: Any, **options: Any) -> Any:
        if isinstance(fun, functools.partial) and fun.func is api._jvp:  # function and primals are bound
            options["axis_name"] = _TANGENTS
        return vmap(fun, *args, **options)

    @functools.wraps(vmap_of_rule)
    def vmap_of_jvp_of_rule(fun: Any, *args: Any, axis_name: Any, **options: Any) -> Any:
        return vmap_of_rule(fun, *args, axis_name=_TANGENTS, **options)

    api.vmap = vmap_of_pushforward
    custom_batching.vmap_unrestricted = vmap_of_jvp_of_rule


def batched(jaxpr: Any, axis_data: Any, which: Sequence[bool], outs: bool | Sequence[bool]) -> tuple[Any, list[bool]]:
    """A jaxpr for all lanes at once, in the leading axis of those inputs that have them; and which results have them:
    at least these."""
    instantiate = outs if isinstance(outs, bool) else list(outs)
    jaxpr, outs_batched = batching.batch_jaxpr(closed_jaxpr(jaxpr), axis_data, list(which), instantiate)
    return closed_jaxpr(jaxpr), list(outs_batched)


def own_lanes(x: Any, dim: int | None, axis_data: Any) -> Any:
    """A value with the lanes of its device. What a region closes over has, with `spmd_axis_name`, those of all devices,
    unlike the region's arguments."""
    if dim is None or axis_data.spmd_name is None or x.shape[dim] == axis_data.size:
        return x
    first = jax.lax.axis_index(axis_data.spmd_name) * axis_data.size
    return jax.lax.dynamic_slice_in_dim(x, first, axis_data.size, dim)


def lanes_at_front(x: Any, dim: int | None, axis_data: Any) -> Any:
    """A value with its lanes in the leading axis, made if there is none."""
    x = own_lanes(x, dim, axis_data)
    return batching.bdim_at_front(x, dim, axis_data.size, mesh_axis=axis_data.explicit_mesh_axis)


def select(predicate: Any, x: Any, y: Any) -> Any:
    """`x` where the predicate, which is for the leading axes, holds, else `y`."""
    return jax.lax.select(_for_all_axes(predicate, x), x, y)


def select_n(index: Any, *cases: Any) -> Any:
    """The case of that number, which is for the leading axes."""
    return jax.lax.select_n(_for_all_axes(index, cases[0]), *cases)


def _for_all_axes(leading: Any, like: Any) -> Any:
    """Values for the leading axes as values for all, which lie on devices as those do if the types say how."""
    if leading.ndim == like.ndim:
        return leading
    sharding = typeof(like).sharding
    out_sharding = sharding if any(sharding.spec) else None
    return jax.lax.broadcast_in_dim(leading, like.shape, range(leading.ndim), out_sharding=out_sharding)


# `checkify`


def change_checkified_while(change: Callable[[dict[str, Any]], Any]) -> None:
    """Lets `checkify` take another jaxpr in place of a loop: `change(params)` gives it, or None to leave the loop."""
    check = checkify.error_checks[while_p]
    context = list(inspect.signature(check).parameters).index("error")  # since 0.11 there is one

    def rule(*args: Any, **params: Any) -> Any:
        if (jaxpr := change(params)) is None:
            return check(*args, **params)
        error, enabled_errors, *operands = args[context:]
        return checkify.checkify_jaxpr(*args[:context], jaxpr, enabled_errors, error, *operands)

    checkify.error_checks[while_p] = rule


# Lowering


def boolean() -> Any:
    """The type of a predicate, alike on all devices of the mesh that is in force, if one is."""
    return ShapedArray((), bool, sharding=core.get_cur_mesh_sharding(jax.sharding.PartitionSpec()))


def per_device(aval: Any) -> Any:
    """The type of what may differ between the devices of the region that is traced, if one is."""
    axes = jax.sharding.get_abstract_mesh().manual_axes
    if not axes:
        return aval
    varying = core.ManualAxisType(varying=frozenset(axes if jax_config._check_vma.value else ()))
    sharding = core.get_cur_mesh_sharding(jax.sharding.PartitionSpec(*[None] * aval.ndim))
    return aval.update(sharding=sharding, manual_axis_type=varying)


def as_per_device(x: Any) -> Any:
    """A value that is the same on all devices of the region that is traced, if one is, as one that need not be."""
    varying = per_device(core.typeof(x)).manual_axis_type.varying - core.typeof(x).manual_axis_type.varying
    return jax.lax.pcast(x, tuple(varying), to="varying") if varying else x


def differs(aval: Any) -> bool:
    """Whether a value of a per-device region differs between devices. Its type says so if JAX checks that."""
    return bool(aval.manual_axis_type.varying)


def is_collective(eqn: Any) -> bool:
    """Whether devices talk to each other in this equation."""
    if eqn.primitive is jax.lax.axis_index_p or any(jaxprs_in(eqn.params)):
        return False
    return any(isinstance(effect, core.NamedAxisEffect) for effect in eqn.effects)


def automatic_devices(ctx: Any) -> int:
    """How many devices run this program where XLA's partitioner decides what of it runs where; else 0."""
    axis_context = ctx.module_context.axis_context
    devices = getattr(axis_context, "num_devices", 1)
    return devices if devices > 1 and not getattr(axis_context, "manual_axes", None) else 0


def devices_of_program(ctx: Any) -> int | None:
    """How many devices run this program, outside of its per-device regions; None if that is open."""
    return getattr(ctx.module_context.axis_context, "num_devices", None)


def is_abstract(mesh: Any) -> bool:
    """Whether a mesh does not say which its devices are."""
    return isinstance(mesh, jax.sharding.AbstractMesh)


def own_devices(ctx: Any, devices: int) -> int | None:
    """How many of the devices that run this program are this process's; None if it is not known which devices run it.
    `devices`: how many run it in all."""
    if jax.process_count() == 1:
        return devices
    assigned = _assigned_devices(ctx)
    return None if assigned is None else _own_devices(assigned)


def processes_of(ctx: Any) -> tuple[int, ...]:
    """The processes whose devices run this program; none if that is not known."""
    if jax.process_count() == 1:
        return (0,)
    assigned = _assigned_devices(ctx)
    return () if assigned is None else _processes_of(assigned)


def need_devices(primitives: Sequence[Primitive]) -> None:
    """Lets programs with these be lowered for the devices that they are to run on, where there are several processes.
    Else JAX lowers a program for any so many devices."""
    if jax.process_count() > 1:
        dispatch.prim_requires_devices_during_lowering.update(primitives)


def _assigned_devices(ctx: Any) -> tuple[Any, ...] | None:
    axis_context = ctx.module_context.axis_context
    mesh = getattr(axis_context, "mesh", None)
    if isinstance(mesh, jax.sharding.Mesh):
        return mesh._flat_devices_tuple
    return getattr(axis_context, "device_assignment", None)


@functools.lru_cache(64)
def _own_devices(devices: tuple[Any, ...]) -> int:
    return sum(device.process_index == jax.process_index() for device in devices)


@functools.lru_cache(64)
def _processes_of(devices: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(sorted({device.process_index for device in devices}))


def region_axes(mesh: Any, newly_manual_axes: Any) -> tuple[dict[Any, int], dict[Any, int]]:
    """The axes along which the devices of a region count for themselves, and those along which they are copies of each
    other, with their sizes."""
    by_device = frozenset(newly_manual_axes) | frozenset(mesh.manual_axes)
    own = {axis: size for axis, size in mesh.shape.items() if axis in by_device}
    return own, {axis: size for axis, size in mesh.shape.items() if axis not in by_device and size > 1}


def copies_in_parts(ctx: Any) -> int:
    """In a region over some axes of its mesh: how many devices are copies of each other; elsewhere 0."""
    axis_context = ctx.module_context.axis_context
    by_device = getattr(axis_context, "manual_axes", None)
    if not by_device:
        return 0
    copies = math.prod(size for axis, size in axis_context.mesh.shape.items() if axis not in by_device)
    return copies if copies > 1 else 0


def call_handler(
    ctx: Any,
    target: str,
    operands: Sequence[Any],
    attributes: dict[str, Any],
    *,
    has_side_effect: bool,
    aliases: dict[int, int] | None = None,
    layouts: tuple[Sequence[Any], Sequence[Any]] | None = None,
) -> Sequence[Any]:
    """Calls a handler of XLA's FFI. `aliases`: which operands are which results. `layouts`: of operands and of results,
    the axes of each, the one that varies slowest first; without them all are in row-major order.

    `jax.ffi.ffi_lowering` does the same and more, and takes twice as long; a program may have a great many calls.
    """
    sizes = None
    if not all(core.is_constant_shape(_shape(aval)) for aval in ctx.avals_out):
        shapes = [mlir.eval_dynamic_shape_as_ivals(ctx, _shape(aval)) for aval in ctx.avals_out]
        sizes = [mlir.shape_tensor(ctx.module_context, shape) for shape in shapes]
    inputs, outputs = layouts or (map(_row_major, ctx.avals_in), map(_row_major, ctx.avals_out))
    return mlir.custom_call(
        target,
        operands=operands,
        operand_layouts=[layout[::-1] for layout in inputs],
        result_types=[mlir.aval_to_ir_type(ctx.module_context, aval) for aval in ctx.avals_out],
        result_layouts=[layout[::-1] for layout in outputs],
        result_shapes=sizes,
        backend_config={name: _attribute(value) for name, value in attributes.items()},
        has_side_effect=has_side_effect,
        operand_output_aliases=aliases,
    ).results


def _shape(aval: Any) -> tuple[Any, ...]:
    return () if aval is abstract_token else aval.shape


def _row_major(aval: Any) -> Sequence[int]:
    """The axes, the one that varies slowest first."""
    return range(len(_shape(aval)))


def _attribute(value: Any) -> Any:
    if isinstance(value, bool):
        return mlir.ir.BoolAttr.get(value)
    if isinstance(value, int):
        return mlir.ir.IntegerAttr.get(mlir.ir.IntegerType.get_signless(64), value)
    return mlir.ir.StringAttr.get(value) if isinstance(value, str) else mlir.ir_attribute(value)


def is_for_several_devices(ctx: Any) -> bool:
    """Whether several devices run this program."""
    axis_context = ctx.module_context.axis_context
    mesh, axis_env = getattr(axis_context, "mesh", None), getattr(axis_context, "axis_env", None)
    devices = mesh.size if mesh is not None else axis_env.nreps if axis_env is not None else axis_context.num_devices
    return devices is not None and devices > 1


def mark_replicated(ctx: Any, op: Any) -> None:
    """Tells the partitioner that all devices run this operation on the whole value, or all copies in a part."""
    if jax.config.jax_use_shardy_partitioner:
        sharding: Any = jax_callback._get_sdy_array_list_for_callbacks(ctx.avals_out)
        if copies_in_parts(ctx):  # all shardings in a region are of its mesh
            mesh_shape = tuple(ctx.module_context.axis_context.mesh.shape.items())
            each = [array.replace(mesh_shape=mesh_shape, logical_device_ids=None) for array in sharding.shardings]
            sharding = type(sharding)(tuple(each))
    else:
        sharding = xla_client.OpSharding()
        sharding.type = xla_client.OpSharding.Type.REPLICATED
        if len(ctx.avals_out) > 1:
            each, sharding = sharding, xla_client.OpSharding()
            sharding.type = xla_client.OpSharding.Type.TUPLE
            sharding.tuple_shardings = [each] * len(ctx.avals_out)
    mlir.set_sharding(ctx.module_context, op, sharding)


# Placing


Array = ArrayImpl
"""The class of arrays that are there, which tracers are not instances of."""


def sharding_of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The sharding of the first argument that lies on several devices, which are those that run the program; None if
    there is none."""
    for x in jax.tree.leaves((args, kwargs)):
        if type(x) is ArrayImpl:
            sharding = x.sharding
            if sharding.num_devices > 1:
                return sharding if type(sharding) is jax.NamedSharding else None
    return None


class Placing:
    """All devices of a sharding, each of which is to have the whole of a small array."""

    def __init__(self, sharding: Any):
        self._sharding = jax.NamedSharding(sharding.mesh, jax.P())
        self._devices = list(self._sharding._addressable_device_assignment)

    def place(self, x: np.ndarray) -> Any:
        """The array on these devices. JAX would do the same, and takes ten times as long."""
        aval = core.ShapedArray(x.shape, x.dtype)
        copies = [x] * len(self._devices)
        try:
            return xla_client.batched_device_put(aval, self._sharding, copies, self._devices, True)
        except RuntimeError as error:
            if "Disallowed host-to-device transfer" not in str(error):
                raise
            with jax.transfer_guard_host_to_device("allow"):  # it is no transfer of the user's
                return xla_client.batched_device_put(aval, self._sharding, copies, self._devices, True)

    @staticmethod
    def shares_memory(placed: Any, x: np.ndarray) -> bool:
        """Whether the devices read the host's array where it lies."""
        if any(device.platform != "cpu" for device in placed.sharding.addressable_devices):
            return False
        return all(shard.data.unsafe_buffer_pointer() == x.ctypes.data for shard in placed.addressable_shards)


# XLA's partitioner

replicated_hlo_sharding = xla_client.HloSharding.replicate()


def is_tiled(sharding: Any, together: int) -> bool:
    """Whether an array is cut into parts, and not along the first axes, which stay `together`."""
    if not sharding.is_tiled() or sharding.is_manual() or sharding.is_maximal() or sharding.is_unreduced():
        return False
    if any(kind != xla_client.OpSharding.Type.REPLICATED for kind in sharding.subgroup_types()):
        return False
    return all(cuts == 1 for cuts in sharding.tile_assignment_dimensions()[:together])


def write_sharding(aval: Any) -> str:
    """How an array lies by its type, as text."""
    return aval.sharding._to_xla_hlo_sharding(aval.ndim).to_proto().SerializeToString().hex()


def read_sharding(text: str) -> Any:
    """What `write_sharding` has written."""
    proto = xla_client.OpSharding()
    proto.ParseFromString(bytes.fromhex(text))
    return xla_client.HloSharding.from_proto(proto)


def element_type(shape: Any) -> str:
    """The element type of XLA's shape, as MLIR writes it."""
    with mlir.make_ir_context():
        return str(mlir.dtype_to_ir_type(np.dtype(shape.numpy_dtype())))


def call_partitioned(ctx: Any, target: str, operands: Sequence[Any], said: str) -> Sequence[Any]:
    """Calls a target that XLA's partitioner asks us about; see `register_partitioner`."""
    return mlir.custom_call(
        target,
        operands=operands,
        result_types=[mlir.aval_to_ir_type(ctx.module_context, aval) for aval in ctx.avals_out],
        backend_config=said,
        api_version=2,
    ).results


def register_partitioner(target: str, partition: Callable[..., Any]) -> None:
    """`partition(operands' shapes, their shardings, result's shape, its sharding, what the call says)` gives what each
    device does in place of a call of this target. Results are the same on all devices."""
    xla_client.register_custom_call_partitioner(
        target,
        prop_user_sharding=lambda sharding, *_: replicated_hlo_sharding,
        partition=partition,
        infer_sharding_from_operands=lambda *_: replicated_hlo_sharding,
        can_side_effecting_have_replicated_sharding=True,
    )


def register_ffi_type(name: str, type_id: Any, type_info: Any, platform: str = "cpu") -> None:
    """Registers the type of what a loaded program keeps between calls of a handler."""
    # JAX registers what was asked for before there is a backend when it makes one, handlers first and types second. But
    # a handler wants its type to be there, so we make JAX register types at once.
    if platform == "cpu":
        xla_client.register_custom_type_handler(platform, xla_client._xla.register_custom_type)
    jax.ffi.register_ffi_type(name, {"type_id": type_id, "type_info": type_info}, platform=platform)


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
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({order: token})))
    # Where all that such a call returns is all that a loop carries, XLA takes the loop's body for one that changes
    # nothing. The barrier keeps the two apart.
    return mlir.hlo.OptimizationBarrierOp(results).results if results else results


def physical_key_data(x: Any) -> Any:
    """The numbers of a PRNG key array."""
    return jax.random.key_data(x)
