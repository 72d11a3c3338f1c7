"""JAX's own callbacks inside `fx.jit`: `jax.debug.print`, `.callback` and `.log`, and `io_callback`.

Each becomes a record like ours. Their functions get what JAX would give them: arrays of JAX's on a CPU device. A print
whose fields are whole arguments needs no function: JAX formats such an argument as NumPy does.

What is not here stays JAX's. `pure_callback` has no effect, so that XLA may drop it and move it; a record may be
neither. It never waits for the drain, and the drain never waits for it. An unordered `partitioned=True` shows what
each device has, where a record shows the whole value.
"""

from __future__ import annotations

import json
import string
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from effects import _jax
from effects._model.arguments import take_array, whole_arguments
from effects._model.content import Content
from effects._model.functions import HostFunction, function_name
from effects._model.host_call import HostCall
from effects._model.line import Line, fill
from effects._model.operand import Operand, Static, stored_dtype
from effects._model.site import Site
from effects._model.where import Where
from effects.lowering.passes.summary import Leaf, effects_of, summarizes
from effects.lowering.passes.tokens import TokenContext, Tokens, register_token_rule
from effects.lowering.rules.effect import bind_record

MSG_RETURNED_SOME = (
    "The callback `{name}` returned values, where none were expected. A callback without `result_shape_dtypes` returns "
    "None. Return nothing, or describe what is returned."
)


@register_token_rule(_jax.debug_print_p)
def _debug_print_token_rule(
    ctx: TokenContext, tokens: Tokens, *args: Any, **params: Any
) -> tuple[Tokens, Sequence[Any]]:
    if params["partitioned"] and not params["ordered"]:
        return _leave_to_jax(ctx, tokens, *args, **params)
    if (line := _as_line(params)) is None:
        return _publish(ctx, tokens, args, _printing(params))
    static = dict(params["static_args"])
    values, operands = _take(args)
    arrays = iter(operands)
    tree = params["in_tree"]
    leaves = [Static(static[i]) if i in static else next(arrays) for i in range(tree.num_leaves)]
    return _publish_site(ctx, tokens, values, line, leaves, tree)


@register_token_rule(_jax.debug_callback_p)
def _debug_callback_token_rule(
    ctx: TokenContext, tokens: Tokens, *args: Any, **params: Any
) -> tuple[Tokens, Sequence[Any]]:
    [effect] = ctx.effects
    if params["partitioned"] and not effect.ordered:
        return _leave_to_jax(ctx, tokens, *args, **params)
    return _publish(ctx, tokens, args, HostCall(_function(params["callback"])))


@register_token_rule(_jax.io_callback_p)
def _io_callback_token_rule(
    ctx: TokenContext, tokens: Tokens, *args: Any, **params: Any
) -> tuple[Tokens, Sequence[Any]]:
    avals = params["result_avals"]
    results, tree = None, None
    if avals:
        results = tuple(Operand(aval.shape, np.dtype(aval.dtype), stored_dtype(np.dtype(aval.dtype))) for aval in avals)
        tree = jax.tree.structure([0] * len(avals))
    dtypes = [_jax.typeof(x).dtype for x in args]

    def otherwise(*stored: Any) -> list[Any]:
        operands = [x if _is_key(dtype) else x.astype(dtype) for x, dtype in zip(stored, dtypes, strict=True)]
        outs = _jax.io_callback_p.bind(*operands, **params)
        return [out.astype(result.stored) for out, result in zip(outs, results or (), strict=True)]

    content = HostCall(_function(params["callback"], len(avals)), results, tree, otherwise=otherwise)
    tokens, outs = _publish(ctx, tokens, args, content)
    return tokens, [out.astype(result.dtype) for out, result in zip(outs, results or (), strict=True)]


@register_token_rule(_jax.inspect_sharding_p)
def _leave_to_jax(ctx: TokenContext, tokens: Tokens, *args: Any, **params: Any) -> tuple[Tokens, Sequence[Any]]:
    return tokens, list(ctx.primitive.bind(*args, **params))


@summarizes(_jax.debug_print_p, _jax.debug_callback_p, _jax.io_callback_p)
def _summarize_callback(eqn: Any) -> Leaf:
    ordered = all(effect.ordered for effect in effects_of(eqn.effects))
    if eqn.primitive is _jax.io_callback_p:
        awaits = bool(eqn.params["result_avals"])
        return Leaf(True, awaits, ordered and not awaits)
    calls = eqn.primitive is _jax.debug_callback_p or _as_line(eqn.params) is None
    return Leaf(calls, False, ordered)


# Records


def _publish(ctx: TokenContext, tokens: Tokens, args: Sequence[Any], content: Content) -> tuple[Tokens, Sequence[Any]]:
    """Publishes a record whose operands are a function's positional arguments."""
    values, operands = _take(args)
    return _publish_site(ctx, tokens, values, content, operands, jax.tree.structure(((0,) * len(args), {})))


def _publish_site(
    ctx: TokenContext, tokens: Tokens, values: Sequence[Any], content: Content, leaves: Sequence[Any], tree: Any
) -> tuple[Tokens, Sequence[Any]]:
    [effect] = ctx.effects
    frame = _jax.user_frame()
    site = Site(effect, content, tuple(leaves), tree, Where(*frame) if frame else Where(ctx.where, 0, ""))
    return bind_record(ctx, tokens, values, site)


def _take(args: Sequence[Any]) -> tuple[list[Any], list[Operand]]:
    """Operands as they travel, and their descriptions."""
    values, operands = [], []
    for x in args:
        if _jax.is_reference(x):
            x = x[...]
        elif not isinstance(x, (jax.Array, np.ndarray)):  # a literal of the jaxpr
            x = jnp.asarray(x)
        value, operand = take_array(x, (), "", Where("", 0, ""))
        values.append(value)
        operands.append(operand)
    return values, operands


def _is_key(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.extended)


# Functions


_functions: weakref.WeakValueDictionary[tuple[Any, ...], HostFunction] = weakref.WeakValueDictionary()
"""By the identity of the user's function, which its value keeps alive: one callback that is traced again and again is
one function."""


def _function(callback: Any, results: int | None = None) -> HostFunction:
    """The function of a record that calls what JAX calls. With `results` it returns so many arrays in a list."""
    user = _jax.user_function(callback)
    same = (id(user), callback.in_tree) if hasattr(callback, "in_tree") else (id(callback),)
    x64 = bool(jax.config.jax_enable_x64)
    key = (*same, results, x64)
    function = _functions.get(key)
    if function is None:
        function = _functions[key] = HostFunction(_calling(callback, results, x64), name=function_name(user))
    return function


def _calling(callback: Callable[..., Any], results: int | None, x64: bool) -> Callable[..., Any]:
    def call(*args: Any) -> list[np.ndarray] | None:
        with _jax.callback_context(x64) as put:
            returned = callback(*map(put, args))
            if results is None:
                return None
            arrays = [np.asarray(x) for x in returned]
            arrays = [x.astype(jax.dtypes.canonicalize_dtype(x.dtype), copy=False) for x in arrays]
        if len(arrays) != results and not results:  # else what takes them says so
            raise TypeError(MSG_RETURNED_SOME.format(name=function_name(_jax.user_function(callback))))
        return arrays

    return call


def _printing(params: dict[str, Any]) -> HostCall:
    """A call that formats as JAX does, with arrays of JAX's."""
    x64 = bool(jax.config.jax_enable_x64)
    if params["logging_record"] is not None:
        return HostCall(HostFunction(_calling(_jax.log_callback(params), None, x64), name="jax.debug.log"))
    fmt, options = params["fmt"], dict(params["np_printoptions"])

    def text(*values: Any) -> str:
        with _jax.callback_context(x64) as put:
            arrays = list(map(put, values))
            args, kwargs = _jax.merge_arguments(params["in_tree"], arrays, params["static_args"])
            if params["has_placeholders"]:
                return fill(fmt, options, args, kwargs) + "\n"
            assert not kwargs, "Format without placeholders should not have kwargs."
            return " ".join((fmt, *map(str, args))) + "\n"

    return HostCall(HostFunction(text, name="jax.debug.print"), prints=True)


# Prints that need no function


def _as_line(params: dict[str, Any]) -> Line | None:
    """The line of ours that is what `jax.debug.print` prints, to the byte; None if a function of JAX's must say.

    Every field must be a whole argument: an array of JAX's without conversion is formatted as NumPy's is.
    """
    fmt, static, tree = params["fmt"], dict(params["static_args"]), params["in_tree"]
    if params["logging_record"] is not None:
        return None
    if not params["has_placeholders"]:
        return None if tree.num_leaves else Line(fmt.replace("{", "{{").replace("}", "}}"))
    options = params["np_printoptions"]
    try:
        json.dumps(options)
    except TypeError:  # functions that format numbers
        return None
    if any(type(value) is not str for value in static.values()):
        return None
    array = object()
    args, kwargs = whole_arguments(tree, [static.get(i, array) for i in range(tree.num_leaves)])
    try:
        automatic = 0
        for _, name, spec, conversion in string.Formatter().parse(fmt):
            if name is None:
                continue
            if name == "":
                name, automatic = str(automatic), automatic + 1
            value = args[int(name)] if name.isascii() and name.isdecimal() else kwargs[name]
            if "{" in (spec or ""):
                return None
            if value is array:
                if conversion is not None:
                    return None
            elif type(value) is str:
                ("{" + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "") + "}").format(value)
            else:  # a tree, or None
                return None
    except (ValueError, IndexError, KeyError):  # JAX says what is wrong when it comes to it
        return None
    return Line(fmt, options)
