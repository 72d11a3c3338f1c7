"""Rewriting of jaxprs, equation by equation, into the jaxprs that equations hold too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from effects import _jax

Change = Callable[[Any], Any]  # of a jaxpr with constants


def rewritten(jaxpr: Any, apply: Callable[[Any, Sequence[Any]], Sequence[Any]]) -> Any:
    """The jaxpr of the same types that has `apply(equation, operands)` in the place of each equation."""
    return _jax.trace_to_jaxpr(lambda *args: _jax.interpret(jaxpr, args, apply), jaxpr.in_avals, like=jaxpr)


def with_jaxprs(eqn: Any, change: Change) -> Any:
    """An equation with changed jaxprs. The jaxpr of a region is traced with the region's axes in scope, where JAX's
    checks (`jax_enable_checks`) look for them, also in kernels of the region."""
    if eqn.primitive is not _jax.shard_map_p:
        return _jax.with_jaxprs(eqn, _inside(change))
    mesh, axes, check_vma = (eqn.params[name] for name in ("mesh", "newly_manual_axes", "check_vma"))
    with _jax.inside_region(mesh, axes, check_vma):
        return _jax.with_jaxprs(eqn, _inside(change))


def _inside(change: Change) -> Change:
    """The change for jaxprs as equations hold them, with constants or without."""

    def changed(jaxpr: Any) -> Any:
        after = change(_jax.closed_jaxpr(jaxpr))
        return after if _jax.is_closed(jaxpr) else _jax.open_jaxpr(after)

    return changed
