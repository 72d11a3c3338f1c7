"""Effects: what they are called, which of them there are, and the one primitive of those that happen on the host.

`effect_p` takes the operands of one site and gives what the program waits for: the results of a callback, else nothing.
How it becomes part of a program stands in `lowering/`; how it happens at once, outside of any program, in `dispatch/`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np

from effects import _errors as errors
from effects import _jax
from effects._config import config
from effects._model.wire import DOMAIN_BITS

if TYPE_CHECKING:
    from effects._model.site import Site

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
MSG_EFFECT_ALLOWED_IN = (
    "Effect {name!r} was allowed in {unknown}, which JAX does not ask about. `allowed_in` takes any of {every}. "
    "Remove what is unknown, or leave `allowed_in` out to allow all of them."
)


PROGRAM = "program"
"""The order domain that the built-in host effects share."""

UNORDERED = "(unordered)"
"""In place of a domain: of effects that have no order. Their tokens do not chain; what they return is joined."""

ALLOWED_IN = ("control_flow", "custom_derivatives", "remat")
"""Where JAX asks whether an effect may appear."""


@dataclasses.dataclass(frozen=True)
class Effect(_jax.JaxEffect):
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
    allowed_in: frozenset[str] = frozenset(ALLOWED_IN)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(MSG_EFFECT_NAME.format(name=self.name))
        if self.kind not in ("host", "device"):
            raise ValueError(MSG_EFFECT_KIND.format(name=self.name, kind=self.kind))
        if self.domain is not None and not isinstance(self.domain, str):
            raise TypeError(MSG_EFFECT_DOMAIN_TYPE.format(name=self.name, domain=self.domain))
        allowed_in = frozenset(self.allowed_in)
        if unknown := sorted(map(str, allowed_in - set(ALLOWED_IN))):
            raise ValueError(
                MSG_EFFECT_ALLOWED_IN.format(name=self.name, unknown=", ".join(unknown), every=", ".join(ALLOWED_IN))
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


@functools.cache
def describe_effect(effect: Effect) -> dict[str, Any]:
    """The effect's fields, as JSON has them, without those that have their defaults."""
    defaults = {field.name: field.default for field in dataclasses.fields(effect)} | {"domain": effect.name}
    fields = {name: value for name, value in vars(effect).items() if value != defaults[name]}
    return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in fields.items()}


@dataclasses.dataclass(frozen=True)
class Order(_jax.JaxEffect):
    """What JAX sees of an order domain, beside the effects in it: one token of its own for all of them."""

    domain: str

    def __str__(self) -> str:
        return f"order of {self.domain!r}"


def jax_effects(effect: Effect) -> set[_jax.JaxEffect]:
    """What an equation with this effect tells JAX."""
    return {effect, Order(effect.domain)} if effect.ordered else {effect}


def _allowed_in(where: str) -> type:
    """A type whose instances are the effects that are allowed there. JAX asks by type, we answer by field."""

    class Allowed(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, Order) or (isinstance(instance, Effect) and where in instance.allowed_in)

    return Allowed("Allowed", (), {})


_jax.register_effect_types(
    (Effect, Order),
    ordered=Order,
    control_flow=_allowed_in("control_flow"),
    custom_derivatives=_allowed_in("custom_derivatives"),
    remat=_allowed_in("remat"),
)


# Which effects there are.

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


MSG_DOMAIN_NUMBER = (
    "Effects of the order domains {first!r} and {second!r} are in one program and have the same number in tokens, "
    "{number} of {count}. A domain gets its number from its name, so that all programs and processes agree. Give the "
    "effect of one of them another name, or both one domain."
)


def domain_numbers(domains: Iterable[str]) -> dict[str, int]:
    """The numbers of a program's order domains in tokens, the same in all programs and processes. Where domains of
    different programs have one number, they wait for each other, and that is all."""
    names: dict[int, str] = {}
    for domain in domains:
        if domain in (PROGRAM, UNORDERED):
            number = (PROGRAM, UNORDERED).index(domain)
        else:
            digest = hashlib.blake2b(domain.encode(), digest_size=8).digest()
            number = 2 + int.from_bytes(digest, "little") % ((1 << DOMAIN_BITS) - 2)
        if (other := names.setdefault(number, domain)) != domain:
            count = 1 << DOMAIN_BITS
            raise ValueError(MSG_DOMAIN_NUMBER.format(first=other, second=domain, number=number, count=count))
    return {domain: number for number, domain in names.items()}


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
        if (known := _effects.get(effect.name)) is None:
            _check_domain(effect)
            known = _effects[effect.name] = effect
    if known != effect:
        raise ValueError(MSG_EFFECT_TAKEN.format(known=known, effect=effect, name=effect.name))
    return known


def _check_domain(effect: Effect) -> None:
    domains = {PROGRAM, *(other.domain for other in _effects.values())}
    if effect.ordered and effect.domain not in domains | {effect.name}:
        known = ", ".join(sorted(domains | {effect.name}))
        raise ValueError(MSG_UNKNOWN_DOMAIN.format(name=effect.name, domain=effect.domain, domains=known))


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
        raise ValueError(MSG_EFFECT_OF_CALL.format(call=call, where=where, effect=repr(effect), known=names))
    return effect if isinstance(effect, Effect) else known


def host_effect(call: str, where: object, effect: object, own: Effect, ordered: bool) -> Effect:
    """The effect of a call at this line: the one that it names, or its `own` if that is None."""
    chosen = own if effect is None else named_effect(call, where, effect)
    if chosen.kind != "host":
        raise ValueError(MSG_EFFECT_ON_DEVICE.format(call=call, where=where, effect=chosen.name))
    if ordered and not chosen.ordered:
        raise ValueError(MSG_EFFECT_UNORDERED.format(call=call, where=where, effect=chosen.name))
    return chosen if ordered else chosen.unordered()


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


# Under which keys the tokens of a program are: its order domains, and one for all that have no order.

ON_DEVICE: set[str] = set()
"""Order domains of which nothing is restored on the host, which hears nothing of them: their order is the device's."""


def leave_order_to_device(effect: Effect) -> None:
    """Declares that nothing of an effect's order domain is restored on the host."""
    ON_DEVICE.add(effect.domain)


def token_key(effect: Effect) -> str:
    """Under which key the token of this effect is."""
    return effect.domain if effect.ordered else UNORDERED


def is_numbered(key: str) -> bool:
    """Whether effects whose token is under this key take numbers."""
    return key != UNORDERED and key not in ON_DEVICE


def token_keys(effects: Iterable[Effect]) -> tuple[str, ...]:
    """The keys that a jaxpr or an equation with these effects needs, in the order in which its tokens are passed."""
    return tuple(sorted({token_key(effect) for effect in effects}))


# The primitive of host effects, and what transformations make of it.

MSG_NOT_DIFFERENTIABLE = (
    "A derivative was asked of the results of the callback `{function}` at {where}. JAX cannot look into a Python "
    "function. Wrap the call in `jax.custom_jvp` or `jax.custom_vjp`, or its arguments in `jax.lax.stop_gradient`."
)
MSG_TRANSPOSED = (
    "Effect `{effect}` at {where} has an operand that depends on the argument of a linear function which is "
    "transposed. The transposed function gets a cotangent, and the argument never has a value there. Use "
    "`fx.print_grad` to see the cotangent, or move the effect out of the function."
)

MSG_WHEN = (
    "`{call}` at {where} was given {value} as `when`. That is one boolean, which the program may compute. Write a "
    "comparison, say `when=loss > 10`, and of an array `when=x.any()`."
)

effect_p = _jax.Primitive("effect")
effect_p.multiple_results = True


def result_avals(site: Site) -> list[Any]:
    """Types of what a program waits for at this site. In a per-device region a user's function may return another
    thing to each device; JAX takes what its own callbacks return to be the same on all."""
    avals = [_jax.ShapedArray(result.shape, result.stored) for result in site.results or ()]
    return avals if site.origin is not None else [_jax.per_device(aval) for aval in avals]


@effect_p.def_effectful_abstract_eval
def _effect_abstract_eval(*operands: Any, site: Site) -> tuple[list[Any], set[Any]]:
    return result_avals(site), jax_effects(site.effect)


_jax.infer_types_each_time(effect_p)


def bind_where(when: Any, operands: Sequence[Any], site: Site, call: str) -> None:
    """The effect of a site where `when` holds; None: always. Nothing uses its results."""
    if config.static_levels and not site.filter.allowed():
        return
    if when is None:
        effect_p.bind(*operands, site=site)
        return
    if _jax.is_reference(when):
        when = when[...]  # what it holds now
    is_boolean = isinstance(when, (bool, np.bool_)) or getattr(when, "dtype", None) == np.dtype(bool)
    if not is_boolean or np.shape(when) != ():
        is_array = hasattr(when, "dtype")
        shown = f"an array of {when.dtype}{list(np.shape(when))}" if is_array else errors.shown(when)
        raise TypeError(MSG_WHEN.format(call=call, where=site.where, value=shown))
    if isinstance(when, _jax.Tracer):
        jax.lax.cond(when, lambda *given: effect_p.bind(*given, site=site)[:0], lambda *_: [], *operands)
    elif when:
        effect_p.bind(*operands, site=site)


def _effect_jvp(primals: Any, tangents: Any, *, site: Site) -> tuple[list[Any], list[Any]]:
    """The primal program has the effect; tangents have none. A function of the user's has no derivative."""
    if site.results and any(type(tangent) is not _jax.ad.Zero for tangent in tangents):
        raise errors.NotDifferentiable(MSG_NOT_DIFFERENTIABLE.format(function=site.content.title, where=site.where))
    outs = effect_p.bind(*primals, site=site)
    return outs, [_jax.zero_tangent(out) for out in outs]


def _effect_batch(
    axis_data: Any, operands: Sequence[Any], dims: Sequence[Any], *, site: Site
) -> tuple[Sequence[Any], Sequence[Any]]:
    """One record with lanes, replayed lane by lane, whether its operands differ between them or not."""
    if all(dim is None for dim in dims) and _jax.is_axis_of_tangents(axis_data):
        outs = effect_p.bind(*operands, site=site)
        return outs, [None] * len(outs)
    moved = [
        x if dim is None else _jax.lanes_at_front(x, dim, axis_data) for x, dim in zip(operands, dims, strict=True)
    ]
    outs = effect_p.bind(*moved, site=site.with_lanes(axis_data.size, [dim is not None for dim in dims]))
    return outs, [0] * len(outs)


def _effect_transpose(cotangents: Any, *operands: Any, site: Site) -> Any:
    """What is linear has no value in a transposed function; all else has been evaluated. JAX leaves its own out."""
    if site.origin is not None and site.results is None:
        return [None] * len(operands)
    raise errors.NotDifferentiable(MSG_TRANSPOSED.format(effect=site.effect, where=site.where))


_jax.ad.primitive_transposes[effect_p] = _effect_transpose
_jax.ad.primitive_jvps[effect_p] = _effect_jvp
_jax.batching.fancy_primitive_batchers[effect_p] = _effect_batch
