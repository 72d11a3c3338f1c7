"""`fx.async_start`, `fx.async_update`, `fx.async_done`, and their future."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from effects import _errors as errors
from effects import _jax, _removed
from effects._api.callback import check_function, result_type
from effects._model.effect import register_effect
from effects._model.function import HostFunction, function_name
from effects._model.operand import Operand, take_arguments
from effects._model.site import Site
from effects._model.where import Where, where_called
from effects.extensions.asynchronous.host_start import HostStart
from effects.extensions.asynchronous.operation import HostEnd, HostStartOp, Kept, Operation
from effects.extensions.asynchronous.primitives import ASYNC
from effects.extensions.asynchronous.references import Into, read_references
from effects.extensions.asynchronous.start_and_done import async_done_p, async_start_p, async_update_p

MSG_ASYNC_FUN = (
    "`fx.async_start` at {where} was given {fun} as its function. The first argument is a function of the operands. "
    "Pass the function first: `fx.async_start(fun, x)`."
)
MSG_ASYNC_RESULT = (
    "The function `{name}` that was started at {where} returned {got}. Its results are kept until it is done, so they "
    "are arrays of numbers. Return arrays, and of a random key its `jax.random.key_data`."
)
MSG_NO_FUTURE = (
    "`fx.{call}` at {where} was given {given}. It takes the future that a start gave, which is done once. Pass what "
    "`fx.async_start` or one of its siblings returned."
)

register_effect(ASYNC)

T = TypeVar("T")
"""The type of an operation's results."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Future(Generic[T]):
    """A handle to an asynchronous operation in flight: a start returns it, and a done takes it, once.

    A future can be carried by loops, and passed to functions and branches and returned by them. Its one array is a
    ticket, the number of the operation, with which nothing can be computed.

    Example:
        >>> import effects as fx, jax
        >>> @fx.jit
        ... def f(x):
        ...     def turn(i, future):
        ...         return fx.async_start(lambda x: 2 * x, fx.async_done(future))
        ...
        ...     return fx.async_done(jax.lax.fori_loop(0, 3, turn, fx.async_start(lambda x: x + 1, x)))
        >>> f(1.0)
        Array(16., dtype=float32)
    """

    ticket: Any
    operation: Operation = dataclasses.field(metadata={"static": True})
    structure: Any = dataclasses.field(metadata={"static": True})
    """The structure of the results."""
    finish: Callable[[Any], Any] | None = dataclasses.field(default=None, metadata={"static": True})
    """The function from each value of the operation to the user's result; None if the two are the same."""
    into: Into | None = dataclasses.field(default=None, metadata={"static": True})
    """The references that the done writes the results to, if any."""

    @classmethod
    def started(
        cls,
        operands: Sequence[Any],
        operation: Operation,
        structure: Any,
        finish: Any = None,
        into: Into | None = None,
        given: Any = None,
    ) -> Future[T]:
        """Starts an operation. `given`: the operands of the user's call, if `operands` are computed from those."""
        types = None if given is None or _types(given) == _types(operands) else _types(given)
        operation = dataclasses.replace(operation, into_reference=into is not None, user_types=types)
        (ticket,) = async_start_p.bind(*operands, operation=operation)
        return cls(ticket, operation.end, structure, finish, into)

    def ended(self, where: Where) -> Operation:
        """The operation of a done in this line of the user's."""
        return dataclasses.replace(self.operation.at(where), finish=self.finish)

    def results(self, found: Sequence[Any]) -> Any:
        found = self.operation.shown(found)
        return jax.tree.unflatten(self.structure, map(self.finish, found) if self.finish else found)

    def __repr__(self) -> str:
        return f"<fx.Future of {self.operation.name}>"


@_jax.for_users
def async_start(fun: Callable[..., T], /, *operands: Any, name: str | None = None, schedule: bool = True) -> Future[T]:
    """Starts a function of arrays, whose results are there when the future is done.

    The function is computed at the start, and what stands between start and done in the program stays between them. To
    compute on the host beside the program, start a callback that calls a jitted function.

    Args:
        fun: The function: anything that JAX can trace.
        *operands: Its arguments.
        name: The name of the operation in messages; by default the function's.
        schedule: True if XLA must keep what stands between start and done there. False leaves that to XLA.

    Returns:
        The future, for `async_done`.

    Raises:
        TypeError: if the function cannot be called, or returns something other than arrays.

    Example:
        >>> import effects as fx, jax.numpy as jnp
        >>> @fx.jit
        ... def f(x):
        ...     future = fx.async_start(jnp.sin, x)
        ...     return x * x + fx.async_done(future)
        >>> f(0.0)
        Array(0., dtype=float32)
    """
    where = where_called()
    if not callable(fun):
        raise errors.type_error(MSG_ASYNC_FUN.format(where=where, fun=errors.shown(fun)))
    return start_values(fun(*operands), name or function_name(fun), where, schedule, given=operands)


def start_values(
    values: Any, name: str, where: Where, schedule: bool, into: Into | None = None, given: Any = None
) -> Future[Any]:
    """The future of values that are there already; `given` as for `Future.started`."""
    leaves, structure = jax.tree.flatten(values)
    placed = [_jax.take_placement(_take_result(leaf, name, where)) for leaf in leaves]
    arrays, placements = [x for x, _ in placed], tuple(placement for _, placement in placed)
    results = tuple(_jax.ShapedArray(x.shape, x.dtype) for x in arrays)
    same_along = tuple(map(_jax.axes_of_same, arrays))
    operation = Kept(name, where, results, schedule, same_along=same_along, placements=placements)
    return Future.started(arrays, operation, structure, into=into, given=given)


def _types(values: Any) -> str:
    found = []
    for x in jax.tree.leaves(values):
        with contextlib.suppress(TypeError, ValueError):  # not an array
            found.append(str(_jax.typeof(x)))
    return ", ".join(found)


def _take_result(leaf: Any, name: str, where: Where) -> Any:
    try:
        array = jnp.asarray(leaf)
        if jnp.issubdtype(array.dtype, jax.dtypes.extended):
            raise TypeError
    except Exception:
        got = errors.shown(leaf)
        raise errors.type_error(MSG_ASYNC_RESULT.format(name=name, where=where, got=got)) from None
    return array


@_jax.for_users
@_removed.without_arguments("fx.async_update", "partial")
def async_update(future: Future[T]) -> Future[T]:
    """A point between start and done: earlier equations of the program run before later ones.

    Args:
        future: The future. It is used up.

    Returns:
        The future to use from here on.

    Raises:
        TypeError: if it is given no future.

    Example:
        >>> import effects as fx
        >>> @fx.jit
        ... def f(x):
        ...     future = fx.async_start(lambda x: 2 * x, x)
        ...     return x * x + fx.async_done(fx.async_update(future))
        >>> f(3.0)
        Array(15., dtype=float32)
    """
    where = where_called(2)  # past `without_arguments`
    _check_future(future, "async_update", where)
    (ticket,) = async_update_p.bind(future.ticket, operation=dataclasses.replace(future.operation, where=where))
    return dataclasses.replace(future, ticket=ticket)


@_jax.for_users
def async_done(future: Future[T]) -> T:
    """Ends an asynchronous operation, and gives its results.

    Args:
        future: The future. It is used up.

    Returns:
        The results; nothing if they are written to references.

    Raises:
        TypeError: if it is given no future.

    Example:
        >>> import effects as fx
        >>> fx.jit(lambda x: fx.async_done(fx.async_start(lambda x: {"twice": 2 * x}, x)))(3)
        {'twice': Array(6, dtype=int32)}
    """
    where = where_called()
    _check_future(future, "async_done", where)
    found = async_done_p.bind(future.ticket, operation=future.ended(where))
    if future.into is None:
        return future.results(found)
    return future.into.write(found)


def _check_future(future: Any, call: str, where: Where) -> None:
    if not isinstance(future, Future):
        raise errors.type_error(MSG_NO_FUTURE.format(call=call, where=where, given=errors.shown(future)))


# `fx.async_callback`: Python functions that run while the program goes on.


@_jax.for_users
def async_callback(
    fn: Callable[..., Any],
    result_shape_dtypes: Any,
    /,
    *operands: Any,
    name: str | None = None,
    schedule: bool = True,
) -> Future[Any]:
    """Calls a Python function at once, on another thread, while the program continues until the future is done.

    Arrays reach the function as NumPy arrays, which are its own and read-only. It may use JAX, print, log and call
    `fx.jit` functions: all of these effects come in the place of the done. What it raises is raised by the done, as
    `EffectError` by the call of the program.

    Args:
        fn: The function. Called once for each time that the program gets here, and for each lane of a `vmap`.
        result_shape_dtypes: The function's results, as a pytree of objects with a shape and a dtype.
        *operands: Its arguments: pytrees of arrays; strings, numbers and None as they are.
        name: Its name in messages; by default the function's.
        schedule: As for `async_start`.

    Returns:
        The future, for `async_done`.

    Raises:
        TypeError: while tracing, if the function cannot be called with these arguments, or is an `async def` or a
            generator function, a result has no shape, or an argument is none.

    Example:
        >>> import effects as fx, jax, numpy as np
        >>> @fx.jit
        ... def f(x):
        ...     future = fx.async_callback(np.sin, jax.ShapeDtypeStruct((), "float32"), x)
        ...     return x * x + fx.async_done(future)  # the product is made while the function runs
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
    ends = HostEnd(HostEnd.kind, None, avals, schedule, types=results, structure=structure)
    return Future.started(arrays, HostStartOp(name, where, avals, schedule, site=start, ends=ends), structure)


# `fx.copy_start`: copies from reference to reference that are under way while the program goes on.


@_jax.for_users
def copy_start(src_ref: Any, dst_ref: Any, *, schedule: bool = True) -> Future[None]:
    """Starts a copy from one reference to another, which the done writes.

    The source is read at the start, so that it may be written at once. The target must not be used until the copy is
    done: that is an error.

    Args:
        src_ref: The reference that is read, such as `jax.new_ref` makes, or a pytree of references.
        dst_ref: The reference that is written, of the same type.
        schedule: As for `async_start`.

    Returns:
        The future, for `async_done`, which returns nothing. A loop can carry it if all turns write the same reference.

    Raises:
        TypeError: while tracing, if it is not given references of the same type.
        ValueError: if both are the same reference.

    Example:
        >>> import effects as fx, jax, jax.numpy as jnp
        >>> @fx.jit
        ... def f(x):
        ...     source, target = jax.new_ref(x), jax.new_ref(jnp.zeros_like(x))
        ...     future = fx.copy_start(source, target)
        ...     source[...] = x + 1
        ...     fx.async_done(future)
        ...     return source[...], target[...]
        >>> f(jnp.float32(1))
        (Array(2., dtype=float32), Array(1., dtype=float32))
    """
    where = where_called()
    values, into = read_references(src_ref, dst_ref, "copy_start", where)
    return start_values(values, "copy", where, schedule, into)
