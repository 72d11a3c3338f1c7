"""Which effects there are."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from effects._model.effect import PROGRAM, Effect

MSG_NOT_AN_EFFECT = (
    "`register_effect` was given {what!r}. What is registered is an `fx.Effect`. Write "
    "`fx.register_effect(fx.Effect('ping'))`."
)
MSG_UNKNOWN_DOMAIN = (
    "Effect {name!r} names the order domain {domain!r}, which does not exist. A domain comes into being with the first "
    "effect that has it as its own, that is, by its own name. Name one of {domains}, or leave `domain` out."
)
MSG_EFFECT_TAKEN = (
    "The name {name!r} is taken: it is registered as {known!r} and cannot become {effect!r}. A name means one effect "
    "for the whole process, because programs carry it. Choose another name, or register it with the same fields."
)
MSG_UNKNOWN_EFFECT = (
    "{name!r} is not a registered effect. Effects are named as they were registered; these are known: {known}. "
    "Correct the name, or register the effect first with `fx.register_effect`."
)


_effects: dict[str, Effect] = {}  # by name; written under the lock, never removed from
_lock = threading.Lock()


def register_effect(effect: Effect) -> Effect:
    """Makes an effect known, so that programs may have it.

    Registering the same effect again changes nothing; a different one under a taken name is an error.

    Args:
        effect: The effect.

    Returns:
        The effect.

    Example:
        >>> import effects as fx
        >>> checkpoint = fx.register_effect(fx.Effect("checkpoint", domain="program"))
        >>> fx.registered_effects()["checkpoint"] is checkpoint
        True
    """
    if not isinstance(effect, Effect):
        raise TypeError(MSG_NOT_AN_EFFECT.format(what=effect))
    with _lock:
        known = _effects.setdefault(effect.name, effect)
        if known is effect and effect.ordered:
            domains = {PROGRAM, effect.name, *(other.domain for other in _effects.values() if other is not effect)}
            if effect.domain not in domains:
                del _effects[effect.name]
                raise ValueError(
                    MSG_UNKNOWN_DOMAIN.format(
                        name=effect.name, domain=effect.domain, domains=", ".join(sorted(domains))
                    )
                )
    if known != effect:
        raise ValueError(MSG_EFFECT_TAKEN.format(known=known, effect=effect, name=effect.name))
    return known


def registered_effects() -> Mapping[str, Effect]:
    """The effects that are known, by name. A live, read-only view.

    Example:
        >>> import effects as fx
        >>> "print" in fx.registered_effects()
        True
    """
    return MappingProxyType(_effects)


def effect_names(effects: object) -> frozenset[str]:
    """The names of effects given as one or several names or `Effect`s; unknown ones are an error."""
    if isinstance(effects, (str, bytes, Effect)):
        effects = (effects,)
    names = set()
    for effect in effects if isinstance(effects, Iterable) else (effects,):
        name = effect.name if isinstance(effect, Effect) else effect
        if not isinstance(name, str) or name not in _effects:
            raise ValueError(MSG_UNKNOWN_EFFECT.format(name=name, known=", ".join(sorted(_effects))))
        names.add(name)
    return frozenset(names)


JAX_DEBUG = register_effect(Effect("jax.debug", domain=PROGRAM))
JAX_IO = register_effect(Effect("jax.io_callback", domain=PROGRAM))

OF_JAX = frozenset({JAX_DEBUG.name, JAX_IO.name})
"""What JAX's own callbacks are inside `fx.jit`, by name."""
