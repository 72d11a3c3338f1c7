"""Arguments of effects: what of them travels in records, and what is known while a program is traced."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from effects import _jax
from effects._model.operand import Operand, Static, stored_dtype
from effects._model.where import Where

MSG_ARGUMENT = (
    "`{call}` at {where} was given {value} of type {type} as {path}. Arguments are pytrees of arrays, and strings, "
    "numbers and None are taken as they are. Pass {remedy}."
)


MSG_TRACER_IN_TEXT = (
    "`{call}` at {where} was given {text!r} as {path}, which holds the text of a traced value. An f-string is filled "
    "while tracing, when values are not known yet. Pass the value itself, as an argument of its own."
)


def holds_tracer(text: str) -> bool:
    """Whether a text has what JAX shows of a value that is not known yet: the name of a tracer, and what it holds."""
    names = re.findall(r"\b(\w+Tracer)[<(]", text)
    return "Traced<" in text or bool(names and not _jax.tracer_names().isdisjoint(names))


@functools.cache
def flat_arguments(count: int) -> Any:
    """The structure of so many positional arguments, each of them a leaf."""
    return jax.tree.structure(((0,) * count, {}))


def whole_arguments(tree: Any, leaves: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """`(args, kwargs)` of this structure: of each argument that is a leaf, this leaf, and of a pytree nothing but None.

    No object of a class of the user's is made, which may want arrays in place of these leaves.
    """
    remaining = iter(leaves)

    def whole(child: Any) -> Any:
        own = list(itertools.islice(remaining, child.num_leaves))
        return own[0] if own and jax.tree_util.treedef_is_leaf(child) else None

    args, kwargs = tree.children()
    positional = list(map(whole, args.children()))
    return positional, dict(zip(kwargs.node_data()[1], map(whole, kwargs.children()), strict=True))


def take_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], call: str, where: Where, takes_objects: bool = False
) -> tuple[list[Any], tuple[Operand | Static, ...], Any]:
    """Sorts arguments into what travels in records and what is known now: (operand values, leaves, treedef).

    `takes_objects`: whether any object is taken as it is, for what makes text of it.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path((args, kwargs))
    values: list[Any] = []
    leaves: list[Operand | Static] = []
    for path, leaf in paths:
        if isinstance(leaf, (str, bytes, int, float, complex, np.generic)):
            if isinstance(leaf, str) and holds_tracer(leaf):
                name = _name_of(path)
                raise TypeError(MSG_TRACER_IN_TEXT.format(call=call, where=where, text=leaf, path=name))
            leaves.append(Static(_jax.plain_number(leaf)))
            continue
        if _jax.is_reference(leaf):
            leaf = leaf[...]  # what it holds now
        if takes_objects and not is_array(leaf):
            leaves.append(Static(leaf))
            continue
        if not isinstance(leaf, (jax.Array, np.ndarray)):
            raise _bad_argument(leaf, path, call, where, "an array, or the text you want to see, say `str(x)`")
        value, operand = take_array(leaf, path, call, where)
        values.append(value)
        leaves.append(operand)
    return values, tuple(leaves), tree


def is_array(x: Any) -> bool:
    """Whether this is an array of JAX's, or one of NumPy's that has numbers or booleans."""
    if isinstance(x, np.ndarray):
        return bool(jnp.issubdtype(x.dtype, np.number)) or x.dtype == bool or x.dtype == jax.dtypes.float0
    return isinstance(x, jax.Array)


def take_array(x: Any, path: Any, call: str, where: Where) -> tuple[Any, Operand]:
    """An array as it travels, and its description. What has no numbers is refused."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = _jax.physical_key_data(x)
    if x.dtype == jax.dtypes.float0:  # the tangent of an integer: it has no value
        x = np.zeros(x.shape, bool)
    elif isinstance(x, np.ndarray):
        if not is_array(x):
            raise _bad_argument(x, path, call, where, "an array of numbers or booleans")
        x = jnp.asarray(x)
    dtype = np.dtype(x.dtype)
    stored = stored_dtype(dtype)
    return (x if stored == dtype else x.astype(stored)), Operand(tuple(x.shape), dtype, stored)


def _bad_argument(leaf: Any, path: Any, call: str, where: Where, remedy: str) -> TypeError:
    try:
        value = repr(leaf)
    except Exception:
        value = "a value"
    if len(value) > 80:
        value = value[:77] + "..."
    return TypeError(
        MSG_ARGUMENT.format(
            call=call, where=where, value=value, type=f"`{type(leaf).__name__}`", path=_name_of(path), remedy=remedy
        )
    )


def _name_of(path: Any) -> str:
    """What messages call the leaf at this path of `(args, kwargs)`."""
    (which, key), rest = (path[0].idx, path[1]), path[2:]
    name = f"argument {key.idx + 1}" if which == 0 else f"argument {key.key!r}"
    return f"{name}, at {jax.tree_util.keystr(rest)}" if rest else name
