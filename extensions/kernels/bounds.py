"""The bounds pass: in a simulated kernel, a check ahead of every access to a reference, and of where blocks begin.

JAX's simulation clamps an index that is out of bounds, without a word. A device reads and writes memory that is not the
kernel's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from effects import _errors as errors
from effects import _jax
from effects._api.check import check_at
from effects._jax import pallas
from effects._model.where import Where
from effects.lowering.holders import send

MSG_COMPILED = (
    "The kernel `{kernel}` is compiled for a device, and `fx.config.bounds_checks` is set. Only simulated kernels "
    "check their accesses. Pass `interpret=True`, or call it in `with fx.config.override(bounds_checks=False)`."
)

MSG_CHECKED = (
    "The kernel `{kernel}` is differentiated, and `fx.config.bounds_checks` is set. JAX knows no derivative of a "
    "kernel that asks which program of the grid it is, as checks do. Take the derivative in "
    "`with fx.config.override(bounds_checks=False)`."
)

_CHECKED = "effects.bounds_checks"


def refuse_compiled(params: dict[str, Any], kernel: str) -> None:
    """Raises if a kernel is not simulated, which cannot check its accesses."""
    if not pallas.is_simulated(params):
        raise errors.unsupported(MSG_COMPILED.format(kernel=kernel))


def with_bounds_checks(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a kernel that checks its accesses. One that does so already stays as it is."""
    if pallas.has_note(params, _CHECKED):
        return params
    kernel, rank = _jax.closed_jaxpr(params["jaxpr"]), pallas.grid_rank(params)

    def checked(*references: Any) -> list[Any]:
        position, _ = pallas.grid_position(rank)
        prefetched = references[: pallas.num_prefetched(params)]
        for origin, frame, starts in pallas.block_starts(params, position, prefetched, _with_checks):
            for axis, (start, size) in enumerate(starts):
                _check(Where(*frame), f"start of the block of `{origin}`", axis, size, start, None)
        return _with_checks(kernel, references)

    return pallas.with_note(pallas.with_kernel(params, checked), _CHECKED)


def refuse_derivative(params: dict[str, Any], kernel: str) -> None:
    """Raises if a kernel checks its accesses."""
    if pallas.has_note(params, _CHECKED):
        raise errors.NotDifferentiable(MSG_CHECKED.format(kernel=kernel))


class _Checks:
    """The pass that checks accesses. It sends nothing."""

    def bind(self, eqn: Any, operands: list[Any], consts: Sequence[Any], state: list[Any]) -> Sequence[Any] | None:
        for kind, positions, mask in pallas.accesses(eqn, operands):
            where = Where(*(_jax.user_frame() or ("a line that JAX does not know", 0, "")))
            for axis, size, at in positions:
                _check(where, kind, axis, size, at, mask)
        return None

    def enters(self, eqn: Any) -> bool:
        return any(True for _ in _jax.jaxprs_in(eqn.params))


_CHECKS = _Checks()


def _with_checks(jaxpr: Any, args: Sequence[Any]) -> list[Any]:
    return send(_CHECKS, jaxpr, args)[1]


def _check(where: Where, what: str, axis: int, size: int, positions: Any, mask: Any) -> None:
    """Checks that positions along an axis are inside, except those that a mask leaves out."""
    positions = jnp.asarray(positions)
    if not positions.size:
        return
    if mask is not None:  # masked positions count as inside
        inside = jnp.clip(positions, 0, size - 1)
        positions = jnp.where(mask, positions, inside)
    first, last = jnp.min(positions), jnp.max(positions)
    fmt = "out of bounds: {what} at {first} to {last} along axis {axis}, which goes from 0 to {end}"
    values = {"what": what, "first": first, "last": last, "axis": axis, "end": size - 1}
    if not positions.ndim:
        fmt = "out of bounds: {what} at {first} along axis {axis}, which goes from 0 to {end}"
        del values["last"]
    check_at(where, (first >= 0) & (last < size), fmt, (), values)
