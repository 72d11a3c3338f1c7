"""`fx.jit`: like `jax.jit`, for functions with effects."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import jax

from effects._api import jax_callbacks
from effects.dispatch.calling.dispatcher import Dispatcher
from effects.dispatch.calling.stages import Lowered, Traced
from effects.dispatch.calling.threaded import RUNTIME_TOKEN, jit_threaded, trace

MSG_NOT_CALLABLE = (
    "`fx.jit` was given {fun!r}, which cannot be called. What is jitted is a function, as for `jax.jit`. Pass a "
    "callable: `fx.jit(f)`."
)


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
        raise TypeError(MSG_NOT_CALLABLE.format(fun=fun))
    return JitFunction(fun, options)


class JitFunction(Dispatcher):
    """A function that `fx.jit` compiled."""

    def __init__(self, fun: Callable[..., Any], options: dict[str, Any]):
        functools.update_wrapper(self, fun, updated=())  # what a callable object holds is not ours
        name = getattr(fun, "__qualname__", None) or getattr(fun, "__name__", None) or type(fun).__name__
        super().__init__(name, jax.jit(fun, **options), jit_threaded(fun, options))
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
        return Traced(self, trace(self._without_tokens, args, kwargs), args, kwargs)

    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """As `jax.jit(f).eval_shape`: shapes and types of the results. No effect happens."""
        with jax_callbacks.tracing():
            return self._without_tokens.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """As `jax.jit(f).clear_cache`: forgets what was compiled."""
        self._without_tokens.clear_cache()
        self._threaded.clear_cache()
