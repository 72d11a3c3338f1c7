"""Functions that `jax.jit` has returned: `jax._src.pjit`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax._src import callback as jax_callback
from jax._src import config as jax_config
from jax._src import core, debugging, dispatch, shard_map, sharding_impls
from jax._src import effects as jax_effects
from jax._src import mesh as jax_mesh
from jax._src.api import jit as jit  # JAX's own, whatever `jax.jit` is by now
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
    """The function and the options that `jax.jit` was given, those that change what a call means or keeps alive; None
    if `jitted` is nothing that it has returned."""
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
    """Which arguments are static, and which are donated, by number and by name, of what `jax.jit` has returned: it has
    inferred the ones from the others. Negative numbers count from the end of a call's arguments."""
    return {name: getattr(jitted._jit_info, name) for name in _ARGUMENTS}


def guarded_jit(
    jitted: Any,
    key: Callable[..., Any],
    takes: Callable[[tuple[Any, ...], dict[str, Any]], bool],
    otherwise: Any,
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Any:
    """What is called as `jitted` is, with fast paths of its own, for some arguments.

    Args:
        jitted: What `jax.jit` has returned.
        key: The fast paths are kept for it. Where jit is disabled it is called.
        takes: Asked for arguments of a new kind: whether `jitted` is called with them.
        otherwise: What is returned where it is not.
        around: A context in which it is traced and compiled.
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
"""Those of JAX's own callbacks that have effects."""

_EFFECTS = (
    debugging.DebugEffect,
    debugging.OrderedDebugEffect,
    jax_callback.IOEffect,
    jax_callback.OrderedIOEffect,
)

binding_callbacks = jax.make_user_context(None)
"""How JAX's own callbacks are bound: None, as JAX does. It is part of the keys of JAX's caches, so that a function
which was traced with another value is traced again."""


def has_callbacks_of_jax(holder: Any) -> bool:
    """Whether a jaxpr or an equation shows the effects of JAX's own callbacks."""
    return any(isinstance(effect, _EFFECTS) for effect in holder.effects)


def is_callback_effect(effect: JaxEffect) -> bool:
    """Whether it is the effect of a callback of JAX's own."""
    return isinstance(effect, _EFFECTS)


def left_to_jax() -> Any:
    """A context in which callbacks of JAX's own are bound as JAX does."""
    return binding_callbacks(None)


def is_ordered(effect: JaxEffect) -> bool:
    """Whether JAX orders this effect."""
    return jax_effects.ordered_effects.contains(effect)


def is_left_to_jax() -> bool:
    """Whether what is bound now is JAX's in any case: it runs at once, or is being lowered."""
    return core.trace_ctx.trace is core.eval_trace or ir.Context.current is not None


@contextlib.contextmanager
def callback_context(x64: bool, primitive: Any = None) -> Iterator[Callable[[Any], jax.Array]]:
    """What JAX puts around the function of a callback, and what makes an array of JAX's of a NumPy array for it.

    What the function raises is logged as JAX logs it for a callback of this primitive.
    """
    device = jax.local_devices(backend="cpu")[0]
    with (
        jax_config.enable_x64(x64),
        jax_config.default_device(device),
        jax.transfer_guard_host_to_device("allow"),  # the user may guard against transfers of their own
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
"""Where JAX logs what a function of this primitive has raised, and the name that the message gives the callback."""


def logs_failures(primitive: Any) -> bool:
    """Whether what the function of such a callback raises is logged as JAX logs it."""
    return primitive in _LOGGED


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


# The tokens between the programs that JAX dispatches, `jax._src.dispatch`, and where JAX's code waits for XLA.

jax_tokens = dispatch.runtime_tokens
"""`current_tokens` of it: those of programs with ordered effects that this thread dispatched outside `effects.jit`."""


def block_until_token(token: Any) -> None:
    """Waits for a token of JAX's. What its program raised, the program's results say."""
    with contextlib.suppress(Exception):
        token.block_until_ready()


def is_token_ready(token: Any) -> bool:
    """Whether a token of JAX's is there."""
    return token._buf.is_ready()


def unordered_tokens() -> list[Any]:
    """The newest token of each device, of the programs that this thread dispatched with unordered effects of JAX's."""
    return list(jax_tokens.output_runtime_tokens.values())


def forget_failed_tokens(is_ours: Callable[[str], bool]) -> None:
    """Drops this thread's tokens of programs that have failed with an error that this library raises itself.

    JAX would raise it in the next program that takes the token, and again when the process ends.
    """
    for tokens in (jax_tokens.current_tokens, jax_tokens.output_runtime_tokens):
        for key, token in list(tokens.items()):
            try:
                token.block_until_ready()
            except Exception as error:
                if is_ours(str(error)):
                    del tokens[key]


# What is registered in JAX's tables for things that are ours: types of effects, primitives, parameters, folders.
#
# Nothing of JAX's own behaves differently because of these. What does is in `patches.py`.


def register_effect_types(types: Sequence[type], *, ordered: type) -> None:
    """Tells JAX of classes of effects: they may appear everywhere, and be lowered."""
    for type_ in types:
        jax_effects.lowerable_effects.add_type(type_)
        jax_effects.partial_eval_kept_effects.add_type(type_)
        jax_effects.control_flow_allowed_effects.add_type(type_)
        jax_effects.custom_derivatives_allowed_effects.add_type(type_)
        jax_effects.remat_allowed_effects.add_type(type_)
    jax_effects.ordered_effects.add_type(ordered)
    jax_effects.shardable_ordered_effects.add_type(ordered)  # else JAX refuses before our lowering can


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


def need_devices(primitives: Sequence[Primitive]) -> None:
    """Lets programs with these be lowered for the devices that they are to run on, where there are several processes.
    Else JAX lowers a program for any so many devices."""
    if jax.process_count() > 1:
        dispatch.prim_requires_devices_during_lowering.update(primitives)


rules_in_eager_regions = shard_map.eager_rules
"""By primitive, what a `jax.shard_map` outside of jit does: a function of (mesh, *values, **params). Each value holds a
row for each device."""


def register_ffi_type(name: str, type_id: Any, type_info: Any, platform: str = "cpu") -> None:
    """Registers the type of what a loaded program keeps between calls of a handler."""
    # JAX registers what was asked for before there is a backend when it makes one, handlers first and types second. But
    # a handler wants its type to be there, so we make JAX register types at once.
    if platform == "cpu":
        xla_client.register_custom_type_handler(platform, xla_client._xla.register_custom_type)
    jax.ffi.register_ffi_type(name, {"type_id": type_id, "type_info": type_info}, platform=platform)
