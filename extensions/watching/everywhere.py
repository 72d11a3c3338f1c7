"""`effects run --watch`: what `jax.jit` compiles is watched."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from effects.dispatch.calling.install import install_as
from effects.dispatch.calling.jit import jit
from effects.extensions.watching.api import watch

_is_watched = jax.make_user_context(False)
"""True while a watched function is traced. It is part of the keys of JAX's caches."""


def install_watching() -> None:
    """Makes `jax.jit` an `fx.jit` that watches each outermost function."""
    install_as(_jit)


@functools.wraps(jit)
def _jit(*fun: Any, **options: Any) -> Any:
    if len(fun) != 1:
        jit(*fun, **options)  # raises JAX's error for wrong options
        return functools.partial(_jit, **options)
    try:
        return jit(_watched(*fun), **options)
    except TypeError:  # not callable, or not hashable
        return jit(*fun, **options)


@functools.lru_cache(1024)
def _watched(fun: Callable[..., Any]) -> Callable[..., Any]:
    """The watched function. It is cached, since JAX compiles the same function once, however often it is jitted."""
    watching = watch(fun)

    @functools.wraps(fun)
    def outermost(*args: Any, **kwargs: Any) -> Any:
        if _is_watched.value:
            return fun(*args, **kwargs)
        with _is_watched(True):
            return watching(*args, **kwargs)

    return outermost
