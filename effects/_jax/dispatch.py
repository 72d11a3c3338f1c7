"""Functions that `jax.jit` has returned: `jax._src.pjit`."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax._src import buffer_callback, core, debugging, dispatch, ffi, shard_map, sharding_impls
from jax._src import callback as jax_callback
from jax._src import config as jax_config
from jax._src import effects as jax_effects
from jax._src import mesh as jax_mesh
from jax._src.api import jit as jit  # JAX's own, even after `fx.install`
from jax._src.interpreters import mlir
from jax._src.interpreters import partial_eval as pe
from jax._src.lib import _jax as _jaxlib
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir
from jax._src.sharding_impls import UNSPECIFIED
from jax._src.util import weakref_cache_key_types

from effects._jax.core import JaxEffect, Primitive

PjitFunction: Any = type(jit(lambda: None))

_ARGUMENTS = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")
_SHARDINGS = ("in_shardings", "out_shardings")


def options_of_jit(jitted: Any) -> tuple[Callable[..., Any], dict[str, Any]] | None:
    """The function that `jax.jit` was given, and those of its options that change the meaning or the lifetimes of a
    call; None if `jitted` does not come from `jax.jit`."""
    if not isinstance(jitted, PjitFunction):
        return None
    info: Any = jitted._jit_info
    options = {name: value for name in _ARGUMENTS if (value := getattr(info, name))}
    for name in _SHARDINGS:
        leaves = [None if leaf is UNSPECIFIED else leaf for leaf in getattr(info, f"{name}_leaves")]
        if any(leaf is not None for leaf in leaves):
            options[name] = jax.tree.unflatten(getattr(info, f"{name}_treedef"), leaves)
    if info.compiler_options_kvs:
        options["compiler_options"] = dict(info.compiler_options_kvs)
    return jitted._fun, options


def arguments_of_jit(jitted: Any) -> dict[str, tuple[Any, ...]]:
    """The static and donated arguments of a jitted function, by number and by name: `jax.jit` infers the names from the
    numbers, and the numbers from the names. Negative numbers count from the end of a call's arguments."""
    return {name: getattr(jitted._jit_info, name) for name in _ARGUMENTS}


def guarded_jit(
    jitted: Any,
    key: Callable[..., Any],
    takes: Callable[[tuple[Any, ...], dict[str, Any]], bool],
    otherwise: Any,
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Any:
    """Wraps a jitted function: the result is called as `jitted` is, for some arguments, with fast paths of its own.

    Args:
        jitted: A function that `jax.jit` has returned.
        key: The function under which the fast paths are cached. It is called where jit is disabled.
        takes: Called with each new kind of arguments; returns True if `jitted` is called with them.
        otherwise: The result where `takes` returns False.
        around: Returns the context in which `jitted` is traced and compiled.
    """

    def call(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool]:
        if not takes(args, kwargs):
            return otherwise, None, False
        with around():
            return jitted._cache_miss(*args, **kwargs)

    made = jitted.__getstate__()
    names = ("static_argnums", "static_argnames", "global_cache_key", "pytree_registry", "shard_arg_fallback", "cache")
    made = _jaxlib.pjit(made["function_name"], key, call, *(made[name] for name in names))
    made.takes, made.around, made.trace, made._fun = takes, around, jitted.trace, key
    return made


# JAX's own callbacks: `jax._src.debugging` and `jax._src.callback`.

debug_callback_p = debugging.debug_callback_p
debug_print_p = debugging.debug_print_p
io_callback_p = jax_callback.io_callback_p

callback_primitives = (debug_print_p, debug_callback_p, io_callback_p)
"""The primitives of JAX's own callbacks that have effects."""
native_call_primitives = (ffi.ffi_call_p, buffer_callback.buffer_callback_p)
"""The primitives of JAX's native calls. With `has_side_effect=True` they have an effect, which JAX does not order."""

_EFFECTS = (
    debugging.DebugEffect,
    debugging.OrderedDebugEffect,
    jax_callback.IOEffect,
    jax_callback.OrderedIOEffect,
)
_NATIVE_EFFECTS = (ffi.FfiEffect, buffer_callback.BufferCallbackEffect)

binding_callbacks = jax.make_user_context(None)
"""The binder of JAX's own callbacks; None: JAX's. It is part of the keys of JAX's caches, so that a function that was
traced with another value is traced again."""


def has_callbacks_of_jax(holder: Any) -> bool:
    """True if a jaxpr or an equation has the effects of JAX's own callbacks or native calls."""
    return any(isinstance(effect, (*_EFFECTS, *_NATIVE_EFFECTS)) for effect in holder.effects)


def is_called_back() -> bool:
    """True in a function that a running program of JAX's calls back."""
    frame, inside = sys._getframe(), (jax_callback.__file__, "_wrapped_callback")
    while frame is not None and (frame.f_code.co_filename, frame.f_code.co_name) != inside:
        frame = frame.f_back
    return frame is not None


def is_callback_effect(effect: JaxEffect) -> bool:
    """True for the effect of a callback of JAX's own."""
    return isinstance(effect, _EFFECTS)


def is_ordered(effect: JaxEffect) -> bool:
    """True if JAX orders this effect."""
    return jax_effects.ordered_effects.contains(effect)


def is_left_to_jax(args: Sequence[Any] = ()) -> bool:
    """True if a callback bound now is left to JAX: it runs at once, or is being lowered."""
    is_known = jax_config.eager_constant_folding.value and not any(isinstance(x, core.Tracer) for x in args)
    return is_known or core.trace_ctx.trace is core.eval_trace or ir.Context.current is not None


@contextlib.contextmanager
def callback_context(x64: bool, primitive: Any = None) -> Iterator[Callable[[Any], jax.Array]]:
    """The context in which JAX calls a callback's function; yields the conversion of its arguments from NumPy arrays.

    An exception of the function is logged as JAX logs it for a callback of this primitive.
    """
    device = jax.local_devices(backend="cpu")[0]
    with (
        jax_config.enable_x64(x64),
        jax_config.default_device(device),
        jax.transfer_guard_host_to_device("allow"),  # the user's guard is not for our transfer
        sharding_impls._internal_use_concrete_mesh(jax_mesh.empty_concrete_mesh),
        jax_mesh.use_abstract_mesh(jax_mesh.empty_abstract_mesh),
    ):
        try:
            yield _putting_on(device)
        except BaseException:
            if primitive in _LOGGED:
                logger, name = _LOGGED[primitive]
                logger.exception("%s failed", name)
            raise


_LOGGED = {
    debug_callback_p: (debugging.logger, "jax.debug.callback"),
    io_callback_p: (jax_callback.logger, "jax.io_callback"),
}
"""The logger to which JAX reports exceptions in callbacks of this primitive, and the callback's name in the message."""


def logs_failures(primitive: Any) -> bool:
    """True if JAX logs the exceptions of callbacks of this primitive, and so does this library."""
    return primitive in _LOGGED


@functools.lru_cache(1)
def _putting_on(device: Any) -> Callable[[Any], jax.Array]:
    sharding = jax.sharding.SingleDeviceSharding(device)

    def put(x: Any) -> jax.Array:  # six times as fast as `jax.device_put`
        return xla_client.batched_device_put(_aval(x.shape, x.dtype), sharding, [x], [device])

    return put


@functools.lru_cache(4096)
def _aval(shape: tuple[int, ...], dtype: Any) -> Any:
    return core.ShapedArray(shape, dtype)


def user_function(callback: Any) -> Any:
    """The user function inside JAX's flat function; the flat function itself if none is found."""
    if isinstance(callback, jax_callback._FlatCallback):
        return callback.callback_func
    code, cells = getattr(callback, "__code__", None), getattr(callback, "__closure__", None)
    if code is not None and "callback" in code.co_freevars:
        return cells[code.co_freevars.index("callback")].cell_contents
    return callback


def log_callback(params: dict[str, Any]) -> Callable[..., Any]:
    """The flat function by which JAX carries out a `jax.debug.log`, from the equation's parameters."""
    log = functools.partial(
        debugging._format_print_callback,
        params["fmt"],
        dict(params["np_printoptions"]),
        params["has_placeholders"],
        params["logging_record"],
    )
    return debugging._make_flat_callback(params["in_tree"], log, params["static_args"])


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
    # Without the barrier, XLA would take a while loop's carry for loop-invariant if the carry is exactly the results of
    # this call: see `record_p` in lowering/tokens.py, which says when this can go.
    return mlir.hlo.OptimizationBarrierOp(results).results if results else results


# The tokens between the programs that JAX dispatches: `jax._src.dispatch`.

jax_tokens = dispatch.runtime_tokens
"""JAX's tokens of this thread. `current_tokens`: of programs with ordered effects dispatched outside `effects.jit`."""


def block_until_token(token: Any) -> None:
    """Waits for a token of JAX's. An error of its program is suppressed here: the program's results raise it."""
    with contextlib.suppress(Exception):
        token.block_until_ready()


def is_token_ready(token: Any) -> bool:
    """True if a token of JAX's is ready."""
    return token._buf.is_ready()


def unordered_tokens() -> list[Any]:
    """The newest token of each device, for programs with unordered effects of JAX's that this thread dispatched."""
    return list(jax_tokens.output_runtime_tokens.values())


def forget_failed_tokens(is_ours: Callable[[str], bool]) -> None:
    """Drops this thread's tokens of programs that have failed with an error that this library raises itself.

    JAX would raise the error again in the next program that takes the token, and when the process ends.
    """
    for tokens in (jax_tokens.current_tokens, jax_tokens.output_runtime_tokens):
        for key, token in list(tokens.items()):
            try:
                token.block_until_ready()
            except Exception as error:
                if is_ours(str(error)):
                    del tokens[key]


# Registrations in JAX's tables for our own types of effects, primitives, parameters and folders.
#
# They leave the behaviour of JAX's own code alone. Changes of that are in `patches.py`.


def register_effect_types(types: Sequence[type], *, ordered: type) -> None:
    """Registers classes of effects with JAX: they may appear everywhere, and be lowered."""
    for type_ in types:
        jax_effects.lowerable_effects.add_type(type_)
        jax_effects.partial_eval_kept_effects.add_type(type_)
        jax_effects.control_flow_allowed_effects.add_type(type_)
        jax_effects.custom_derivatives_allowed_effects.add_type(type_)
        jax_effects.remat_allowed_effects.add_type(type_)
    jax_effects.ordered_effects.add_type(ordered)
    jax_effects.shardable_ordered_effects.add_type(ordered)  # else JAX refuses before our lowering runs


def infer_types_each_time(primitive: Primitive) -> None:
    """Makes JAX infer types and effects for each equation. By default JAX caches them by the parameters, which costs
    more if no two equations have the same parameters."""

    def stage(trace: Any, source_info: Any, *tracers: Any, **params: Any) -> list[Any]:
        avals, effects = primitive.abstract_eval(*(tracer.aval for tracer in tracers), **params)
        return trace.emit_eqn(tracers, avals, primitive, params, effects, source_info)

    pe.custom_staging_rules[primitive] = stage


def hold_weakly_in_caches(type_: type) -> None:
    """Makes JAX's caches hold parameters of this type weakly, as they hold functions and jaxprs."""
    weakref_cache_key_types.add(type_)


def need_devices(primitives: Sequence[Primitive], always: bool = False) -> None:
    """Makes JAX lower programs with these primitives for the devices that run them, if there are several processes.
    By default JAX lowers a program for a number of devices only."""
    if always or jax.process_count() > 1:
        dispatch.prim_requires_devices_during_lowering.update(primitives)


rules_in_eager_regions = shard_map.eager_rules
"""By primitive, its implementation in a `jax.shard_map` outside of jit: a function of (mesh, *values, **params). Each
value has a row for each device."""


def register_ffi_type(name: str, type_id: Any, type_info: Any, platform: str = "cpu") -> None:
    """Registers the type of the state that a loaded program keeps between calls of a handler."""
    # JAX defers registrations until there is a backend, and then registers handlers before types (0.10 to 0.12:
    # `make_cpu_client` in jaxlib/xla_client.py). A handler needs its type first, so types are registered at once. This
    # can go when that order is swapped.
    if platform == "cpu":
        xla_client.register_custom_type_handler(platform, xla_client._xla.register_custom_type)
    jax.ffi.register_ffi_type(name, {"type_id": type_id, "type_info": type_info}, platform=platform)
