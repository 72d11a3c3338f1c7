"""What an effect is called, and what may be done with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

from effects import _errors as errors
from effects import _jax_compat as compat

PROGRAM = "program"
"""The order domain that the built-in host effects share."""

PLACES = ("control_flow", "custom_derivatives", "remat")
"""Where JAX asks whether an effect may appear."""


@dataclasses.dataclass(frozen=True)
class Effect(compat.JaxEffect):
    """A kind of side effect.

    Args:
        name: What the effect is called, in messages, records and `effects_barrier(effects=...)`.
        ordered: Whether effects of this kind happen in program order.
        kind: `"host"`: devices only record it and the host replays it in order. `"device"`: it happens on the device.
        domain: The order domain, by name. Effects of one domain share one sequence. Without it the effect has a
            domain of its own; the built-in host effects are in `"program"`.
        allowed_in: Where it may appear, of `"control_flow"`, `"custom_derivatives"` and `"remat"`; by default
            everywhere.

    Example:
        >>> import effects as fx
        >>> ping = fx.register_effect(fx.Effect("ping"))
        >>> ping.ordered, ping.kind, ping.domain
        (True, 'host', 'ping')
    """

    name: str
    _: dataclasses.KW_ONLY
    ordered: bool = True
    kind: Literal["host", "device"] = "host"
    domain: str = ""
    allowed_in: frozenset[str] = frozenset(PLACES)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(errors.MSG_EFFECT_NAME.format(name=self.name))
        if self.kind not in ("host", "device"):
            raise ValueError(errors.MSG_EFFECT_KIND.format(name=self.name, kind=self.kind))
        if self.domain is not None and not isinstance(self.domain, str):
            raise TypeError(errors.MSG_EFFECT_DOMAIN_TYPE.format(name=self.name, domain=self.domain))
        allowed_in = frozenset(self.allowed_in)
        if unknown := sorted(map(str, allowed_in - set(PLACES))):
            raise ValueError(
                errors.MSG_EFFECT_PLACE.format(name=self.name, unknown=", ".join(unknown), places=", ".join(PLACES))
            )
        object.__setattr__(self, "ordered", bool(self.ordered))
        object.__setattr__(self, "domain", self.domain or self.name)
        object.__setattr__(self, "allowed_in", allowed_in)

    def __str__(self) -> str:
        return self.name if self.ordered else f"{self.name} (unordered)"

    def __repr__(self) -> str:
        return f"Effect({self.name!r}, ordered={self.ordered}, kind={self.kind!r}, domain={self.domain!r})"

    def unordered(self) -> Effect:
        """The same effect without its order."""
        return dataclasses.replace(self, ordered=False)


def _where(predicate: Callable[[Effect], bool]) -> type:
    """A type whose instances are the effects that satisfy a predicate. JAX asks by type, we answer by field."""

    class Where(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, Effect) and predicate(instance)

    return Where("EffectsWhere", (), {})


compat.register_effect_type(
    Effect,
    ordered=_where(lambda effect: effect.ordered),
    control_flow=_where(lambda effect: "control_flow" in effect.allowed_in),
    custom_derivatives=_where(lambda effect: "custom_derivatives" in effect.allowed_in),
    remat=_where(lambda effect: "remat" in effect.allowed_in),
)
