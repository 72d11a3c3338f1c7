"""Functions that a library has compiled, with `eqx.filter_jit`, `nnx.jit` and their siblings.

Such a function sorts its arguments, calls what `jax.jit` returned, and makes of that what the user gets. All of it
stays the library's: only what is called in between becomes a program of ours.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax

from effects import _jax

MSG_OPTIONS = (
    "`fx.jit` was given {fun}, which has been compiled already, and the options {names}. What a library has "
    "compiled keeps the options that it has. Give them there, or pass the function itself."
)
MSG_LOST_UPDATES = (
    "`{function}` changed an nnx module that it was given by value. As with `jax.jit`, it has a copy of its arguments, "
    "and the module of the caller stays as it was. Use `fx.nnx_jit`, which keeps updates, or return the module."
)

_PROGRAMS = {"equinox": "_cached", "flax": "jitted_fn"}
"""By library: the attribute of what it has compiled that `jax.jit` returned."""


def with_program_of_ours(fun: Any, options: dict[str, Any], jit: Callable[..., Any]) -> Callable[..., Any] | None:
    """The same as what was compiled elsewhere, with a program that `jit` makes; None if `fun` was not."""
    library = type(fun).__module__.partition(".")[0]
    program = getattr(fun, name, None) if (name := _PROGRAMS.get(library)) else fun
    known = _jax.options_of_jit(program)
    if known is None or (program is fun and (options or not known[1])):
        return None  # what `jax.jit` has compiled is called as it is: with options of the outer jit, as JAX does
    if options:
        raise TypeError(MSG_OPTIONS.format(fun=fun, names=", ".join(f"`{name}`" for name in options)))
    inner, options = known
    if program is fun:
        # Partition specs are of a mesh that `pjit` finds in the context of its call.
        of_context = any(isinstance(x, jax.P) for x in jax.tree.leaves(options))
        return None if of_context else jit(inner, **options)
    made = copy.copy(fun)
    if getattr(inner, "ctxtag", None) is fun:  # by which nnx knows the calls of one function
        inner = copy.copy(inner)
        inner.ctxtag = made
    object.__setattr__(made, name, jit(inner, **options))
    return made


def call_and_warn(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a function that is traced, and warns if it changes an nnx module among its arguments in vain."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None or not (modules := _modules((args, kwargs), nnx.Module)):
        return fun(*args, **kwargs)
    before = jax.tree.leaves(modules)
    results = fun(*args, **kwargs)
    after = jax.tree.leaves(modules)
    same = len(before) == len(after) and all(x is y for x, y in zip(before, after, strict=True))
    if not same and not _modules(results, nnx.Module):
        warnings.warn(MSG_LOST_UPDATES.format(function=getattr(fun, "__qualname__", fun)), stacklevel=3)
    return results


def _modules(tree: Any, kind: type) -> list[Any]:
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, kind))
    return [leaf for leaf in leaves if isinstance(leaf, kind)]
