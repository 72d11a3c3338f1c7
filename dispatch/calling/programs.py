"""The programs of a function: with tokens for arguments with which it has effects, and JAX's own for all others.

Which arguments these are is known when the function has been traced for them. Either kind is called with any arguments,
and returns `WRONG_PROGRAM_KIND` where the call belongs to the other kind. JAX then keeps no fast path for these
arguments in either.
"""

from __future__ import annotations

import copy
import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypedDict

import jax
import numpy as np

from effects import _errors as errors
from effects import _jax
from effects._jax import arguments_of_jit, count_fast_paths, forget_fast_paths
from effects._model.effect import domain_number, token_key, token_keys
from effects._model.wire import TOKEN_LENGTH, ProgramTraits
from effects.dispatch.runtime.runtime import runtime
from effects.lowering.holders import conversion
from effects.lowering.native_module import native
from effects.lowering.summary import Summary, summarize
from effects.lowering.tokens import (
    TOKEN_NAME,
    BoundaryMarkers,
    checked_jaxpr,
    close_p,
    last_record_closes,
    record_p,
    records_p,
    thread_tokens,
)

# `jax.jit` with a runtime token ahead of the arguments and output tokens behind the results.


class JitOptions(TypedDict, total=False):
    """The options of `jax.jit`, for type checkers."""

    in_shardings: Any
    out_shardings: Any
    static_argnums: int | Sequence[int] | None
    static_argnames: str | Iterable[str] | None
    donate_argnums: int | Sequence[int] | None
    donate_argnames: str | Iterable[str] | None
    keep_unused: bool
    device: Any
    backend: str | None
    inline: Any
    compiler_options: dict[str, Any] | None


def jit_with_tokens(
    threaded: Callable[..., Any], jitted: Any, options: dict[str, Any], jit: Callable[..., Any] = _jax.jit
) -> Any:
    """Jits a function of (runtime token, *args) that returns (results, output tokens).

    Args:
        threaded: The function.
        jitted: The function without tokens, jitted by `jax.jit` with these options.
        options: The options.
        jit: The function that jits it, with the options for the function with tokens.
    """
    shifted = {**options, **(arguments := arguments_of_jit(jitted))}
    for name in ("static_argnums", "donate_argnums"):
        shifted[name] = tuple(n + 1 if n >= 0 else n for n in arguments[name])
    if options.get("out_shardings") is not None:
        shifted["out_shardings"] = (options["out_shardings"], None)
    given = options.get("in_shardings")
    if given is None:
        return jit(threaded, **shifted)
    if isinstance(given, (tuple, list)):
        return jit(threaded, **{**shifted, "in_shardings": (None, *given)})
    return _OneSharding(threaded, frozenset(arguments["static_argnums"]), given, shifted, jit)


def signature_of(fun: Callable[..., Any]) -> inspect.Signature | None:
    """A function's signature, if Python knows one."""
    try:
        return inspect.signature(fun)
    except (ValueError, TypeError):
        return None


class _OneSharding:
    """The jitted function where one sharding is given for all arguments, however many a call has.

    `jax.jit` takes it as a prefix of the arguments. The token before them is no such prefix, so there is a jitted
    function for each number of arguments.
    """

    def __init__(
        self,
        threaded: Callable[..., Any],
        static: frozenset[int],
        sharding: Any,
        shifted: dict[str, Any],
        jit: Callable[..., Any],
    ):
        """`static`: the positions of static arguments; negative ones count from the end of a call's arguments."""
        self._threaded = threaded
        self._sharding = sharding
        self._shifted = shifted
        self._jit = jit
        self._static = static
        self._jitted: dict[int, Any] = {}  # by the number of positional arguments that are not static

    def __call__(self, token: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._for(args)(token, *args, **kwargs)

    def lower(self, token: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._for(args).lower(token, *args, **kwargs)

    def trace(self, token: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._for(args).trace(token, *args, **kwargs)

    def takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return self._for(args[1:]).takes(args, kwargs)

    def clear_cache(self) -> None:
        for jitted in self._jitted.values():
            jitted.clear_cache()

    def _cache_miss(self, token: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._for(args)._cache_miss(token, *args, **kwargs)

    def _cache_size(self) -> int:
        return sum(map(count_fast_paths, list(self._jitted.values())))

    def _clear_cache(self) -> None:
        for jitted in self._jitted.values():
            forget_fast_paths(jitted)

    def _for(self, args: tuple[Any, ...]) -> Any:
        count = sum(self._static.isdisjoint((n, n - len(args))) for n in range(len(args)))
        if count not in self._jitted:
            shardings = (None, *[self._sharding] * count)
            self._jitted[count] = self._jit(self._threaded, **{**self._shifted, "in_shardings": shardings})
        return self._jitted[count]


# The threaded function: the user's, with a runtime token ahead of its arguments and output tokens behind its results.
#
# It is traced as `jax.jit` would trace it, and tokens are threaded through its jaxpr. The result is an ordinary
# function in which JAX sees no effects, so it takes JAX's fast dispatch path.

RUNTIME_TOKEN = jax.ShapeDtypeStruct((TOKEN_LENGTH,), np.uint32)


def runtime_token_for(args: Any, kwargs: Any) -> jax.ShapeDtypeStruct:
    """The runtime token of a call with these arguments, on their devices."""
    if (sharding := _jax.sharding_of_call(args, kwargs)) is None:
        return RUNTIME_TOKEN
    return RUNTIME_TOKEN.update(sharding=_jax.replicated(sharding))


def make_threaded(traceable: Any, jitted: Any) -> Any:
    """The function of (runtime token, *args) that returns (results, {ProgramTraits: output token}).

    `jitted`: the user's function, `traceable`, jitted by `jax.jit`.
    """

    @functools.wraps(traceable, updated=())
    def threaded(token: Any, /, *args: Any, **kwargs: Any) -> Any:
        by_hand = not isinstance(token, _jax.Tracer)
        runtime.streams.begin_trace(by_hand)
        if by_hand:  # JAX does this to locate a NaN: effects happen as without jit
            return traceable.find_fun()(*args, **kwargs), {}
        traced = trace(jitted, args, kwargs)
        return run_traced(traced, args, kwargs, lambda jaxpr, flat: run_threaded(jaxpr, token, flat))

    _hide_token(traceable, threaded)
    return threaded


def trace(traceable: Any, args: Any, kwargs: Any) -> Any:
    """Traces a jitted function, with JAX's own callbacks as effects of ours."""
    with conversion().tracing():
        return traceable.trace(*args, **kwargs)


def run_traced(traced: Any, args: Any, kwargs: Any, run: Callable[[Any, list[Any]], tuple[list[Any], Any]]) -> Any:
    """The results of `run(jaxpr, flat arguments)`, the first of them as the traced function returns it."""
    # Static arguments are no tracers; the others come in the order of the jaxpr's inputs.
    flat = [leaf for leaf in jax.tree.leaves((args, kwargs)) if isinstance(leaf, _jax.Tracer)]
    flat = [*_jax.tracers_closed_over(traced), *flat]
    outs, rest = run(checked_jaxpr(traced.jaxpr), flat)
    return jax.tree.unflatten(traced.out_tree, outs), rest


def jit_with_all_tokens(fun: Callable[..., Any], options: dict[str, Any], keys: tuple[str, ...]) -> Any:
    """The jitted function of (tokens, *args) that returns (results, tokens): a program that others can be part of.

    It does not close. There is one token under each key.
    """
    traceable = _jax.jit(fun, **options)

    @functools.wraps(fun, updated=())
    def threaded(tokens: tuple[Any, ...], /, *args: Any, **kwargs: Any) -> Any:
        def run(jaxpr: Any, flat: list[Any]) -> Any:
            after, outs = thread_tokens(jaxpr, dict(zip(keys, tokens, strict=True)), flat, once=True)
            return outs, tuple(after[key] for key in keys)

        return run_traced(trace(traceable, args, kwargs), args, kwargs, run)

    _hide_token(fun, threaded)
    return jit_with_tokens(threaded, traceable, options)


def run_threaded(jaxpr: Any, token: Any, args: Sequence[Any]) -> tuple[list[Any], dict[ProgramTraits, Any]]:
    """Evaluates a whole program with tokens that begin at the runtime token."""
    summary = summarize(jaxpr)
    keys = token_keys(summary.effects)
    _jax.need_devices([record_p, records_p, close_p])  # each process counts its own effects
    # Domains are the lowest bits of the stream number.
    tokens = {key: token + np.array([i, 0, 0, 0], np.uint32) if (i := domain_number(key)) else token for key in keys}
    closes = bool(keys) and last_record_closes(jaxpr)
    tokens, outs = thread_tokens(jaxpr, tokens, args, BoundaryMarkers(closes=closes), once=True)
    traits = traits_of(summary)
    if tokens:
        return outs, {traits: tokens[keys[0]] if closes else close_p.bind(*tokens.values())}
    return outs, {traits: close_p.bind(token)} if traits.has_custom_calls else {}


def traits_of(summary: Summary) -> ProgramTraits:
    """The traits of a program, which its call returns."""
    names = tuple(sorted({effect.name for effect in summary.effects}))
    keys = token_keys(summary.effects)
    domains = {token_key(site.effect) for site in summary.handlers & summary.sites if site.effect.ordered}
    ordered = tuple(domain_number(key) for key in keys if key in domains)
    called = tuple(sorted(f"`{site.content.title}` at {site.where}" for site in summary.handlers))
    return ProgramTraits(names, summary.has_callbacks, summary.awaits_results, bool(summary.handlers), ordered, called)


def _hide_token(fun: Callable[..., Any], threaded: Any) -> None:
    """Gives the threaded function the name and signature of the user's, with the token ahead."""
    del threaded.__wrapped__
    threaded.__name__ = getattr(_without_partial(fun), "__name__", threaded.__name__)
    if (signature := signature_of(fun)) is not None:
        token = inspect.Parameter(TOKEN_NAME, inspect.Parameter.POSITIONAL_ONLY)
        threaded.__signature__ = signature.replace(parameters=[token, *signature.parameters.values()])


# Functions compiled by a library: `eqx.filter_jit`, `nnx.jit` and the like.
#
# Such a function sorts its arguments, calls the result of `jax.jit`, and converts the outputs. Only the middle part
# becomes a program of ours.

MSG_OPTIONS = (
    "`fx.jit` was given {fun}, which has been compiled already, and the options {names}. A compiled function keeps its "
    "own options. Pass the options where it is compiled, or pass the Python function to `fx.jit`."
)

_PROGRAMS = {"equinox": "_cached", "flax": "jitted_fn"}
"""By library: the attribute of its compiled functions that holds the result of `jax.jit`."""


def with_program_of_ours(fun: Any, options: dict[str, Any], jit: Callable[..., Any]) -> Callable[..., Any] | None:
    """A function like `fun`, which was compiled elsewhere, with a program that `jit` makes; None if `fun` was not."""
    library = type(fun).__module__.partition(".")[0]
    program = getattr(fun, name, None) if (name := _PROGRAMS.get(library)) else fun
    known = _jax.options_of_jit(program)
    is_ours = program is not fun and isinstance(program, native.QuickCalls)  # `jax.jit` was ours: `fx.install`
    if not is_ours and (known is None or (program is fun and (options or not known[1]))):
        return None  # a `jax.jit` function is called unchanged, with the outer jit's options, as JAX does
    if options:
        raise errors.type_error(MSG_OPTIONS.format(fun=fun, names=", ".join(f"`{name}`" for name in options)))
    if known is None:
        return fun
    inner, options = known
    if program is fun:
        # `pjit` finds the mesh of partition specs in the context of its call.
        of_context = any(isinstance(x, jax.P) for x in jax.tree.leaves(options))
        return None if of_context else jit(inner, **options)
    made = copy.copy(fun)
    if getattr(inner, "ctxtag", None) is fun:  # nnx's identity of a function's calls
        inner = copy.copy(inner)
        inner.ctxtag = made
    object.__setattr__(made, name, jit(inner, **options))
    return made


WRONG_PROGRAM_KIND: Any = object()
"""The result of a call that has done nothing: a program of the other kind must be called."""


def programs_of(fun: Callable[..., Any], options: dict[str, Any]) -> Programs:
    """The programs of a function with options of `jax.jit`.

    JAX compiles a function once however often it is jitted, and so must we: the same function and options have the same
    programs.
    """
    if type(fun).__eq__ is not object.__eq__:
        return Programs(lambda: fun, fun, options)  # equal ones need not be identical
    try:
        key = frozenset(options.items())
        known = _known.setdefault(fun, {})
    except TypeError:  # no weak reference to the function, or options that cannot be compared
        return Programs(lambda: fun, fun, options)
    if key not in known:
        known[key] = Programs(weakref.ref(fun), fun, options)
    return known[key]


_known: weakref.WeakKeyDictionary[Any, dict[Any, Programs]] = weakref.WeakKeyDictionary()
"""User's function -> options -> programs. These do not keep the function alive."""


class Programs:
    """The programs of a function.

    Attributes:
        traced: The jitted function of (*args), with effects as they are traced.
        threaded: The jitted function of (runtime token, *args) that returns (results, {ProgramTraits: output token}).
        plain: The jitted function of (*args).
    """

    def __init__(self, find_fun: Callable[[], Any], fun: Callable[..., Any], options: dict[str, Any]):
        """`find_fun`: finds `fun`, which is not kept alive."""
        _jax.jit(fun, **options)  # raises JAX's error for wrong options
        traceable = Traceable(find_fun, fun)
        self.traced: Any = _jax.jit(traceable, **options)
        threaded = make_threaded(traceable, self.traced)
        self.threaded: Any = jit_with_tokens(threaded, self.traced, options, self._jit_threaded)
        self.plain: Any = _jax.guarded_jit(
            self.traced,
            lambda *_, **__: WRONG_PROGRAM_KIND,
            self._is_plain,
            WRONG_PROGRAM_KIND,
            lambda: conversion().tracing(),
        )

    def _jit_threaded(self, threaded: Callable[..., Any], **options: Any) -> Any:
        return _jax.guarded_jit(
            _jax.jit(threaded, **options),
            threaded,
            lambda args, kwargs: self._has_effects(args[1:], kwargs),
            (WRONG_PROGRAM_KIND, {}),
        )

    def _is_plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return _jax.runs_now() and not self._has_effects(args, kwargs)

    def _has_effects(self, args: Any, kwargs: Any) -> bool:
        found = self._summary(args, kwargs)
        return bool(found.all_effects or found.handlers)

    def traits(self, args: Any, kwargs: Any) -> ProgramTraits:
        """Returns the traits of the program for these arguments."""
        return traits_of(self._summary(args, kwargs))

    def _summary(self, args: Any, kwargs: Any) -> Summary:
        return summarize(checked_jaxpr(trace(self.traced, args, kwargs).jaxpr))


class Traceable:
    """A user's function as it is traced. It does not keep that function alive."""

    def __init__(self, find_fun: Callable[[], Any], fun: Callable[..., Any]):
        self.find_fun = find_fun
        named = _without_partial(fun)
        for name in functools.WRAPPER_ASSIGNMENTS:
            if hasattr(named, name):
                setattr(self, name, getattr(named, name))
        if (signature := signature_of(fun)) is not None:
            self.__signature__ = signature

    @property
    def __wrapped__(self) -> Any:  # for JAX's source lines
        return _without_partial(self.find_fun())

    def __repr__(self) -> str:  # the function's name in JAX's messages
        return repr(self.find_fun())

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        runtime.streams.begin_trace()
        return self.find_fun()(*args, **kwargs)


def _without_partial(fun: Any) -> Any:
    while isinstance(fun, functools.partial):
        fun = fun.func
    return fun
