"""The structure of pytrees: `jax._src.tree_util`."""

from __future__ import annotations

from typing import Any

from jax._src import tree_util


def without_first_argument(tree: Any) -> Any:
    """The structure of `(args[1:], kwargs)`, from that of `(args, kwargs)`.

    Nothing is put into it: a class of the user's may refuse to be made of anything but arrays.
    """
    positional, named = tree.children()
    registry = tree_util.default_registry
    try:
        return _tuple(registry, [_tuple(registry, positional.children()[1:]), named])
    except ValueError:  # a structure belongs to the registry that it was made with
        registry = tree_util.tracing_registry
        return _tuple(registry, [_tuple(registry, positional.children()[1:]), named])


_tuple = tree_util.pytree.treedef_tuple
