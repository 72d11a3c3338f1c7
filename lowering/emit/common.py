"""What lowerings on every platform do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from effects import _jax
from effects._model.site import Site
from effects.lowering.host.sites import known_sites

MSG_UNTRACKED_SHARDED = (
    "Effect `{effect}` at {where} is in a program for several devices that `fx.jit` has not made. JAX keeps the order "
    "of effects on one device only, and XLA's partitioner takes none without an order. Write `fx.jit` in place of "
    "`jax.jit`, or around `jax.pmap`; where jit is disabled, or JAX looks for a NaN, do without."
)

MSG_NO_DEVICE = (
    "Effect `{effect}` at {where} is in a program that is lowered for {platform}, and this process has no such "
    "device. Effects are published from there by callbacks of JAX's, which it makes only for devices of this process. "
    "Lower the program where there is one, or export it with `fx.export(f, platforms=[{platform!r}])`."
)

MSG_ON_HOST = (
    "Effect `{effect}` at {where} is in a part of a program for {platforms} that `compute_on('device_host')` leaves to "
    "the host. XLA finds no handlers there, and would end the process. Move the effect out of that part: what goes in "
    "and what comes out can be shown around it."
)

MSG_PER_SHARD_HERE = (
    "Effect `{effect}` at {where} has `{option}=True` {place}. How arrays are sharded is not known there. Leave out "
    "`{option}=True`, or {remedy}."
)


def register_site(ctx: Any, site: Site) -> None:
    """Makes the site known for as long as the program may bring its records. Refuses one where XLA has no handlers."""
    if platforms := " and ".join(_jax.left_to_host_by(ctx)):
        raise _jax.Refused(MSG_ON_HOST.format(effect=site.effect, where=site.where, platforms=platforms))
    claim = known_sites.register(site.portable)
    # JAX exports no program that keeps an object. Whoever calls what was exported has the claim: `fx.Exported`.
    if not (site.content.is_portable and _jax.is_for_export(ctx)):
        _jax.keep_with_program(ctx, claim)


def lower_as_jax(ctx: Any, operands: Sequence[Any], site: Site) -> Sequence[Any] | None:
    """Lowers what was a callback of JAX's own without `ordered=True` as JAX does, where there is no other way."""
    if (origin := site.origin) is None or origin.ordered or not _is_refused(ctx, site):
        return None
    return _jax.mlir.lower_fun(lambda *operands: origin.give_back(site, operands))(ctx, *operands)


def refuse_several_devices(ctx: Any, site: Site) -> None:
    """In a program that JAX dispatches. Without an order, each device of a per-device region may have its own."""
    if _is_refused(ctx, site):
        raise _jax.Refused(MSG_UNTRACKED_SHARDED.format(effect=site.effect, where=site.where))


def refused_per_shard(site: Site, place: str, remedy: str) -> NotImplementedError:
    option = "per_shard" if site.origin is None else "partitioned"
    shown = {"effect": site.effect, "where": site.where, "option": option, "place": place, "remedy": remedy}
    return NotImplementedError(MSG_PER_SHARD_HERE.format(**shown))


def refuse_missing_platform(ctx: Any, site: Site) -> None:
    """Where a record is published by a callback of JAX's."""
    if (platform := _jax.missing_platform(ctx)) is not None:
        raise _jax.Refused(MSG_NO_DEVICE.format(effect=site.effect, where=site.where, platform=platform))


def _is_refused(ctx: Any, site: Site) -> bool:
    return bool(_jax.automatic_devices(ctx)) or (site.effect.ordered and _jax.is_for_several_devices(ctx))
