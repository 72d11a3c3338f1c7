"""`jax.jit` with a runtime token ahead of the arguments and output tokens behind the results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypedDict

import jax

from effects._jax import arguments_of_jit, count_fast_paths, forget_fast_paths


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
    threaded: Callable[..., Any], jitted: Any, options: dict[str, Any], jit: Callable[..., Any] = jax.jit
) -> Any:
    """Jits a function of (runtime token, *args) that returns (results, output tokens).

    Args:
        threaded: The function.
        jitted: What `jax.jit` has made of the function without tokens, from these options.
        options: The options.
        jit: What jits it, with the options for the function with tokens.
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

    `jax.jit` takes it as a prefix of the arguments. With a token ahead there is no such prefix, so that each number of
    arguments has a jitted function of its own.
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
