"""Types, primitives and values: `jax._src.core`."""

from __future__ import annotations

from typing import Any

import jax
from jax._src import ad_util, core, literals
from jax._src import effects as jax_effects
from jax._src.state.types import AbstractRef, RefEffect

Primitive = core.Primitive
ShapedArray = core.ShapedArray
Tracer = core.Tracer
JaxEffect = jax_effects.Effect
typeof = core.typeof
abstract_token = core.abstract_token
physical_aval = core.physical_aval


def physical_key_data(x: Any) -> Any:
    """The numbers of a PRNG key array."""
    return jax.random.key_data(x)


zero_tangent = ad_util.zero_from_primal
"""The tangent of a value that does not depend on what is differentiated."""

DEVICE_MEMORY = core.MemorySpace.Device


def is_reference(x: Any) -> bool:
    """Whether this is a mutable reference, such as `jax.new_ref` makes."""
    return is_reference_type(getattr(x, "aval", None))


def is_reference_type(aval: Any) -> bool:
    """Whether this is the type of a mutable reference."""
    return isinstance(aval, AbstractRef)


def plain_number(x: Any) -> Any:
    """A number as Python has it, in place of one to which JAX has given a type: functions with rules of their own get
    such where they are called outside of programs. Anything else as it is."""
    plain = _PLAIN.get(type(x))
    return x if plain is None else plain(x)


_PLAIN: dict[type, Any] = {literals.TypedInt: int, literals.TypedFloat: float, literals.TypedComplex: complex}


def has_state(jaxpr: Any) -> bool:
    """Whether a jaxpr reads or writes references of the function around it."""
    return any(isinstance(effect, RefEffect) for effect in jaxpr.effects)


def tracer_names() -> set[str]:
    """What the text of a value that is not known yet begins with: the names of all classes of such values, those of
    other libraries too, and what JAX shows of some instead."""
    names, classes = {"JitTracer", "GradTracer", "VmapTracer"}, [Tracer]
    while classes:
        names.add(classes[-1].__name__)
        classes += classes.pop().__subclasses__()
    return names
