"""Functions that `jax.jit` has returned: `jax._src.pjit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax._src.sharding_impls import UNSPECIFIED

PjitFunction: Any = type(jax.jit(lambda: None))

_NUMBERS = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")
_SHARDINGS = ("in_shardings", "out_shardings")


def options_of_jit(jitted: Any) -> tuple[Callable[..., Any], dict[str, Any]] | None:
    """The function and the options that `jax.jit` was given, those that change what a call means or keeps alive; None
    if `jitted` is nothing that it has returned."""
    if not isinstance(jitted, PjitFunction):
        return None
    info: Any = jitted._jit_info
    options = {name: value for name in _NUMBERS if (value := getattr(info, name))}
    for name in _SHARDINGS:
        leaves = [None if leaf is UNSPECIFIED else leaf for leaf in getattr(info, f"{name}_leaves")]
        if any(leaf is not None for leaf in leaves):
            options[name] = jax.tree.unflatten(getattr(info, f"{name}_treedef"), leaves)
    if info.compiler_options_kvs:
        options["compiler_options"] = dict(info.compiler_options_kvs)
    return jitted._fun, options
