"""What lowerings on every platform do."""

from __future__ import annotations

from typing import Any

from effects import _jax
from effects._model.site import Site
from effects.lowering.host.sites import known_sites

MSG_UNTRACKED_SHARDED = (
    "Effect `{effect}` at {where} is in a program for several devices that `fx.jit` has not made. JAX keeps the order "
    "of effects on one device only, and XLA's partitioner takes none without an order. Write `fx.jit` in place of "
    "`jax.jit`, or around `jax.pmap`; where jit is disabled, or JAX looks for a NaN, do without."
)


def register_site(ctx: Any, site: Site) -> None:
    """Makes the site known for as long as the program may bring its records."""
    if (claim := known_sites.register(site.portable)) is not None:
        _jax.keep_with_program(ctx, claim)


def refuse_several_devices(ctx: Any, site: Site) -> None:
    """In a program that JAX dispatches. Without an order, each device of a per-device region may have its own."""
    if _jax.automatic_devices(ctx) or (site.effect.ordered and _jax.is_for_several_devices(ctx)):
        raise NotImplementedError(MSG_UNTRACKED_SHARDED.format(effect=site.effect, where=site.where))
