"""Functions that `jax.jit` has returned: `jax._src.pjit`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
from jax._src.lib import _jax as _jaxlib
from jax._src.sharding_impls import UNSPECIFIED

PjitFunction: Any = type(jax.jit(lambda: None))

_ARGUMENTS = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")
_SHARDINGS = ("in_shardings", "out_shardings")


def options_of_jit(jitted: Any) -> tuple[Callable[..., Any], dict[str, Any]] | None:
    """The function and the options that `jax.jit` was given, those that change what a call means or keeps alive; None
    if `jitted` is nothing that it has returned."""
    if not isinstance(jitted, PjitFunction):
        return None
    info: Any = jitted._jit_info
    options = {name: value for name in _ARGUMENTS if (value := getattr(info, name))}
    for name in _SHARDINGS:
        leaves = [None if leaf is UNSPECIFIED else leaf for leaf in getattr(info, f"{name}_leaves")]
        if any(leaf is not None for leaf in leaves):
            options[name] = jax.tree.unflatten(getattr(info, f"{name}_treedef"), leaves)
    if info.compiler_options_kvs:
        options["compiler_options"] = dict(info.compiler_options_kvs)
    return jitted._fun, options


def arguments_of_jit(jitted: Any) -> dict[str, tuple[Any, ...]]:
    """Which arguments are static, and which are donated, by number and by name, of what `jax.jit` has returned: it has
    inferred the ones from the others. Negative numbers count from the end of a call's arguments."""
    return {name: getattr(jitted._jit_info, name) for name in _ARGUMENTS}


def jit_where(
    jitted: Any,
    key: Callable[..., Any],
    takes: Callable[[tuple[Any, ...], dict[str, Any]], bool],
    otherwise: Any,
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Any:
    """What is called as `jitted` is, with fast paths of its own, for some arguments.

    Args:
        jitted: What `jax.jit` has returned.
        key: The fast paths are kept for it. Where jit is disabled it is called.
        takes: Asked for arguments of a new kind: whether `jitted` is called with them.
        otherwise: What is returned where it is not.
        around: A context in which it is traced and compiled.
    """

    def call(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool]:
        if not takes(args, kwargs):
            return otherwise, None, False
        with around():
            return jitted._cache_miss(*args, **kwargs)

    made = jitted.__getstate__()
    names = ("static_argnums", "static_argnames", "global_cache_key", "pytree_registry", "shard_arg_fallback", "cache")
    made = _jaxlib.pjit(made["function_name"], key, call, *(made[name] for name in names))
    made.takes, made.around, made.trace, made._fun = takes, around, jitted.trace, key
    return made
