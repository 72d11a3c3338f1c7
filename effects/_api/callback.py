"""Calling Python from inside compiled programs."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from effects import _errors as errors
from effects import _jax
from effects._model.callback import HostCall
from effects._model.effect import PROGRAM, Effect, host_effect, register_effect
from effects._model.filter import ALWAYS, choose
from effects._model.function import HostFunction, function_name
from effects._model.operand import Operand, stored_dtype, take_arguments
from effects._model.primitive import bind_where, effect_p
from effects._model.site import Site
from effects._model.where import Where, where_called

_PAGE = "docs/guide/callbacks.md"
MSG_CALLBACK_NOT_CALLABLE = (
    "`{call}` at {where} was given {fn} as its function. A callback is a function, or another callable. Pass the "
    "function first, and then the types of its results: `{call}(fn, shapes, x)`."
)
MSG_CALLBACK_RUNS_LATER = (
    "`{call}` at {where} was given `{name}`, which is {kind} function. A callback must run when it is called, and "
    "{what} does not. Pass a function that runs it{example}."
)
_RUN_LATER: tuple[tuple[Callable[[Any], bool], str, str, str], ...] = (
    (inspect.iscoroutinefunction, "an `async def`", "a coroutine", "asyncio.run(f(*args))"),
    (inspect.isgeneratorfunction, "a generator", "a generator", "list(f(*args))[-1]"),
    (inspect.isasyncgenfunction, "an asynchronous generator", "such a generator", ""),
)
MSG_CALLBACK_ARGUMENTS = (
    "`{call}` at {where} cannot call `{name}` with what it was given: {why}. It is called with the arguments behind "
    "`result_shape_dtypes`{record}. Pass those that it takes: `{name}{signature}`."
)
MSG_VMAP_METHOD = (
    "`fx.callback` at {where} was given the vmap_method {given!r}. It says how a function is called for many lanes. "
    "Pass one of {known}."
)
MSG_ORDER_OF_JAX = (
    "`fx.callback` at {where} was given an array as the results of `{name}`, and one argument too few for it. The "
    "results are described first, and arguments come behind them, as in `io_callback`. Write `fx.callback({name}, "
    "None, x)` for a function without results, or describe them by `jax.ShapeDtypeStruct(x.shape, x.dtype)`."
)
MSG_RESULT_TYPE = (
    "`{call}` at {where} was given {got!r} among the results of `{name}`. A result is described by an object with "
    "a shape and a dtype of numbers or booleans. Pass, say, `jax.ShapeDtypeStruct((3,), 'float32')`, or None for a "
    "function without results."
)
MSG_RESULT_64 = (
    "`{call}` at {where} was given a result of `{name}` of type {dtype}. Arrays of 64 bits exist only with "
    "`jax_enable_x64`, which is off. Ask for 32 bits, or set `jax.config.update('jax_enable_x64', True)`."
)
MSG_PER_SHARD_RESULTS = (
    "The callback `{name}` at {where} has results and `per_shard=True`. Results are of the whole array, and a shard's "
    "call knows its part only. Call it inside a `jax.shard_map`, where each device has its own results, or leave out "
    "`per_shard=True`."
)
MSG_FILTERED_RESULTS = (
    "The callback `{name}` at {where} has results, and one of `level`, `logger`, `every`, `first`, `min_seconds` and "
    "`when`. The program waits for the results each time, so that no call may be left out. Leave these out, or put the "
    "call into a `jax.lax.cond`."
)


CALLBACK = register_effect(Effect("callback", domain=PROGRAM))

MSG_CLOSES_OVER = (
    "The function `{name}` of `{call}` at {where} uses the traced value `{value}` without being given it. It runs on "
    "the host, and has its arguments alone. Pass it: `{call}(fn, None, {value})`, with a parameter for it; of its "
    "shape alone, make a variable outside."
)
_VMAP_METHODS = (None, "sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "legacy_vectorized")


@_jax.for_users
def callback(
    fn: Callable[..., Any],
    result_shape_dtypes: Any = None,
    /,
    *args: Any,
    ordered: bool = True,
    vmap_method: str | None = None,
    pass_record: bool = False,
    per_shard: bool = False,
    level: int | str | None = None,
    logger: str | None = None,
    every: int | None = None,
    first: int | None = None,
    min_seconds: float | None = None,
    when: Any = None,
    effect: Effect | str | None = None,
    **kwargs: Any,
) -> Any:
    """Calls a Python function when the program reaches this point, in program order with prints and logs.

    Without results the call is only recorded: the program goes on, and the function runs later, in its place in the
    order. With results the program waits until the function has run there.

    The function gets arrays as read-only NumPy copies that it may keep; the device may have changed the original by
    then. The function may use JAX, print, log and call `fx.jit` functions: their effects come in its place. It runs in
    the `contextvars` that were in force when the program was called. An exception of the function is raised as
    `EffectError`: by the call of the program if that waits for results, else by the thread's next call or barrier.

    Args:
        fn: The function. Called once for each time that the program gets here, and once for each lane of a `vmap`.
            Programs that leave this process carry its name of `fx.register_callback`.
        result_shape_dtypes: The types of the results: a pytree of objects with a shape and a dtype, such as
            `jax.ShapeDtypeStruct`. The function returns arrays or Python numbers; arrays of 64 bits are cast to 32 if
            `jax_enable_x64` is off. None: the program does not wait.
        *args: The positional arguments: pytrees of arrays; strings, numbers and None as they are. A mutable reference
            passes its value.
        ordered: True if the call must come in program order. An unordered call may come at any time.
        vmap_method: As for `jax.pure_callback`; None calls lane by lane. If a predicate that differs between lanes
            excludes some lanes, the function is called lane by lane for the others.
        pass_record: True if the function also gets the `Record`, as the keyword argument `record`.
        per_shard: True if the function is called for each shard of sharded arrays, without a gather. Without results.
        level: The level of the call: a number as for `logging`, or a name such as `"warning"`. The call is not made if
            its level is below the logger's when the program gets here. None: the call follows no logger.
        logger: The name of the logger whose level counts, `effects` by default.
        every: A number n: the first call is made, and each n-th after it, over loops and calls of the program. A
            `vmap` counts once for all lanes.
        first: The maximum number of calls, on each device of a `jax.shard_map`.
        min_seconds: The minimum number of seconds since the last call that was made. So it depends on time.
        when: A boolean, which the program may compute: if it is false, no call is made, as in a `cond`.
            These six are for functions without results.
        effect: A registered `fx.Effect`, or its name, in place of `callback`. Its order domain is then that of the
            call: effects of other domains do not wait for this call.
        **kwargs: The keyword arguments, likewise.

    Returns:
        None, or arrays as in `result_shape_dtypes`.

    Raises:
        TypeError: while tracing, if the function cannot be called with these arguments, or is an `async def` or a
            generator function, if a result has no shape, or if a value cannot be an argument.

    Example:
        >>> import effects as fx, jax, numpy as np
        >>> seen = []
        >>> @fx.jit
        ... def f(x):
        ...     fx.callback(lambda x: seen.append(float(x)), None, x)
        ...     return fx.callback(np.sin, jax.ShapeDtypeStruct((), "float32"), x)
        >>> f(0.0)
        Array(0., dtype=float32)
        >>> seen
        [0.0]
    """
    where = where_called()
    taken = {**kwargs, "record": None} if pass_record else kwargs
    if (
        callable(fn)
        and isinstance(result_shape_dtypes, (jax.Array, np.ndarray))
        and _lacks_an_argument(fn, args, taken)
    ):
        raise errors.type_error(MSG_ORDER_OF_JAX.format(where=where, name=function_name(fn)))
    check_function("fx.callback", fn, args, taken, where)
    if vmap_method not in _VMAP_METHODS:
        known = ", ".join(map(repr, _VMAP_METHODS))
        raise errors.value_error(MSG_VMAP_METHOD.format(where=where, given=vmap_method, known=known))
    function = HostFunction.of(fn)
    if per_shard and result_shape_dtypes is not None:
        raise errors.value_error(MSG_PER_SHARD_RESULTS.format(name=function.name, where=where))
    results, tree = None, None
    if result_shape_dtypes is not None:
        shapes, tree = jax.tree.flatten(result_shape_dtypes)
        results = tuple(result_type(shape, function.name, where) for shape in shapes)
    operands, leaves, arguments_tree = take_arguments(args, kwargs, "fx.callback", where)
    content = HostCall(function, results, tree, pass_record, vmap_method)
    chosen = host_effect("fx.callback", where, effect, CALLBACK, ordered)
    asked = choose("fx.callback", where, level, logger, every, first, min_seconds, needs_level=False)
    if results is not None and (asked != ALWAYS or when is not None):
        raise errors.value_error(MSG_FILTERED_RESULTS.format(name=function.name, where=where))
    site = Site(chosen, content, leaves, arguments_tree, where, per_shard=bool(per_shard), filter=asked)
    if results is None:
        bind_where(when, operands, site, "fx.callback")
        return None
    outs = effect_p.bind(*operands, site=site)
    shown = [out.astype(result.dtype) for out, result in zip(outs, results, strict=True)]
    return jax.tree.unflatten(tree, shown)


def check_function(call: str, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: Where) -> None:
    """Refuses a function that is known to fail, or not to run, when it is called with these arguments."""
    if not callable(fn):
        raise errors.type_error(MSG_CALLBACK_NOT_CALLABLE.format(call=call, where=where, fn=errors.shown(fn)))
    name = function_name(fn)
    for is_one, kind, what, runs in _RUN_LATER:
        if any(is_one(called) for called in (fn, type(fn).__call__)):
            shown = {"call": call, "where": where, "name": name, "kind": kind, "what": what}
            example = f": where it has a result, `lambda *args: {runs}`, with `f` for it" * bool(runs)
            raise errors.type_error(MSG_CALLBACK_RUNS_LATER.format(example=example, **shown))
    if (closed_over := _tracer_in(fn)) is not None:
        raise errors.type_error(MSG_CLOSES_OVER.format(call=call, where=where, name=name, value=closed_over))
    if why := _why_not(fn, args, kwargs):
        record = " and `record`" if "record" in kwargs else ""
        signature = _signature(fn)
        message = MSG_CALLBACK_ARGUMENTS.format(
            call=call, where=where, name=name, why=why, record=record, signature=signature
        )
        raise errors.type_error(message)


def _tracer_in(fn: Any) -> str | None:
    """The name of a tracer that a function closes over or has bound to an argument; None if there is none."""
    if isinstance(fn, functools.partial):
        bound = [*(("x", x) for x in fn.args), *fn.keywords.items()]
        return next((name for name, x in bound if _is_traced(x)), None) or _tracer_in(fn.func)
    if not inspect.isfunction(fn := getattr(fn, "__func__", fn)):
        return None
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # the cell has no value yet
            if _is_traced(cell.cell_contents):
                return name
    count, names = fn.__code__.co_argcount, fn.__code__.co_varnames
    defaults = zip(names[count - len(fn.__defaults__ or ()) : count], fn.__defaults__ or (), strict=True)
    return next((name for name, x in [*defaults, *(fn.__kwdefaults__ or {}).items()] if _is_traced(x)), None)


def _is_traced(x: Any) -> bool:
    return isinstance(x, _jax.Tracer) and not _jax.is_reference(x)


def _signature(fn: Callable[..., Any]) -> inspect.Signature | None:
    """A function's own signature, not that of a function it wraps, whose arguments may differ. None if unknown."""
    try:
        return inspect.signature(fn, follow_wrapped=False)
    except (TypeError, ValueError):
        return None


def _why_not(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """The reason why a function's signature does not take these arguments; None if it does, or is unknown."""
    try:
        if signature := _signature(fn):
            signature.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return None


def _lacks_an_argument(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """True if a function's signature does not take these arguments, but does with one more ahead of them."""
    if not args and not kwargs:
        return True
    return bool(_why_not(fn, args, kwargs)) and not _why_not(fn, (None, *args), kwargs)


def result_type(shape: Any, name: str, where: Where, call: str = "fx.callback") -> Operand:
    """The operand type of one result from its shape and dtype. `call`: the public function, for messages."""
    try:
        dims: tuple[Any, ...] = tuple(n if jax.export.is_symbolic_dim(n) else int(n) for n in shape.shape)
        dtype = np.dtype(shape.dtype)
        is_number = jnp.issubdtype(dtype, np.number) or dtype.kind == "b"
        if not is_number or any(isinstance(n, int) and n < 0 for n in dims):
            raise TypeError
    except Exception:
        raise errors.type_error(MSG_RESULT_TYPE.format(call=call, where=where, name=name, got=shape)) from None
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise errors.type_error(MSG_RESULT_64.format(call=call, where=where, name=name, dtype=dtype))
    return Operand(dims, dtype, stored_dtype(dtype))
