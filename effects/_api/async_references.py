"""`fx.copy_start`: copies from reference to reference that are under way while the program goes on."""

from __future__ import annotations

from typing import Any

from effects import _jax
from effects._api.asynchronous import Future, start_values
from effects._model.references import read_references
from effects._model.site import where_called


@_jax.for_users
def copy_start(src_ref: Any, dst_ref: Any, *, schedule: bool = True) -> Future[None]:
    """Starts a copy from one reference to another, which the done writes.

    The source is read at the start, so that it may be written at once. The target must not be used until the copy is
    done: that is an error.

    Args:
        src_ref: The reference that is read, such as `jax.new_ref` makes, or a pytree of references.
        dst_ref: The reference that is written, of the same type.
        schedule: Whether XLA must keep what stands between start and done where it is.

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
