"""`fx.async_callback`: Python functions that run while the program goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from effects import _jax
from effects._api.asynchronous import Future
from effects._api.callback import CALLBACK, check_function, result_type
from effects._model.asynchronous import ASYNC
from effects._model.callback import HostFunction
from effects._model.host_start import HostStart
from effects._model.operation import HostEnd, HostRun
from effects._model.site import Operand, Site, take_arguments, where_called


@_jax.for_users
def async_callback(
    fn: Callable[..., Any],
    result_shape_dtypes: Any,
    /,
    *operands: Any,
    name: str | None = None,
    schedule: bool = True,
) -> Future[Any]:
    """Calls a Python function at once, on another thread, while the program goes on until the future is done.

    Arrays reach the function as NumPy arrays, which are its own and read-only. It may use JAX, print, log and call
    `fx.jit` functions: all of these effects come in the place of the done. What it raises is raised by the done, as
    `EffectError` by the call of the program. A generator function may yield what it has so far, for `async_update`;
    its results are what it returns, or else what it yielded last.

    Args:
        fn: The function. Called once for each time that the program gets here, and for each lane of a `vmap`.
        result_shape_dtypes: A pytree of objects with a shape and a dtype: what the function returns.
        *operands: Its arguments: pytrees of arrays; strings, numbers and None as they are.
        name: What messages call it; else the function's name.
        schedule: Whether XLA must keep what stands between start and done where it is.

    Returns:
        The future, for `async_done`.

    Raises:
        TypeError: while tracing, if the function cannot be called with these arguments or is an `async def`, a result
            has no shape, or an argument is none.

    Example:
        >>> import effects as fx, jax, numpy as np
        >>> @fx.jit
        ... def f(x):
        ...     future = fx.async_callback(np.sin, jax.ShapeDtypeStruct((), "float32"), x)
        ...     y = x * x  # while the function runs
        ...     return y + fx.async_done(future)
        >>> f(0.0)
        Array(0., dtype=float32)
    """
    where = where_called()
    check_function("fx.async_callback", fn, operands, {}, where)
    function = HostFunction.of(fn)
    name = name or function.name
    shapes, structure = jax.tree.flatten(result_shape_dtypes)
    results = tuple(result_type(shape, name, where, "fx.async_callback") for shape in shapes)
    arrays, leaves, tree = take_arguments(operands, {}, "fx.async_callback", where)
    number = Operand((), np.dtype(np.uint32), np.dtype(np.uint32))
    tree = jax.tree.structure(((jax.tree.unflatten(tree, leaves)[0], 0), {}), is_leaf=lambda x: x in leaves)
    start = Site(ASYNC.unordered(), HostStart(function, name), (*leaves, number), tree, where)
    avals = tuple(_jax.ShapedArray(result.shape, result.stored) for result in results)
    ends = HostEnd(HostEnd.kind, None, avals, schedule, effect=CALLBACK, types=results, structure=structure)
    return Future.started(arrays, HostRun(name, where, avals, schedule, site=start, ends=ends), structure)
