"""The programs of a function: with tokens for arguments with which it has effects, and JAX's own for all others.

Which arguments these are is known when the function has been traced for them. Either kind is called with any arguments,
and returns `ELSEWHERE` where the other is to be called. Neither then has a fast path for them.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import jax

from effects import _jax
from effects.dispatch.calling.compiled_by_libraries import call_and_warn
from effects.dispatch.calling.options import jit_with_tokens, signature_of
from effects.dispatch.calling.threaded import checked_jaxpr, make_threaded, trace
from effects.dispatch.draining.runtime import runtime
from effects.lowering.others import others
from effects.lowering.summary import Summary, summarize

ELSEWHERE: Any = object()
"""What a call returns that has done nothing: a program of the other kind is to be called."""


def programs_of(fun: Callable[..., Any], options: dict[str, Any]) -> Programs:
    """The programs of a function with options of `jax.jit`.

    JAX compiles a function once however often it is jitted, and so must we: the same function and options have the same
    programs.
    """
    if type(fun).__eq__ is not object.__eq__:
        return Programs(lambda: fun, fun, options)  # two that are equal need not be one
    try:
        key = frozenset(options.items())
        known = _known.setdefault(fun, {})
    except TypeError:  # a function that cannot be referred to weakly, or options that cannot be compared
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
        jax.jit(fun, **options)  # which says what is wrong with these, if anything
        traceable = Traceable(find_fun, fun)
        self.traced: Any = jax.jit(traceable, **options)
        threaded = make_threaded(traceable, self.traced)
        self.threaded: Any = jit_with_tokens(threaded, self.traced, options, self._jit_threaded)
        self.plain: Any = _jax.jit_where(
            self.traced, lambda *_, **__: ELSEWHERE, self._is_plain, ELSEWHERE, lambda: others().tracing()
        )

    def _jit_threaded(self, threaded: Callable[..., Any], **options: Any) -> Any:
        def takes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
            return self._has_effects(args[1:], kwargs)

        return _jax.jit_where(jax.jit(threaded, **options), threaded, takes, (ELSEWHERE, {}))

    def _is_plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return _jax.runs_now() and not self._has_effects(args, kwargs)

    def _has_effects(self, args: Any, kwargs: Any) -> bool:
        found = self._summary(args, kwargs)
        return bool(found.all_effects or found.handlers)

    def awaits_results(self, args: Any, kwargs: Any) -> bool:
        """Whether the program for these arguments waits for what callbacks return."""
        return self._summary(args, kwargs).awaits_results

    def _summary(self, args: Any, kwargs: Any) -> Summary:
        return summarize(checked_jaxpr(trace(self.traced, args, kwargs)))


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
    def __wrapped__(self) -> Any:  # by which JAX says where the function stands
        return _without_partial(self.find_fun())

    def __repr__(self) -> str:  # by which JAX's messages call the function
        return repr(self.__wrapped__)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        runtime.streams.begin_trace()
        return call_and_warn(self.find_fun(), args, kwargs)


def _without_partial(fun: Any) -> Any:
    while isinstance(fun, functools.partial):
        fun = fun.func
    return fun
