"""`fx.jit`: like `jax.jit`, for functions with effects.

The function is traced as `jax.jit` would trace it, its jaxpr is threaded with tokens, and what comes out is an ordinary
function of a runtime token and the arguments. It has no effects that JAX knows of, so it takes JAX's fast dispatch
path.
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from dispatch._dispatcher import Dispatcher
from dispatch._drain import drain
from dispatch._executable import Executable
from dispatch._options import jit_with_tokens
from dispatch._streams import begin_trace
from effects import _errors as errors
from effects import _jax as compat
from effects._content import HostCall
from effects._wire import TOKEN_LENGTH, ProgramTraits
from lowering._custom_call import has_custom_calls
from lowering._jax_callbacks import jax_calls_in
from lowering._record import TOKEN_NAME, Edges, close_p, record_p
from lowering._rules import effects_of, sites_in, token_keys
from lowering._thread import ends_with_record, thread_tokens

RUNTIME_TOKEN = jax.ShapeDtypeStruct((TOKEN_LENGTH,), np.uint32)


def jit(fun: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Compiles a function with effects. Takes the options of `jax.jit`; the result has its methods.

    Effects appear on the host in program order: within the program, and after those of the programs that the same
    thread called before. Calls return as early as those of `jax.jit` do. Under another transformation the function is
    transparent, and its effects are the outer program's. JAX's own callbacks, such as `jax.debug.print` and
    `io_callback`, take part as if they were ours.

    Args:
        fun: The function. Without it, a decorator is returned.
        **options: As for `jax.jit`: `static_argnums`, `donate_argnames`, `in_shardings`, ...

    Returns:
        The compiled function.

    Example:
        >>> import effects as fx
        >>> @fx.jit
        ... def double(x):
        ...     fx.print("doubling {}", x)
        ...     return 2 * x
        >>> double(3)
        Array(6, dtype=int32, weak_type=True)
        >>> fx.effects_barrier()
        doubling 3
    """
    if fun is None:
        return functools.partial(jit, **options)
    if not callable(fun):
        raise TypeError(errors.MSG_NOT_CALLABLE.format(fun=fun))
    return JitFunction(fun, options)


class JitFunction(Dispatcher):
    """A function that `fx.jit` compiled."""

    def __init__(self, fun: Callable[..., Any], options: dict[str, Any]):
        functools.update_wrapper(self, fun, updated=())  # what a callable object holds is not ours
        name = getattr(fun, "__qualname__", None) or getattr(fun, "__name__", None) or type(fun).__name__
        plain = jax.jit(fun, **options)
        super().__init__(name, plain, _jit_threaded(fun, options))
        self._fun, self._options = fun, options

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<fx.jit of {self._name}>"

    def lower(self, /, *args: Any, **kwargs: Any) -> Lowered:
        """As `jax.jit(f).lower`: the program for these arguments, tokens included, not yet compiled."""
        return Lowered(self, self._threaded.lower(RUNTIME_TOKEN, *args, **kwargs))

    def trace(self, /, *args: Any, **kwargs: Any) -> Traced:
        """As `jax.jit(f).trace`: the function's jaxpr for these arguments, as the user wrote it."""
        return Traced(self, self._plain.trace(*args, **kwargs), args, kwargs)

    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """As `jax.jit(f).eval_shape`: shapes and types of the results. No effect happens."""
        return self._plain.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """As `jax.jit(f).clear_cache`: forgets what was compiled."""
        self._plain.clear_cache()
        self._threaded.clear_cache()


class _Stage:
    """A stage of compilation: JAX's own object, with what differs."""

    def __init__(self, function: JitFunction, stage: Any):
        self._function = function
        self._stage = stage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)


class Traced(_Stage):
    """What `JitFunction.trace` returns."""

    def __init__(self, function: JitFunction, stage: Any, args: tuple[Any, ...], kwargs: dict[str, Any]):
        super().__init__(function, stage)
        self._arguments = args, kwargs

    def lower(self, **options: Any) -> Lowered:
        if "_private_parameters" in options:  # of `jax.export`, which would take the tokens for arguments
            raise NotImplementedError(errors.MSG_JAX_EXPORT.format(program=self._function._name))
        args, kwargs = self._arguments
        threaded = self._function._threaded.trace(RUNTIME_TOKEN, *args, **kwargs)
        return Lowered(self._function, threaded.lower(**options))


class _ThreadedStage(_Stage):
    """A stage of the threaded function, without the tokens among what it says of inputs and outputs."""

    _INPUTS = ("args_info", "in_avals", "input_shardings", "input_formats")
    _OUTPUTS = ("out_info", "output_shardings", "output_formats")

    def __getattr__(self, name: str) -> Any:
        if name == "in_tree":
            return jax.tree.structure(self.args_info)
        if name == "out_tree":
            return jax.tree.structure(self.out_info)
        value = getattr(self._stage, name)
        if name in self._INPUTS:
            (_, *args), kwargs = value
            return tuple(args), kwargs
        if name in self._OUTPUTS:
            return value[0]
        if name == "donate_argnums":
            return tuple(n - 1 for n in value)
        return value


class Lowered(_ThreadedStage):
    """What `JitFunction.lower` returns."""

    def compile(self, *args: Any, **options: Any) -> Compiled:
        return Compiled(self._function, self._stage.compile(*args, **options))


class Compiled(_ThreadedStage, Dispatcher):
    """What `Lowered.compile` returns. Called with the arguments; the runtime token is supplied."""

    def __init__(self, function: JitFunction, stage: Any):
        _Stage.__init__(self, function, stage)
        Dispatcher.__init__(self, function._name, function._plain, stage)

    @functools.cached_property
    def _executable(self) -> Executable:
        """What `jax.experimental.serialize_executable` takes."""
        issued = tuple(self._stage.out_info[1])
        return Executable(self._stage._executable, issued, self._function._name, self._stage.in_tree.num_leaves)


def _jit_threaded(fun: Callable[..., Any], options: dict[str, Any]) -> Any:
    """The jitted function of (runtime token, *args) that returns (results, {ProgramTraits: output token})."""
    return jit_with_tokens(_threaded_function(fun, options), _signature(fun), options)


_threaded_functions: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
"""User's function -> options -> threaded function. JAX compiles a function once however often it is jitted, and so must
we: the same function and options give the same threaded function. Its values do not keep the user's function alive."""


def _threaded_function(fun: Callable[..., Any], options: dict[str, Any]) -> Any:
    if type(fun).__eq__ is not object.__eq__:
        return _make_threaded(lambda: fun, fun, options)  # two that are equal need not be one
    try:
        key = frozenset(options.items())
        known = _threaded_functions.setdefault(fun, {})
    except TypeError:  # a function that cannot be referred to weakly, or options that cannot be compared
        return _make_threaded(lambda: fun, fun, options)
    if key not in known:
        known[key] = _make_threaded(weakref.ref(fun), fun, options)
    return known[key]


def _make_threaded(find_fun: Callable[[], Any], fun: Callable[..., Any], options: dict[str, Any]) -> Any:
    @functools.wraps(fun, updated=())
    def threaded(token: Any, /, *args: Any, **kwargs: Any) -> Any:
        by_hand = not isinstance(token, compat.Tracer)
        begin_trace(by_hand)
        if by_hand:  # JAX does that to find where a NaN came from: effects happen as they do without jit
            return find_fun()(*args, **kwargs), {}
        traced = jax.jit(find_fun(), **options).trace(*args, **kwargs)
        return _run_traced(traced, args, kwargs, lambda jaxpr, flat: run_threaded(jaxpr, token, flat))

    _hide_token(fun, threaded)
    return threaded


def _run_traced(traced: Any, args: Any, kwargs: Any, run: Callable[[Any, list[Any]], tuple[list[Any], Any]]) -> Any:
    """The results of `run(jaxpr, flat arguments)`, the first of them as the traced function returns it."""
    # What was static is no tracer; the rest comes in the order of the jaxpr's inputs.
    flat = [leaf for leaf in jax.tree.leaves((args, kwargs)) if isinstance(leaf, compat.Tracer)]
    outs, rest = run(traced.jaxpr, flat)
    return jax.tree.unflatten(jax.tree.structure(traced.out_info), outs), rest


def jit_with_all_tokens(function: JitFunction, keys: tuple[str, ...]) -> Any:
    """The jitted function of (tokens, *args) that returns (results, tokens): a program that others can be part of.

    It does not close. There is one token under each key.
    """
    fun, options = function._fun, function._options

    @functools.wraps(fun, updated=())
    def threaded(tokens: tuple[Any, ...], /, *args: Any, **kwargs: Any) -> Any:
        def run(jaxpr: Any, flat: list[Any]) -> Any:
            after, outs = thread_tokens(jaxpr, dict(zip(keys, tokens, strict=True)), flat)
            return outs, tuple(after[key] for key in keys)

        return _run_traced(function._plain.trace(*args, **kwargs), args, kwargs, run)

    _hide_token(fun, threaded)
    return jit_with_tokens(threaded, _signature(fun), options)


def run_threaded(jaxpr: Any, token: Any, args: Sequence[Any]) -> tuple[list[Any], dict[ProgramTraits, Any]]:
    """Evaluates a whole program with tokens that begin at the runtime token."""
    effects = effects_of(jaxpr.effects)
    keys = token_keys(effects)
    compat.need_devices([record_p, close_p])  # each process counts its own
    # The domains of one program are told apart by the lowest bits of the stream, in the order of their keys.
    tokens = {key: token if i == 0 else token + np.array([i, 0, 0, 0], np.uint32) for i, key in enumerate(keys)}
    closes = bool(keys) and ends_with_record(jaxpr)
    tokens, outs = thread_tokens(jaxpr, tokens, args, Edges(closes=closes))
    drain.start()
    custom_calls = has_custom_calls(jaxpr.jaxpr)
    if not tokens:
        traits = ProgramTraits((), False, False, custom_calls)
        return outs, {traits: close_p.bind(token)} if custom_calls else {}
    names = tuple(sorted({effect.name for effect in effects}))
    sites = sites_in(jaxpr)
    calls, awaits = jax_calls_in(jaxpr)
    calls = calls or any(isinstance(site.content, HostCall) for site in sites)
    awaits = awaits or any(site.results is not None for site in sites)
    traits = ProgramTraits(names, calls, awaits, custom_calls)
    return outs, {traits: tokens[keys[0]] if closes else close_p.bind(*tokens.values())}


def _signature(fun: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(fun)
    except (ValueError, TypeError):
        return None


def _hide_token(fun: Callable[..., Any], threaded: Any) -> None:
    """Gives the threaded function the name and signature of the user's, with the token ahead."""
    del threaded.__wrapped__
    inner = fun
    while isinstance(inner, functools.partial):
        inner = inner.func
        threaded.__name__ = getattr(inner, "__name__", threaded.__name__)
    if (signature := _signature(fun)) is not None:
        token = inspect.Parameter(TOKEN_NAME, inspect.Parameter.POSITIONAL_ONLY)
        threaded.__signature__ = signature.replace(parameters=[token, *signature.parameters.values()])
