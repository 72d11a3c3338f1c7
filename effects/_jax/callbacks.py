"""JAX's own callbacks: `jax._src.debugging` and `jax._src.callback`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax._src import callback as jax_callback
from jax._src import config as jax_config
from jax._src import core, debugging, sharding_impls
from jax._src import effects as jax_effects
from jax._src import mesh as jax_mesh
from jax._src.interpreters import mlir
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir

from effects._jax.core import JaxEffect

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
    return any(map(is_callback_effect, holder.effects))


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


def check_callback_sharding(ctx: Any, sharding: Any) -> None:
    """Raises what JAX does where it cannot call a function from the device of this sharding."""
    jax_callback._callback_op_sharding(ctx.module_context.axis_context, sharding, ctx.avals_out)


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
