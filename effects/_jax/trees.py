"""The structure of pytrees: `jax._src.tree_util`.

A structure is made of others, and nothing is put into it: a class of the user's may refuse to be made of anything but
arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax._src import tree_util


def without_first_argument(tree: Any) -> Any:
    """The structure of `(args[1:], kwargs)`, from that of `(args, kwargs)`."""
    positional, named = tree.children()
    return _make(lambda registry: _tuple(registry, [_tuple(registry, positional.children()[1:]), named]))


def compiled_with_token(executable: Any, params: Any, output_tokens: Any) -> Any:
    """The compiled function of `(token, *args)` that returns `(results, output tokens)`, from JAX's description of the
    user's function and an object of the structure of the output tokens."""
    positional, named = params.in_tree.children()

    def in_tree(registry: Any) -> Any:
        token = registry.flatten(0)[1]
        return _tuple(registry, [_tuple(registry, [token, *positional.children()]), named])

    out_tree = _make(lambda registry: _tuple(registry, [params.out_tree, registry.flatten(output_tokens)[1]]))
    compiled = jax.stages.Compiled(executable, params.const_args, ((), {}), out_tree, params.no_kwargs)
    compiled._params = compiled._params._replace(in_tree=_make(in_tree))
    return compiled


_tuple = tree_util.pytree.treedef_tuple


def _make(structure: Callable[[Any], Any]) -> Any:
    """A structure belongs to the registry of what it is made of, which does not say which that is."""
    try:
        return structure(tree_util.default_registry)
    except ValueError:
        return structure(tree_util.tracing_registry)
