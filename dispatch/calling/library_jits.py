"""`fx.filter_jit` and `fx.nnx_jit`: the `jit` of a library, for functions with effects."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from effects import _lazy
from effects.dispatch.calling.jit import jit

P = ParamSpec("P")
R = TypeVar("R")


@overload
def filter_jit(fun: Callable[P, R], /, **options: Any) -> Callable[P, R]: ...
@overload
def filter_jit(fun: None = None, /, **options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def filter_jit(fun: Any = None, /, **options: Any) -> Any:
    """Compiles a function with effects as `equinox.filter_jit` does: arrays are traced, everything else is static.

    `fx.jit(equinox.filter_jit(fun))` is the same. What `equinox.error_if` raises is raised as by Equinox.

    Args:
        fun: The function. Without it, a decorator is returned.
        **options: As for `equinox.filter_jit`: `donate`.

    Returns:
        The compiled function, an Equinox module.

    Example:
        >>> import effects as fx
        >>> @fx.filter_jit
        ... def scale(x, by):  # by: a string, which Equinox holds static
        ...     fx.print("{} {by}", x, by=by)
        ...     return x * {"two": 2}[by], by
        >>> import jax.numpy as jnp
        >>> scale(jnp.float32(3), "two")
        (Array(6., dtype=float32), 'two')
        >>> fx.effects_barrier()
        3.0 two
    """
    if fun is None:
        return functools.partial(filter_jit, **options)
    with _lazy.required_by("fx.filter_jit"):
        import equinox

    return jit(equinox.filter_jit(fun, **options))


@overload
def nnx_jit(fun: Callable[P, R], /, **options: Any) -> Callable[P, R]: ...
@overload
def nnx_jit(fun: None = None, /, **options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def nnx_jit(fun: Any = None, /, **options: Any) -> Any:
    """Compiles a function with effects as `flax.nnx.jit` does: modules are given by reference, and updates are kept.

    `fx.jit(flax.nnx.jit(fun))` is the same.

    Args:
        fun: The function. Without it, a decorator is returned.
        **options: As for `flax.nnx.jit`.

    Returns:
        The compiled function, as `flax.nnx.jit` returns it.

    Example:
        >>> import effects as fx, jax.numpy as jnp
        >>> from flax import nnx
        >>> class Counter(nnx.Module):
        ...     def __init__(self):
        ...         self.count = nnx.Variable(jnp.array(0))
        >>> @fx.nnx_jit
        ... def step(counter):
        ...     counter.count[...] += 1
        ...     fx.print("count {}", counter.count[...])
        >>> counter = Counter()
        >>> step(counter)
        >>> step(counter)
        >>> fx.effects_barrier()
        count 1
        count 2
    """
    if fun is None:
        return functools.partial(nnx_jit, **options)
    with _lazy.required_by("fx.nnx_jit"):
        from flax import nnx

    return jit(nnx.jit(fun, **options))
