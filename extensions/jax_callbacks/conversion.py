"""JAX's own callbacks inside `fx.jit`: `jax.debug.print`, `.callback` and `.log`, and `io_callback`.

While a function is traced for `fx.jit`, each is bound as an effect of ours, so that JAX's transformations treat it as
one. Their functions get what JAX would give them: arrays of JAX's on a CPU device. A print whose fields are whole
arguments needs no function: JAX formats such an argument as NumPy does.

All other callbacks stay JAX's. A `pure_callback` has no effect, so XLA may drop or move it; neither is allowed for a
record. A `pure_callback` never waits for the drain, and the drain never waits for one.
"""

from __future__ import annotations

import functools
import json
import string
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import jax
import numpy as np

from effects import _errors as errors
from effects import _jax
from effects._config import config
from effects._jax import patches
from effects._model.callback import HostCall
from effects._model.content import Content
from effects._model.effect import JAX_DEBUG, JAX_IO, OF_JAX
from effects._model.function import HostFunction, function_name
from effects._model.line import Line, write_out
from effects._model.operand import Operand, Static, flat_arguments, stored_dtype, take_array, whole_arguments
from effects._model.primitive import effect_p
from effects._model.site import Site
from effects._model.where import Where
from effects.dispatch.runtime.runtime import runtime
from effects.extensions.jax_callbacks.native_calls import bind_native, native_call_p
from effects.lowering.holders import EffectConversion, find_holder, set_conversion
from effects.lowering.rewrite import rewritten, with_jaxprs
from effects.lowering.summary import summarize
from effects.lowering.tokens import registered_rule

MSG_RETURNED_SOME = (
    "The callback `{name}` returned values, where none were expected. A callback without `result_shape_dtypes` returns "
    "None. Return nothing, or describe what is returned."
)
MSG_SHARDING_OF_PROCESSES = (
    "The `io_callback` of `{name}` at {where} was given `sharding={sharding}`, and there are several processes. Every "
    "process calls the function, since each replays the effects of whole values. Leave out `sharding`, and ask "
    "`jax.process_index()` in the function."
)


class JaxCallbacks(EffectConversion):
    """The conversion of JAX's own callbacks, for the passes."""

    def tracing(self) -> AbstractContextManager[Any]:
        """While a function is traced for `fx.jit`, JAX's own callbacks are bound as effects of ours, unless the setting
        `jax_effects` keeps JAX's semantics. Where jit is disabled they happen at once, as in JAX."""
        keeps_jaxs = config.jax_effects == "jax" or jax.config.jax_disable_jit
        return _jax.binding_callbacks(None if keeps_jaxs else True)

    def tracing_inside(self) -> AbstractContextManager[Any]:
        """Inside plain `jax.jit`, a function of `fx.jit` keeps JAX's own callbacks."""
        return nullcontext() if _jax.is_staged() else self.tracing()

    def convert(self, jaxpr: Any) -> Any:
        return convert(jaxpr)

    def all_converted(self, jaxprs: Sequence[Any]) -> bool:
        """Returns True if these jaxprs have effects, and all were written as JAX's own callbacks."""
        effects = frozenset[Any]().union(*(summarize(jaxpr).all_effects for jaxpr in jaxprs))
        return bool(effects) and all(effect.name in OF_JAX for effect in effects)

    def restore(self, eqn: Any) -> Any:
        return restore(eqn)


set_conversion(JaxCallbacks())


@patches.implements("JAX's own callbacks")
def _binding_ours(bind: Callable[..., Any]) -> Callable[..., Any]:
    primitive = bind.__self__  # type: ignore[attr-defined] - JAX has a method there

    @functools.wraps(bind)
    def bind_ours(*args: Any, **params: Any) -> Any:
        if not _jax.binding_callbacks.value:
            return bind(*args, **params)
        if _jax.is_left_to_jax(args):
            with _jax.binding_callbacks(None):  # JAX may trace a function with the callback to call it at once
                return bind(*args, **params)
        return bind_effect(primitive, args, params)

    bind_ours.__module__ = __name__
    return bind_ours


@patches.implements("JAX's callbacks outside of traces")
def _behind_ours(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(evaluate)
    def evaluate_behind_ours(*args: Any, **params: Any) -> Any:
        bodies = [*_jax.jaxprs_in(params)]  # of control flow
        if not runtime.is_lost and (not bodies or any(map(_jax.has_callbacks_of_jax, bodies))):
            runtime.waiting.for_calls()
        return evaluate(*args, **params)

    evaluate_behind_ours.__module__ = __name__
    return evaluate_behind_ours


def bind_effect(
    primitive: Any, args: Sequence[Any], params: dict[str, Any], in_program_order: bool = True
) -> list[Any]:
    """Binds a callback of JAX's as an effect of ours. Unless `in_program_order`, one without `ordered=True` has no
    order."""
    from effects.extensions.jax_callbacks.origin import JaxCall

    arrays = list(map(_as_array, args))
    values, operands = [], []
    for x in arrays:
        value, operand = take_array(x, (), "", Where("", 0, ""))
        values.append(value)
        operands.append(operand)
    where = Where(*(_jax.user_frame() or ("a line that JAX does not know", 0, "")))
    leaves, tree = tuple(operands), flat_arguments(len(operands))
    content: Content
    if primitive is _jax.debug_print_p:
        effect, ordered = JAX_DEBUG, params["ordered"]
        if params["logging_record"] is not None:
            log = _calling(primitive, _jax.log_callback(params), None, bool(jax.config.jax_enable_x64))
            content = HostCall(HostFunction(log, name="jax.debug.log"))
        else:
            leaves, tree = _with_static(operands, params)
            content = _as_line(params) or _as_jaxs_line(params, leaves, tree)
    elif primitive is _jax.debug_callback_p:
        effect, ordered = JAX_DEBUG, _jax.is_ordered(params["effect"])
        content = HostCall(_function(primitive, params["callback"]))
    else:
        effect, ordered = JAX_IO, params["ordered"]
        content = _io_call(primitive, params)
        if params["sharding"] is not None and jax.process_count() > 1:
            message = MSG_SHARDING_OF_PROCESSES.format(name=content.title, where=where, sharding=params["sharding"])
            raise errors.unsupported(message)
    site = Site(
        effect if ordered or in_program_order else effect.unordered(),
        content,
        leaves,
        tree,
        where,
        per_shard=bool(params.get("partitioned")),
        origin=JaxCall(primitive, params, tuple(x.dtype for x in arrays), ordered),
    )
    outs = effect_p.bind(*values, site=site)
    return [out.astype(result.dtype) for out, result in zip(outs, site.results or (), strict=True)]


def _as_array(x: Any) -> Any:
    if _jax.is_reference(x):
        return x[...]
    # JAX converts a number to an array of its default type.
    return x if isinstance(x, jax.Array) else np.asarray(x, _jax.typeof(x).dtype)


def _with_static(operands: Sequence[Operand], params: dict[str, Any]) -> tuple[tuple[Operand | Static, ...], Any]:
    """The leaves and the tree of a print's arguments, those included that were known while tracing."""
    static, arrays, tree = dict(params["static_args"]), iter(operands), params["in_tree"]
    return tuple(Static(static[i]) if i in static else next(arrays) for i in range(tree.num_leaves)), tree


def _io_call(primitive: Any, params: dict[str, Any]) -> HostCall:
    avals = params["result_avals"]
    function = _function(primitive, params["callback"], len(avals))
    if not avals:
        return HostCall(function)
    results = tuple(Operand(aval.shape, np.dtype(aval.dtype), stored_dtype(np.dtype(aval.dtype))) for aval in avals)
    return HostCall(function, results, jax.tree.structure([0] * len(avals)))


# Functions


_functions: weakref.WeakValueDictionary[tuple[Any, ...], HostFunction] = weakref.WeakValueDictionary()
"""By the identity of the user's function, which its value keeps alive: one callback that is traced again and again is
one function."""


def _function(primitive: Any, callback: Any, results: int | None = None) -> HostFunction:
    """The function of a record that calls what JAX calls for this primitive. It returns `results` arrays in a list, or
    None."""
    user = _jax.user_function(callback)
    same = (id(user), callback.in_tree) if hasattr(callback, "in_tree") else (id(callback),)
    x64 = bool(jax.config.jax_enable_x64)
    key = (*same, results, x64)
    function = _functions.get(key)
    if function is None:
        function = _functions[key] = HostFunction(_calling(primitive, callback, results, x64), name=function_name(user))
    return function


def _calling(primitive: Any, callback: Callable[..., Any], results: int | None, x64: bool) -> Callable[..., Any]:
    def call(*args: Any) -> list[np.ndarray] | None:
        with _jax.callback_context(x64, primitive) as put:
            returned = callback(*map(put, args))
            if results is None:
                return None
            arrays = [np.asarray(x) for x in returned]
            arrays = [x.astype(jax.dtypes.canonicalize_dtype(x.dtype), copy=False) for x in arrays]
        if len(arrays) != results and not results:  # otherwise `take_results` raises
            raise errors.type_error(MSG_RETURNED_SOME.format(name=function_name(_jax.user_function(callback))))
        return arrays

    return call


# Prints


def _as_line(params: dict[str, Any]) -> Line | None:
    """The line of ours that prints the same bytes as `jax.debug.print`; None if there is none.

    Every field must be a whole argument: an array of JAX's without conversion is formatted as NumPy's is.
    """
    fmt, static, tree = params["fmt"], dict(params["static_args"]), params["in_tree"]
    if not params["has_placeholders"]:
        return None if tree.num_leaves else Line(fmt.replace("{", "{{").replace("}", "}}"))
    options = params["np_printoptions"]
    try:
        json.dumps(options)
    except TypeError:  # formatters of numbers
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
    except (ValueError, IndexError, KeyError):  # JAX raises this itself when it formats
        return None
    return Line(fmt, options)


def _as_jaxs_line(params: dict[str, Any], leaves: Sequence[Operand | Static], tree: Any) -> Line:
    from effects.extensions.jax_callbacks.jax_line import JaxLine

    fmt, options, has_placeholders = params["fmt"], params["np_printoptions"], params["has_placeholders"]
    if has_placeholders and any(isinstance(leaf, Static) and leaf.travels_as_text for leaf in leaves):
        with suppress(Exception):  # JAX raises this itself when it formats
            fmt = write_out(fmt, leaves, tree)
    return JaxLine(fmt, options, has_placeholders=has_placeholders, x64=bool(jax.config.jax_enable_x64))


# JAX's own callbacks in jaxprs: those traced outside of `fx.jit` are converted, and restored where tokens do not reach.


def convert(jaxpr: Any) -> Any:
    """Converts JAX's own callbacks of a jaxpr to effects of ours, wherever tokens can reach them.

    While a function is traced for `fx.jit`, callbacks are bound as effects from the start. The others are those of
    jaxprs that were traced before, and all if the setting `jax_effects` is "jax": then JAX's transformations are over.
    """
    jaxpr = _jax.closed_jaxpr(jaxpr)
    if not _jax.has_callbacks_of_jax(jaxpr):
        return jaxpr
    return _converted(jaxpr, config.jax_effects == "program_order")


# A cache must not return its own key: a value that refers to its key lives forever, with all that the user's function
# closes over.
@_jax.weakref_lru_cache
def _converted(jaxpr: Any, in_program_order: bool) -> Any:
    def apply(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        if eqn.primitive in _jax.callback_primitives:
            return bind_effect(eqn.primitive, operands, eqn.params, in_program_order)
        if eqn.primitive in _jax.native_call_primitives and eqn.effects and in_program_order:
            return native_call_p.bind(*operands, call=eqn.primitive, **eqn.params)
        if _jax.has_callbacks_of_jax(eqn) and (registered_rule(eqn.primitive) or find_holder(eqn.primitive)):
            eqn = with_jaxprs(eqn, convert)
        return _jax.bind(eqn, operands)

    return rewritten(jaxpr, apply)


def restore(eqn: Any) -> Any:
    """Converts effects in the jaxprs of an equation back to JAX's own callbacks."""
    return with_jaxprs(eqn, lambda jaxpr: _restored(jaxpr) if summarize(jaxpr).all_effects else jaxpr)


@_jax.weakref_lru_cache
def _restored(jaxpr: Any) -> Any:
    def apply(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        if eqn.primitive is effect_p and (origin := eqn.params["site"].origin) is not None:
            return origin.restore(eqn.params["site"], operands)
        if eqn.primitive is native_call_p:
            return bind_native(*operands, **eqn.params)
        return _jax.bind(restore(eqn), operands)

    return rewritten(jaxpr, apply)
