"""Collectives in two parts: a start, which sends, and a done, which receives.

Each is an exchange of values between the devices of a region, with ordinary arithmetic around it. So its derivative,
its transpose and its lanes are those of the exchange and of that arithmetic.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np

from effects import _errors as errors
from effects import _jax
from effects._model.where import Where, where_called
from effects.extensions.asynchronous.api import Future, T
from effects.extensions.asynchronous.operation import Exchanged
from effects.extensions.asynchronous.references import Into, are_references, read_references

MSG_COLLECTIVE_AXIS = (
    "`fx.{call}_start` at {where} was given the axis {axis}, and the axes of the `jax.shard_map` around it are "
    "{known}. A collective is between the devices along axes of a mesh. Call it inside a `jax.shard_map`, with one of "
    "its axes."
)
MSG_COLLECTIVE_PERMUTATION = (
    "`fx.ppermute_start` at {where} was given the permutation {perm}. It is a list of pairs (from, to) of devices "
    "along the axis, 0 to {last}, each at most once as a sender and once as a receiver. Correct the pairs."
)
MSG_COLLECTIVE_DIMENSION = (
    "`fx.{call}_start` at {where} was given axis {axis} for an array of {ndim} dimensions. An axis is "
    "from {least} to {most}. Correct it."
)
MSG_COLLECTIVE_SIZE = (
    "`fx.{call}_start` at {where} was given an array of shape {shape}, to be divided along axis {axis} between {size} "
    "devices. The size of that axis must be a multiple of {size}, or without `tiled=True` equal to it. Change the "
    "array or the axis."
)
MSG_COLLECTIVE_TO = (
    "`fx.all_gather_start` at {where} was given `to={to}`. The type of its result says that it may be another on each "
    'device, `to="varying"`, or that it is the same on all, `to="invarying"`. Pass one of these. For `to="reduced"` '
    'give what the done of the latter returns to `jax.lax.pcast(x, axis_name, to="reduced")`.'
)


@overload
def ppermute_start(x: T, axis_name: Any, perm: Sequence[tuple[int, int]], *, schedule: bool = True) -> Future[T]: ...
@overload
def ppermute_start(
    x: Any, into: Any, axis_name: Any, perm: Sequence[tuple[int, int]], *, schedule: bool = True
) -> Future[None]: ...
@_jax.for_users
def ppermute_start(x: Any, *args: Any, schedule: bool = True, **kwargs: Any) -> Future[Any]:
    """Starts `jax.lax.ppermute`: sends each device's arrays to another one.

    With references, `fx.ppermute_start(src_ref, dst_ref, axis_name, perm)`, it sends what the first holds at the start.
    The done writes to the second, which must not be used until then, and returns nothing.

    Args:
        x: A pytree of arrays, or of references.
        into: The references that the done writes, if `x` are references.
        axis_name: The axis of the mesh, or several, along which the devices are numbered.
        perm: Pairs of devices (from, to). A device without a sender gets zeros.
        schedule: True if XLA must keep what stands between start and done there. False leaves that to XLA.

    Returns:
        The future, for `async_done`.

    Example:
        >>> import effects as fx, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> def f(x):
        ...     future = fx.ppermute_start(x, "x", [(0, 0)])
        ...     return x * x + fx.async_done(future)  # the product is made meanwhile
        >>> f = jax.shard_map(f, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))
        >>> fx.jit(f)(jnp.arange(2.0))
        Array([0., 2.], dtype=float32)
    """
    into = None
    if args and are_references(args[0]):
        x, into = read_references(x, args[0], "ppermute_start", where_called())
        args = args[1:]
    axis_name, perm = _axis_and_permutation(*args, **kwargs)
    call = _called("ppermute", axis_name)
    receivers = [-1] * call.size
    try:
        pairs = [(int(sender), int(receiver)) for sender, receiver in perm]
        if any(len({pair[end] for pair in pairs}) < len(pairs) for end in (0, 1)):
            raise ValueError
        for sender, receiver in pairs:
            if not (0 <= sender < call.size and 0 <= receiver < call.size):
                raise ValueError
            receivers[sender] = receiver
    except (TypeError, ValueError):
        shown = errors.shown(perm)
        last = call.size - 1
        raise errors.value_error(MSG_COLLECTIVE_PERMUTATION.format(where=call.where, perm=shown, last=last)) from None
    return _exchange(x, call, schedule, lambda x: x, receivers=tuple(receivers), into=into)


def _axis_and_permutation(axis_name: Any, perm: Any) -> tuple[Any, Any]:
    """Raises Python's error for arguments of another number or name."""
    return axis_name, perm


_axis_and_permutation.__qualname__ = "fx.ppermute_start"


@_jax.for_users
def psum_start(x: T, axis_name: Any, *, schedule: bool = True) -> Future[T]:
    """Starts `jax.lax.psum`: each device gets the sum over all, added in their order.

    Args:
        x: A pytree of arrays.
        axis_name: The axis of the mesh, or several.
        schedule: As for `ppermute_start`.

    Returns:
        The future, for `async_done`.

    Example:
        >>> import effects as fx, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> f = lambda x: fx.async_done(fx.psum_start(x, "x"))
        >>> f = jax.shard_map(f, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))
        >>> fx.jit(f)(jnp.arange(2.0))
        Array([0., 1.], dtype=float32)
    """
    call = _called("psum", axis_name)

    def send(x: Any) -> Any:
        return call.for_each(x.astype(np.int32) if x.dtype == np.bool_ else x)  # a boolean is added as a count

    return _exchange(x, call, schedule, send, _add, everywhere=True)


@_jax.for_users
def all_gather_start(
    x: T, axis_name: Any, *, axis: int = 0, tiled: bool = False, to: str = "varying", schedule: bool = True
) -> Future[T]:
    """Starts `jax.lax.all_gather`: each device gets the arrays of all.

    Args:
        x: A pytree of arrays.
        axis_name: The axis of the mesh, or several.
        axis: The new axis of the result along which the devices' arrays are stacked.
        tiled: True to concatenate the arrays along that axis instead.
        to: The type of the result under `check_vma=True`: "varying" if it may differ between devices, "invarying" if it
            is the same on all.
        schedule: As for `ppermute_start`.

    Returns:
        The future, for `async_done`.

    Raises:
        ValueError: if `to` is none of these.

    Example:
        >>> import effects as fx, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> f = lambda x: fx.async_done(fx.all_gather_start(x, "x", tiled=True))
        >>> f = jax.shard_map(f, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))
        >>> fx.jit(f)(jnp.arange(2.0))
        Array([0., 1.], dtype=float32)
    """
    call = _called("all_gather", axis_name)
    if to not in ("varying", "invarying"):
        raise errors.value_error(MSG_COLLECTIVE_TO.format(where=call.where, to=errors.shown(to)))

    def send(x: Any) -> Any:
        call.check_axis(axis, x.ndim + (not tiled))
        return call.for_each(x)

    return _exchange(x, call, schedule, send, _Join(axis, tiled), everywhere=to != "varying")


@_jax.for_users
def all_to_all_start(
    x: T, axis_name: Any, split_axis: int, concat_axis: int, *, tiled: bool = False, schedule: bool = True
) -> Future[T]:
    """Starts `jax.lax.all_to_all`: each device sends one part of its arrays to each other.

    Args:
        x: A pytree of arrays.
        axis_name: The axis of the mesh, or several.
        split_axis: The axis along which the parts lie.
        concat_axis: The axis of the result along which they lie.
        tiled: True to keep the axes: the parts are slices of one, and are concatenated along the other.
        schedule: As for `ppermute_start`.

    Returns:
        The future, for `async_done`.

    Example:
        >>> import effects as fx, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> f = lambda x: fx.async_done(fx.all_to_all_start(x, "x", 0, 0, tiled=True))
        >>> f = jax.shard_map(f, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))
        >>> fx.jit(f)(jnp.arange(2.0))
        Array([0., 1.], dtype=float32)
    """
    call = _called("all_to_all", axis_name)

    def send(x: Any) -> Any:
        call.check_axis(concat_axis, x.ndim)
        return call.parts(x, split_axis, tiled)

    return _exchange(x, call, schedule, send, _Join(concat_axis, tiled))


@_jax.for_users
def psum_scatter_start(
    x: T, axis_name: Any, *, scatter_dimension: int = 0, tiled: bool = False, schedule: bool = True
) -> Future[T]:
    """Starts `jax.lax.psum_scatter`: each device gets one part of the sum over all, added in their order.

    Args:
        x: A pytree of arrays.
        axis_name: The axis of the mesh, or several.
        scatter_dimension: The axis along which the parts lie.
        tiled: True to keep that axis, of which the parts are slices.
        schedule: As for `ppermute_start`.

    Returns:
        The future, for `async_done`.

    Example:
        >>> import effects as fx, jax, jax.numpy as jnp
        >>> mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> f = lambda x: fx.async_done(fx.psum_scatter_start(x, "x", tiled=True))
        >>> f = jax.shard_map(f, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))
        >>> fx.jit(f)(jnp.arange(2.0))
        Array([0., 1.], dtype=float32)
    """
    call = _called("psum_scatter", axis_name)
    return _exchange(x, call, schedule, lambda x: call.parts(x, scatter_dimension, tiled), _add)


class _Call(NamedTuple):
    """A call of a collective: its name, the user's line, and the axes along which it is between so many devices."""

    name: str
    where: Where
    axes: tuple[str, ...]
    size: int

    def for_each(self, x: Any) -> Any:
        """Broadcasts an array along a new leading axis, with one part for each device."""
        return jnp.broadcast_to(x, (self.size, *x.shape))

    def check_axis(self, axis: int, ndim: int) -> None:
        if not -ndim <= axis < ndim:
            shown = {"axis": axis, "ndim": ndim, "least": -ndim, "most": ndim - 1}
            raise errors.value_error(MSG_COLLECTIVE_DIMENSION.format(call=self.name, where=self.where, **shown))

    def parts(self, x: Any, axis: int, tiled: bool) -> Any:
        """Splits an array into a part for each device, along a new leading axis."""
        size, length = self.size, x.shape[axis] if -x.ndim <= axis < x.ndim else -1
        if length % size if tiled else length != size:
            shown = {"shape": x.shape, "axis": axis, "size": size}
            raise errors.value_error(MSG_COLLECTIVE_SIZE.format(call=self.name, where=self.where, **shown))
        axis %= x.ndim
        if tiled:
            x = x.reshape(*x.shape[:axis], size, length // size, *x.shape[axis + 1 :])
        return jnp.moveaxis(x, axis, 0)


def _called(name: str, axis_name: Any) -> _Call:
    """The call of a public function, which calls this."""
    where = where_called(2)
    axes = tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)
    mesh = jax.sharding.get_abstract_mesh()
    known = tuple(mesh.manual_axes)
    if not axes or any(axis not in known for axis in axes):
        shown = ", ".join(map(repr, known)) or "none"
        raise errors.value_error(
            MSG_COLLECTIVE_AXIS.format(call=name, where=where, axis=errors.shown(axis_name), known=shown)
        )
    return _Call(name, where, axes, math.prod(mesh.shape[axis] for axis in axes))


def _exchange(
    x: Any,
    call: _Call,
    schedule: bool,
    send: Callable[[Any], Any],
    finish: Callable[[Any], Any] | None = None,
    *,
    receivers: tuple[int, ...] | None = None,
    into: Into | None = None,
    everywhere: bool = False,
) -> Future[Any]:
    """Starts an exchange. `send` maps an array to the value that the device sends, and `finish` a received value to the
    result. `everywhere`: True if the result is the same on all devices."""
    leaves, structure = jax.tree.flatten(x)
    arrays = [*map(jnp.asarray, leaves)]
    values = [_jax.as_per_device(send(array)) for array in arrays]
    operation = Exchanged(
        call.name,
        call.where,
        tuple(_jax.ShapedArray(value.shape, value.dtype) for value in values),
        schedule,
        axes=call.axes,
        size=call.size,
        receivers=receivers,
        same_along=tuple(_same_along(array, call.axes, everywhere) for array in arrays),
        has_replicas=_jax.is_in_region_over_some_axes(),
    )
    return Future.started(values, operation, structure, finish, into, given=arrays)


def _same_along(x: Any, axes: tuple[str, ...], everywhere: bool) -> tuple[str, ...]:
    """The axes along which all devices get the same result, as JAX's synchronous collective has it."""
    before = set(_jax.axes_of_same(x))
    varying = set(_jax.axes_of_same(np.float32(0)))  # all axes, if `check_vma` is set
    return tuple(sorted(before | (varying & set(axes)) if everywhere else before - set(axes)))


def _add(parts: Any) -> Any:
    """The sum over all devices, in their order."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


@dataclasses.dataclass(frozen=True)
class _Join:
    """Puts the parts of all devices side by side: along a new axis, or one behind the other along one that is there."""

    axis: int
    tiled: bool

    def __call__(self, parts: Any) -> Any:
        axis = self.axis % (parts.ndim - self.tiled)
        joined = jnp.moveaxis(parts, 0, axis)
        if not self.tiled:
            return joined
        shape = joined.shape
        return joined.reshape(*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
