"""Calling Python from inside compiled programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from effects import _errors as errors
from effects._content import HostCall
from effects._functions import HostFunction
from effects._primitive import effect_p
from effects._registry import CALLBACK
from effects._sites import Operand, Site, Where, stored_dtype, take_arguments, where_called

_VMAP_METHODS = (None, "sequential", "sequential_unrolled", "expand_dims", "broadcast_all", "legacy_vectorized")


def callback(
    fn: Callable[..., Any],
    result_shape_dtypes: Any = None,
    /,
    *args: Any,
    ordered: bool = True,
    vmap_method: str | None = None,
    pass_record: bool = False,
    per_shard: bool = False,
    **kwargs: Any,
) -> Any:
    """Calls a Python function when the program reaches this point, in program order with prints and logs.

    Without results the call is only recorded: the program goes on, and the function runs later, in its turn. With
    results the program waits until the function has run in its turn.

    Arrays reach the function as NumPy arrays, which are its own to keep and read-only; the device may have changed its
    copy meanwhile. The function may use JAX, print, log and call `fx.jit` functions: their effects come in its place.
    It runs in the `contextvars` that were in force when the program was called. What it raises is raised as
    `EffectError`: from the call of the program if that waits for results, else at the next `effects_barrier`.

    Args:
        fn: The function. Called once for each time that the program gets here, and once for each lane of a `vmap`.
            Programs that leave this process take the name along that `fx.register_callback` gave it.
        result_shape_dtypes: A pytree of objects with a shape and a dtype, such as `jax.ShapeDtypeStruct`: what the
            function returns, as arrays or Python numbers. None: nothing is waited for.
        *args: Its positional arguments: pytrees of arrays; strings, numbers and None as they are. A mutable reference
            passes its value.
        ordered: Whether the call must come in program order. Unordered calls come when they come.
        vmap_method: As for `jax.pure_callback`; None calls lane by lane. Where a predicate that differs between lanes
            leaves some out, the function is called lane by lane for the others.
        pass_record: Whether the function also gets the `Record`, as the keyword argument `record`.
        per_shard: Whether it is called for each shard of sharded arrays by itself, without gathering. Without results.
        **kwargs: Its keyword arguments, likewise.

    Returns:
        None, or arrays as in `result_shape_dtypes`.

    Raises:
        TypeError: while tracing, if the function cannot be called, a result has no shape, or an argument is none.

    Example:
        >>> import effects as fx, jax, numpy as np
        >>> seen = []
        >>> @fx.jit
        ... def f(x):
        ...     fx.callback(lambda x: seen.append(float(x)), None, x)
        ...     return fx.callback(np.sin, jax.ShapeDtypeStruct((), "float32"), x)
        >>> f(0.0)
        Array(0., dtype=float32)
        >>> seen
        [0.0]
    """
    where = where_called()
    if not callable(fn):
        raise TypeError(errors.MSG_CALLBACK_NOT_CALLABLE.format(where=where, fn=errors.shown(fn)))
    if vmap_method not in _VMAP_METHODS:
        known = ", ".join(map(repr, _VMAP_METHODS))
        raise ValueError(errors.MSG_VMAP_METHOD.format(where=where, given=vmap_method, known=known))
    function = HostFunction.of(fn)
    if per_shard and result_shape_dtypes is not None:
        raise ValueError(errors.MSG_PER_SHARD_RESULTS.format(name=function.name, where=where))
    results, tree = None, None
    if result_shape_dtypes is not None:
        shapes, tree = jax.tree.flatten(result_shape_dtypes)
        results = tuple(_result_type(shape, function.name, where) for shape in shapes)
    operands, leaves, arguments_tree = take_arguments(args, kwargs, "fx.callback", where)
    content = HostCall(function, results, tree, pass_record, vmap_method)
    effect = CALLBACK if ordered else CALLBACK.unordered()
    site = Site(effect, content, leaves, arguments_tree, where, per_shard=bool(per_shard))
    outs = effect_p.bind(*operands, site=site)
    if results is None:
        return None
    shown = [out.astype(result.dtype) for out, result in zip(outs, results, strict=True)]
    return jax.tree.unflatten(tree, shown)


def _result_type(shape: Any, name: str, where: Where) -> Operand:
    try:
        dims: tuple[Any, ...] = tuple(n if jax.export.is_symbolic_dim(n) else int(n) for n in shape.shape)
        dtype = np.dtype(shape.dtype)
        is_number = jnp.issubdtype(dtype, np.number) or dtype.kind == "b"
        if not is_number or any(isinstance(n, int) and n < 0 for n in dims):
            raise TypeError
    except Exception:
        raise TypeError(errors.MSG_RESULT_TYPE.format(where=where, name=name, got=shape)) from None
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise TypeError(errors.MSG_RESULT_64.format(where=where, name=name, dtype=dtype))
    return Operand(dims, dtype, stored_dtype(dtype))


def take_results(site: Site, returned: Any, types: Sequence[Operand]) -> list[np.ndarray]:
    """What a callback returned, for one lane or for all, as arrays of these types as they travel.

    Raises:
        TypeError: if structure, shapes or dtypes are not those that were asked for.
    """
    content: Any = site.content
    if content.is_one and isinstance(returned, _ARRAY):
        return [_take_result(returned, types[0], site)]
    leaves, tree = jax.tree.flatten(returned)
    if not content.has_structure(tree):
        raise _wrong_return(site, f"the structure {tree}", f"the structure {content.tree}")
    return [_take_result(leaf, result, site) for leaf, result in zip(leaves, types, strict=True)]


_ARRAY = np.ndarray, np.generic


def _take_result(leaf: Any, result: Operand, site: Site) -> np.ndarray:
    if type(leaf) is np.ndarray and leaf.dtype is result.stored and leaf.shape == result.shape:
        return leaf  # all the tests below, for what is most common
    if type(leaf) in (bool, int, float, complex):
        # A Python number has no type of its own: it takes the result's, if that can hold it.
        kinds = {bool: "b", int: "biufc", float: "fc", complex: "c"}[type(leaf)]
        kind = result.dtype.kind if result.dtype.kind in "biufc" else ("f" if _is_float(result.dtype) else "i")
        if result.shape or kind not in kinds or (kind == "b" and leaf not in (0, 1)):
            raise _wrong_return(site, f"the Python number {leaf!r}", _describe(result))
        if kind in "iu":
            bounds = jnp.iinfo(result.dtype)
            fits = bounds.min <= leaf <= bounds.max
        else:
            fits = _fits_float(leaf, result.dtype)
        if not fits:
            raise _wrong_return(site, f"the Python number {leaf!r}", _describe(result))
        return np.asarray(leaf, result.dtype).astype(result.stored)
    if not isinstance(leaf, (np.ndarray, np.generic, jax.Array)):
        raise _wrong_return(site, f"{leaf!r} of type `{type(leaf).__name__}`", _describe(result))
    if leaf.shape != result.shape or leaf.dtype != result.dtype:
        raise _wrong_return(site, f"an array of {leaf.dtype}{list(leaf.shape)}", _describe(result))
    value = np.asarray(leaf)
    return value if result.stored == result.dtype else value.astype(result.stored)


def _fits_float(number: Any, dtype: np.dtype) -> bool:
    """Whether a number that is finite stays so."""
    try:
        with np.errstate(all="ignore"):
            value = np.asarray(number, dtype).astype(np.complex128)
        return bool(np.isfinite(value)) or not np.isfinite(complex(number))
    except OverflowError:
        return False


def _is_float(dtype: np.dtype) -> bool:
    return bool(jnp.issubdtype(dtype, np.floating))


def _describe(result: Operand) -> str:
    return f"an array of {result.dtype}{list(result.shape)}"


def _wrong_return(site: Site, got: str, expected: str) -> TypeError:
    assert isinstance(site.content, HostCall)
    name = site.content.function.name
    return TypeError(errors.MSG_RETURNED.format(name=name, got=got, expected=expected, where=site.where))
