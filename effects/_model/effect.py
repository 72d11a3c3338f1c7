"""Effects: their names, order domains and registry."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import threading
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal

from effects import _errors as errors
from effects import _jax
from effects._model.wire import DOMAIN_BITS, NO_DOMAIN

_PAGE = "docs/reference/declaring.md"
MSG_EFFECT_NAME = (
    "An effect was given the name {name!r}. An effect's name is a non-empty string. Write, say, `fx.Effect('ping')`."
)
MSG_EFFECT_KIND = (
    "Effect {name!r} was given the kind {kind!r}. An effect happens either on the host, replayed in order, or on the "
    "device. Write `kind='host'` or `kind='device'`."
)
MSG_EFFECT_DOMAIN_TYPE = (
    "Effect {name!r} was given the domain {domain!r}. An order domain is named by a string. Leave `domain` out for a "
    "domain of its own, or name one, such as 'program'."
)


PROGRAM = "program"
"""The order domain that the built-in host effects share."""

UNORDERED = "(unordered)"
"""In place of a domain, for effects without an order. Their tokens form no chain; the output tokens are joined."""


@dataclasses.dataclass(frozen=True)
class Effect(_jax.JaxEffect):
    """A kind of side effect.

    Args:
        name: The effect's name, in messages, records and `effects_barrier(effects=...)`.
        ordered: True if effects of this kind happen in program order.
        kind: `"host"`: devices only record it and the host replays it in order. `"device"`: it happens on the device.
        domain: The order domain, by name. Effects of one domain share one sequence. Without it the effect has a
            domain of its own; the built-in host effects are in `"program"`.

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

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise errors.type_error(MSG_EFFECT_NAME.format(name=self.name))
        if self.kind not in ("host", "device"):
            raise errors.value_error(MSG_EFFECT_KIND.format(name=self.name, kind=self.kind))
        if self.domain is not None and not isinstance(self.domain, str):
            raise errors.type_error(MSG_EFFECT_DOMAIN_TYPE.format(name=self.name, domain=self.domain))
        object.__setattr__(self, "ordered", bool(self.ordered))
        object.__setattr__(self, "domain", self.domain or self.name)

    def __str__(self) -> str:
        return self.name if self.ordered else f"{self.name} (unordered)"

    def __repr__(self) -> str:
        return f"Effect({self.name!r}, ordered={self.ordered}, kind={self.kind!r}, domain={self.domain!r})"

    def unordered(self) -> Effect:
        """The same effect without its order."""
        return dataclasses.replace(self, ordered=False)


@functools.cache
def describe_effect(effect: Effect) -> dict[str, Any]:
    """The effect's fields, as JSON has them, without those that have their defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(effect)} | {"domain": effect.name}
    return {name: value for name, value in vars(effect).items() if value != defaults[name]}


@dataclasses.dataclass(frozen=True)
class Order(_jax.JaxEffect):
    """The JAX effect of an order domain, beside the effects in it: JAX has one token for all of them."""

    domain: str

    def __str__(self) -> str:
        return f"order of {self.domain!r}"


def jax_effects(effect: Effect) -> set[_jax.JaxEffect]:
    """The JAX effects of an equation with this effect."""
    return {effect, Order(effect.domain)} if effect.ordered else {effect}


_jax.register_effect_types((Effect, Order), ordered=Order)


# The registry of effects.

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


MSG_DOMAINS = (
    "The order domain {domain!r} is one more than {count}. Each has a number in tokens, of which there are so many. "
    "Give effects one domain, as in `fx.Effect({domain!r}, domain='program')`."
)

_numbers: dict[str, int] = {PROGRAM: 0, UNORDERED: NO_DOMAIN}
"""By order domain: its number in tokens. Written under the lock, never removed from."""


def domain_number(domain: str) -> int:
    """The number of an order domain in tokens: a hash of the name, so that processes agree, or the next free number if
    another domain of this process has taken that one."""
    if (number := _numbers.get(domain)) is not None:
        return number
    digest = int.from_bytes(hashlib.blake2b(domain.encode(), digest_size=8).digest(), "little")
    count = 1 << DOMAIN_BITS
    with _numbers_lock:
        taken = {*_numbers.values()}
        free = (number for at in range(count) if (number := (digest + at) % count) not in taken)
        if (number := next(free, None)) is None:
            raise errors.value_error(MSG_DOMAINS.format(domain=domain, count=count))
        return _numbers.setdefault(domain, number)


_effects: dict[str, Effect] = {}  # by name; written under the lock, never removed from
_lock = threading.Lock()
_numbers_lock = threading.Lock()


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
        raise errors.type_error(MSG_NOT_AN_EFFECT.format(what=effect))
    with _lock:
        if (known := _effects.get(effect.name)) is None:
            domains = {PROGRAM, effect.name, *(other.domain for other in _effects.values())}
            if effect.ordered and effect.domain not in domains:
                shown = ", ".join(sorted(domains))
                raise errors.value_error(
                    MSG_UNKNOWN_DOMAIN.format(name=effect.name, domain=effect.domain, domains=shown)
                )
            if effect.ordered:
                domain_number(effect.domain)
            known = _effects[effect.name] = effect
    if known != effect:
        raise errors.value_error(MSG_EFFECT_TAKEN.format(known=known, effect=effect, name=effect.name))
    return known


def registered_effects() -> Mapping[str, Effect]:
    """The effects that are known, by name. A live, read-only view.

    Example:
        >>> import effects as fx
        >>> "print" in fx.registered_effects()
        True
    """
    return MappingProxyType(_effects)


MSG_EFFECT_OF_CALL = (
    "`{call}` at {where} was given the effect {effect}. An effect is registered before it is used; known are {known}. "
    "Write `fx.register_effect(fx.Effect('ping'))`, and pass that, or its name."
)
MSG_EFFECT_ON_DEVICE = (
    "`{call}` at {where} was given the effect `{effect}`, which happens on devices. What `{call}` does happens on the "
    "host. Pass an effect of `kind='host'`."
)
MSG_EFFECT_UNORDERED = (
    "`{call}` at {where} was given the effect `{effect}`, which has no order. The call has one, unless it says "
    "otherwise. Pass `ordered=False`, or an effect with an order."
)


def named_effect(call: str, where: object, effect: object) -> Effect:
    """The registered effect that a call at this line names, by itself, without its order, or by its name."""
    name = effect.name if isinstance(effect, Effect) else effect
    known = _effects.get(name) if isinstance(name, str) else None
    if known is None or (isinstance(effect, Effect) and effect not in (known, known.unordered())):
        names = ", ".join(sorted(_effects))
        raise errors.value_error(MSG_EFFECT_OF_CALL.format(call=call, where=where, effect=repr(effect), known=names))
    return effect if isinstance(effect, Effect) else known


def host_effect(call: str, where: object, effect: object, default: Effect, ordered: bool) -> Effect:
    """The effect of a call at this line: the one that it names, or its `own` if that is None."""
    chosen = default if effect is None else named_effect(call, where, effect)
    if chosen.kind != "host":
        raise errors.value_error(MSG_EFFECT_ON_DEVICE.format(call=call, where=where, effect=chosen.name))
    if ordered and not chosen.ordered:
        raise errors.value_error(MSG_EFFECT_UNORDERED.format(call=call, where=where, effect=chosen.name))
    return chosen if ordered else chosen.unordered()


def effect_names(effects: object) -> frozenset[str]:
    """The names of effects given as one or several names or `Effect`s; unknown ones are an error."""
    if isinstance(effects, (str, bytes, Effect)):
        effects = (effects,)
    names = set()
    for effect in effects if isinstance(effects, Iterable) else (effects,):
        name = effect.name if isinstance(effect, Effect) else effect
        if not isinstance(name, str) or name not in _effects:
            raise errors.value_error(MSG_UNKNOWN_EFFECT.format(name=name, known=", ".join(sorted(_effects))))
        names.add(name)
    return frozenset(names)


def keys_of_effects(names: Iterable[str]) -> frozenset[str | int]:
    """The names of effects, and the numbers of the order domains that they are in."""
    effects = [_effects[name] for name in names]
    return frozenset((*names, *(domain_number(effect.domain) for effect in effects if effect.ordered)))


JAX_DEBUG = register_effect(Effect("jax.debug", domain=PROGRAM))
JAX_IO = register_effect(Effect("jax.io_callback", domain=PROGRAM))
JAX_FFI = register_effect(Effect("jax.ffi_call", domain=PROGRAM, kind="device"))

OF_JAX = frozenset({JAX_DEBUG.name, JAX_IO.name, JAX_FFI.name})
"""The names of the effects that JAX's own callbacks and native calls become inside `fx.jit`."""


# The keys of a program's tokens: its order domains, and one key for all effects without an order.

ON_DEVICE: set[str] = set()
"""Order domains whose order is the device's: the host gets no records of them, and restores no order."""


def leave_order_to_device(effect: Effect) -> None:
    """Declares that nothing of an effect's order domain is restored on the host."""
    ON_DEVICE.add(effect.domain)


def token_key(effect: Effect) -> str:
    """The key of this effect's token."""
    return effect.domain if effect.ordered else UNORDERED


def is_numbered(key: str) -> bool:
    """True if effects whose token has this key are numbered."""
    return key != UNORDERED and key not in ON_DEVICE


def token_keys(effects: Iterable[Effect]) -> tuple[str, ...]:
    """The keys that a jaxpr or an equation with these effects needs, in the order in which its tokens are passed."""
    return tuple(sorted({token_key(effect) for effect in effects}))
