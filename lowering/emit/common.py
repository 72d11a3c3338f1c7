"""What lowerings on every platform do."""

from __future__ import annotations

from typing import Any

from effects import _errors as errors
from effects import _jax as compat
from effects._model.site import Site
from effects.lowering.host.sites import known_sites


def register_site(ctx: Any, site: Site) -> None:
    """Makes the site known for as long as the program may bring its records."""
    if (claim := known_sites.register(site.portable)) is not None:
        compat.keep_with_program(ctx, claim)


def refuse_several_devices(ctx: Any, site: Site) -> None:
    """In a program that JAX dispatches. Without an order, each device of a per-device region may have its own."""
    if compat.automatic_devices(ctx) or (site.effect.ordered and compat.is_for_several_devices(ctx)):
        raise NotImplementedError(errors.MSG_PLAIN_SHARDED.format(effect=site.effect, where=site.where))
