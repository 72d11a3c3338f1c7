"""Values of records as those of Python's own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from effects._model.mark import Mark


def python_value(value: Any) -> Any:
    """A value as Python's numbers, strings, lists and dictionaries.

    Of a class that JAX was told of: a dictionary of its leaves by path, such as `"layer.w"`.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        return _of_array(np.asarray(value))
    if value is None or isinstance(value, (str, bytes, int, float, complex, Mark)):
        return value
    if isinstance(value, dict):
        return {str(key): python_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [python_value(inner) for inner in value]
    leaves = jax.tree_util.tree_flatten_with_path(value)[0]
    if leaves and leaves[0][1] is value:
        return str(value)
    return {jax.tree_util.keystr(path, simple=True, separator="."): python_value(leaf) for path, leaf in leaves}


def _of_array(array: np.ndarray) -> Any:
    known = is_number(array.dtype) or array.dtype.kind in "USO"
    return (shortest(array) if known else array.astype(str)).tolist()


def shortest(array: np.ndarray) -> np.ndarray:
    """Numbers of a type that NumPy itself has, of which each is written in the fewest digits that its own type reads as
    the same: 0.1 and not 0.10000000149011612."""
    dtype = array.dtype
    if dtype.kind not in "biufcUSO" or dtype.isbuiltin == _OF_A_LIBRARY:
        if jnp.issubdtype(dtype, np.floating):
            return shortest(array.astype(np.float32))
        return array.astype(np.int64)
    if dtype.kind == "c" and dtype.itemsize < 16:
        wide = np.empty(array.shape, np.complex128)
        wide.real, wide.imag = shortest(np.real(array)), shortest(np.imag(array))
        return wide
    if dtype.kind == "f" and dtype.itemsize < 8:
        return np.array(array.astype(str)).astype(np.float64)
    return array


_OF_A_LIBRARY = 2  # what `isbuiltin` is for types such as bfloat16


def is_number(dtype: np.dtype) -> bool:
    return dtype.kind in "biufc" or bool(jnp.issubdtype(dtype, np.number))
