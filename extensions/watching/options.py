"""The options of a call of `fx.watch`, and its tests for bad values."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import functools
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from effects import _errors as errors
from effects import _jax
from effects._model.where import MAX_CALLERS, Where
from effects.extensions.watching.tables import is_float, is_numeric, makes_bad, shows_bad
from effects.lowering.control_flow import LANES, without_lanes
from effects.lowering.holders import find_holder
from effects.lowering.rewrite import rewritten, with_jaxprs

MSG_PREDICATE_FAILED = (
    "`when` of `fx.watch` at {where} failed for {type}, {what}: {error}. It is called with every "
    "array of numbers that the function computes. Give a function that takes arrays of all these types, or name some "
    "operations with `sites`."
)
MSG_PREDICATE_RETURNED = (
    "`when` of `fx.watch` at {where} returned {returned} for {type}, {what}. It returns a boolean "
    "for the array, or one for each element. Write a comparison, say `when=lambda x: abs(x) > 1e4`."
)
MSG_NO_SITES = (
    "`fx.watch` at {where} was given sites={sites}, and the function has no such operation. They are patterns for the "
    "operations of the function itself: a file, `file.py:12`, a function or an operation; those of a derivative are "
    "named in `fx.watch(jax.grad(f))`. The nearest names are {near}."
)

Mode = Literal["raise", "log", "stop"]


@dataclasses.dataclass(frozen=True)
class Watch:
    """The options of a call of `fx.watch`.

    Attributes:
        backward: True if the watched function is a backward pass that JAX made.
        search: The number of the search that runs the function again; 0 if none does.
        summary: True if values are summarized, in place of all else.
        results: True if a value is bad only if it reaches a result.
    """

    nan: bool
    inf: bool
    when: Callable[[Any], Any] | None
    sites: tuple[str, ...]
    mode: Mode
    where: Where
    backward: bool = False
    search: int = 0
    summary: bool = False
    results: bool = False

    def makes(self, eqn: Any) -> bool:
        """True if the watch looks at this equation."""
        if self.summary or self.when is not None:
            found = any(self.may_be_bad(var.aval) for var in eqn.outvars)
        else:
            found = makes_bad(eqn, self.nan, self.inf)
        names = self._names(eqn) if found and self.sites else ()
        return found and (not self.sites or any(fnmatch.filter(names, pattern) for pattern in self.sites))

    def may_be_bad(self, aval: Any) -> bool:
        """True if a value of this type can have a bad element."""
        return (is_float(aval) if self.when is None else is_numeric(aval)) and 0 not in aval.shape

    def _names(self, eqn: Any) -> tuple[str, ...]:
        line, operation = where_of(eqn) or self.where, eqn.primitive.name
        place = f"{line.file}:{line.line}"
        return operation, line.function, line.file, place, os.path.basename(line.file), os.path.basename(place)

    def check_sites(self, jaxpr: Any) -> None:
        """Raises if one of `sites` names no operation of a function."""
        known = sorted({name for eqn in _jax.eqns_in(jaxpr) for name in self._names(eqn)} if self.sites else ())
        missing = [site for site in self.sites if not any(fnmatch.fnmatchcase(name, site) for name in known)]
        if not missing:
            return
        near = [each for site in missing for each in difflib.get_close_matches(site, known, cutoff=0)]
        names = ", ".join(map(repr, dict.fromkeys(near))) or "nothing, since it computes nothing"
        raise errors.value_error(MSG_NO_SITES.format(where=self.where, sites=errors.shown(missing), near=names))

    def shows(self, eqn: Any, position: int) -> bool:
        """True if a bad value in this operand makes the only result bad."""
        return self.when is None and shows_bad(eqn, position, self.nan, self.inf)

    def is_bad(self, x: Any, operation: str) -> Any:
        """The mask of the bad elements of a value; None if it can have none."""
        if not self.may_be_bad(_jax.typeof(x)):
            return None
        if self.when is not None:
            return self._is_true(self.when, x, operation)
        x = x if jnp.finfo(x.dtype).bits > 8 else x.astype(np.float32)
        return jnp.isnan(x) if not self.inf else ~jnp.isfinite(x) if self.nan else jnp.isinf(x)

    def any_bad(self, values: Any, operation: str) -> Any:
        """A traced boolean, true if any of these values has a bad element; False if none can."""
        return any_of([_any(bad) for x in values if (bad := self.is_bad(x, operation)) is not None])

    def _is_true(self, when: Callable[[Any], Any], x: Any, operation: str) -> Any:
        what = f"the result of `{operation}`" if operation else "a result of the function"
        shown = {"where": self.where, "type": type_of(x), "what": what}
        try:
            bad = when(x)
        except Exception as error:
            raise errors.type_error(MSG_PREDICATE_FAILED.format(error=errors.shown(error), **shown)) from error
        is_boolean = isinstance(bad, bool) or getattr(bad, "dtype", None) == np.dtype(bool)
        if not is_boolean or np.shape(bad) not in ((), np.shape(x)):
            returned = type_of(bad) if hasattr(bad, "dtype") else errors.shown(bad)
            raise errors.type_error(MSG_PREDICATE_RETURNED.format(returned=returned, **shown))
        return jnp.broadcast_to(bad, np.shape(x))


def _any(flags: Any) -> Any:
    """Reduces the last axis in a second step: twice as fast with XLA's CPU compiler, if a barrier keeps them apart."""
    rows = tuple(range(flags.ndim - 1))
    return jax.lax.optimization_barrier(flags.any(rows)).any() if rows else flags.any()


def any_of(flags: list[Any]) -> Any:
    """The `or` of traced booleans and constants False; False if there are none."""
    flags = [flag for flag in flags if flag is not False]
    return functools.reduce(operator.or_, flags) if flags else False


def bodies_of(eqn: Any) -> list[Any]:
    """The jaxprs of an equation that a watch enters. It does not enter a `custom_vmap`, whose rule may still replace
    it, nor another `fx.watch`, nor the second copy of a loop's condition that `without_lanes` makes."""
    is_left = eqn.primitive in (_jax.custom_vmap_p,) or eqn.primitive.name == "watch" or eqn.params.get("name") == LANES
    if is_left or not (eqn.primitive is _jax.shard_map_p or find_holder(eqn.primitive) is not None):
        return []
    values = [x for value in eqn.params.values() for x in (value if isinstance(value, tuple) else (value,))]
    with_constants = {id(x.jaxpr): x for x in values if _jax.is_closed(x)}  # JAX < 0.11: `jaxprs_in` omits constants
    return [with_constants.get(id(x)) or _jax.closed_jaxpr(x) for x in _jax.jaxprs_in(eqn.params)]


def is_condition(eqn: Any, body: Any) -> bool:
    """True if a body is the condition of a loop."""
    return eqn.primitive is _jax.while_p and body is eqn.params["cond_jaxpr"]


def with_joined_lanes(jaxpr: Any) -> Any:
    """The jaxpr with a single condition for all lanes of a loop."""
    return _joined(jaxpr) if any(map(_has_lanes, _jax.eqns_in(jaxpr))) else jaxpr


def _has_lanes(eqn: Any) -> bool:
    return eqn.primitive is _jax.while_p and bool(_jax.closed_jaxpr(eqn.params["cond_jaxpr"]).out_avals[0].shape)


@_jax.weakref_lru_cache
def _joined(jaxpr: Any) -> Any:
    def apply(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        eqn = with_jaxprs(eqn, with_joined_lanes)
        if _has_lanes(eqn):
            operands, params = without_lanes(operands, **eqn.params)
            eqn = eqn.replace(params=params)
        return _jax.bind(eqn, operands)

    return rewritten(jaxpr, apply)


@_jax.weakref_lru_cache
def has_any(jaxpr: Any, watch: Watch) -> bool:
    """True if the watch looks at any equation of a jaxpr, nested jaxprs included."""
    return any(makes_any(eqn, watch) for eqn in jaxpr.eqns)


def makes_any(eqn: Any, watch: Watch) -> bool:
    """True if the watch looks at an equation, or at one in its bodies."""
    bodies = bodies_of(eqn)
    return any(has_any(body, watch) for body in bodies) if bodies else watch.makes(eqn)


def bind_region(
    eqn: Any, region: Callable[..., Any], operands: Sequence[Any], consts: Sequence[Any] = (), out_specs: Any = ()
) -> Any:
    """Binds a per-device region with another function. It takes `consts` before the operands, and its extra results, of
    `out_specs`, come before those of the equation."""
    params = eqn.params
    return jax.shard_map(
        region,
        mesh=params["mesh"],
        in_specs=(*[PartitionSpec()] * len(consts), *params["in_specs"]),
        out_specs=(*out_specs, *params["out_specs"]),
        axis_names=params["newly_manual_axes"],
        check_vma=params["check_vma"],
    )(*consts, *operands)


def type_of(x: Any) -> str:
    """The type of an array, such as `float32[2,3]`."""
    aval = _jax.typeof(x)
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"


def where_of(eqn: Any, around: Sequence[tuple[str, int, str]] = ()) -> Where | None:
    """The user's line that made an equation, with its callers, if JAX knows it. `around`: the frames of the equations
    around it."""
    frames = [*_jax.user_frames(eqn), *around]
    if not frames:
        return None
    return Where(*frames[0]).called_from(frames[1 : 1 + MAX_CALLERS])
