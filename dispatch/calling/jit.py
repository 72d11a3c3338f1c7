"""`fx.jit`: like `jax.jit`, for functions with effects."""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

import jax

from effects._jax import api_boundary, patches
from effects.dispatch.calling.compiled_by_libraries import with_program_of_ours
from effects.dispatch.calling.dispatcher import Dispatcher
from effects.dispatch.calling.options import JitOptions
from effects.dispatch.calling.programs import programs_of
from effects.dispatch.calling.threaded import runtime_token_for, trace
from effects.lowering.others import others

if TYPE_CHECKING:
    from effects.dispatch.calling.stages import Lowered, Traced

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)
S = TypeVar("S")


@overload
def jit(fun: Callable[P, R], /, **options: Unpack[JitOptions]) -> JitFunction[P, R]: ...
@overload
def jit(fun: None = None, /, **options: Unpack[JitOptions]) -> Callable[[Callable[P, R]], JitFunction[P, R]]: ...
def jit(fun: Any = None, /, **options: Any) -> Any:
    """Compiles a function with effects. Takes the options of `jax.jit`; the result has its methods.

    Effects appear on the host in program order: within the program, and after those of the programs that the same
    thread called before. Calls return as early as those of `jax.jit` do. Under another transformation the function is
    transparent, and its effects are the outer program's. JAX's own callbacks, such as `jax.debug.print` and
    `io_callback`, take part as if they were ours.

    Args:
        fun: The function. Without it, a decorator is returned. It may have been compiled already, by `jax.jit`,
            `equinox.filter_jit` or `flax.nnx.jit`: it keeps the options that it has, and is called as before.
            Of these, only what `jax.jit` has compiled takes further options, which are those of a jit around it.
        **options: As for `jax.jit`: `static_argnums`, `donate_argnames`, `in_shardings`, ...

    Returns:
        The compiled function. It also looks like one of `jax.jit`: `<PjitFunction of <function f at 0x...>>`.

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
    if (taken := with_program_of_ours(fun, options, jit)) is not None:
        return taken
    return JitFunction(fun, options)


class JitFunction(Dispatcher[P, R]):
    """A function that `fx.jit` compiled."""

    def __init__(self, fun: Callable[..., Any], options: dict[str, Any]):
        functools.update_wrapper(self, fun)
        self._fun, self._options = fun, options
        name = getattr(fun, "__qualname__", None) or getattr(fun, "__name__", None) or type(fun).__name__
        self._referable = fun = _weakly_referable(fun)  # programs do not keep it alive
        programs = programs_of(fun, options)
        super().__init__(name, programs.traced, programs.threaded, programs.awaits_results, programs.plain)

    @overload
    def __get__(self, instance: None, owner: Any = None) -> JitFunction[P, R]: ...
    @overload
    def __get__(self: JitFunction[Concatenate[S, Q], R], instance: S, owner: Any = None) -> Callable[Q, R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        try:
            return f"<PjitFunction of {vars(self)['__wrapped__']!r}>"
        except Exception:  # of the user's function, which may also have been taken away
            return "<PjitFunction>"

    def __getstate__(self) -> dict[str, Any]:
        return self._without_tokens.__getstate__()

    def __reduce__(self) -> Any:
        users = {name: value for name, value in vars(self).items() if name not in _OURS}
        return JitFunction, (self._fun, self._options), users

    def __deepcopy__(self, memo: dict[int, Any]) -> JitFunction[P, R]:
        _, _, users = self.__reduce__()
        copied = JitFunction(copy.deepcopy(self._fun, memo), self._options)  # devices among the options are one
        vars(copied).update(copy.deepcopy(users, memo))
        return copied

    @api_boundary
    def lower(self, /, *args: Any, **kwargs: Any) -> Lowered:
        """As `jax.jit(f).lower`: the program for these arguments, tokens included, not yet compiled."""
        from effects.dispatch.calling.stages import Lowered

        token = runtime_token_for(args, kwargs)
        return Lowered(self, self._threaded.trace(token, *args, **kwargs).lower())

    @api_boundary
    def trace(self, /, *args: Any, **kwargs: Any) -> Traced:
        """As `jax.jit(f).trace`: the function's jaxpr for these arguments, as the user wrote it."""
        from effects.dispatch.calling.stages import Traced

        return Traced(self, trace(self._without_tokens, args, kwargs), args, kwargs)

    @api_boundary
    def eval_shape(self, /, *args: Any, **kwargs: Any) -> Any:
        """As `jax.jit(f).eval_shape`: shapes and types of the results. No effect happens."""
        with others().tracing():
            return self._without_tokens.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """As `jax.jit(f).clear_cache`: forgets what was compiled."""
        self._without_tokens.clear_cache()
        self._threaded.clear_cache()
        self._plain.clear_cache()

    def _cache_size(self) -> int:
        """As `jax.jit(f)._cache_size`: for how many kinds of arguments calls take the fast path. On several
        devices a kind that is met late may make those before it take it anew."""
        return self._threaded._cache_size() + self._plain._cache_size()


_OURS = frozenset(
    f"_{name}"
    for name in ("caller", "fun", "name", "options", "plain", "plain_caller", "quick", "referable", "threaded")
) | {"_awaits_results", "_without_tokens"}
"""The attributes that a jitted function has for itself. The others are those of the user's function, and what the user
has set."""


def _weakly_referable(fun: Callable[..., Any]) -> Callable[..., Any]:
    """The function, or if it cannot be referred to weakly what raises the `TypeError` of JAX, which itself crashes the
    second time. What `jax.jit` refuses to begin with is left to it."""
    try:
        weakref.ref(fun)
        return fun
    except TypeError:
        if not callable(fun) or isinstance(fun, staticmethod):
            return fun

        @functools.wraps(fun, updated=())
        def refuse(*args: Any, **kwargs: Any) -> Any:
            if not jax.config.jax_disable_jit:
                weakref.ref(fun)
            return fun(*args, **kwargs)

        return refuse


@patches.implements("eval_shape")
@functools.cache  # what JAX has under two names stays one
def _eval_shape_as_of_jit(eval_shape: Any) -> Any:
    @functools.wraps(eval_shape)
    def of_jitted(fun: Any, *args: Any, **kwargs: Any) -> Any:
        return fun.eval_shape(*args, **kwargs) if isinstance(fun, JitFunction) else eval_shape(fun, *args, **kwargs)

    of_jitted.__module__ = __name__
    return of_jitted
