"""A function that had a bad value is run again from its arguments, now with a look at each equation.

So the program itself has one boolean more, and what says where a bad value comes from is compiled once there is one.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from effects import _jax
from effects._model.after import after
from effects._model.callback import HostCall
from effects._model.filter import Filter
from effects._model.function import HostFunction
from effects._model.operand import take_arguments
from effects._model.primitive import effect_p
from effects._model.record import Record
from effects._model.site import Site
from effects.dispatch.calling.jit import jit
from effects.dispatch.runtime.runtime import runtime
from effects.extensions.watching import WATCH
from effects.extensions.watching.asked import Watch
from effects.extensions.watching.each import Each, depth_of
from effects.extensions.watching.flag import run_flagged
from effects.extensions.watching.found import (
    STOPPED,
    bind_fields,
    ending,
    error_of,
    is_first,
    read_fields,
    searches,
)
from effects.lowering.derivatives import silent_jaxpr
from effects.lowering.summary import effects_of, summarize

_numbers = itertools.count(1)


def can_search(jaxpr: Any, ends: bool) -> bool:
    """Whether a function can be run again: what it computes depends on its arguments alone. `ends`: whether its program
    ends with what the search finds."""
    summary = summarize(jaxpr)
    if summary.awaits_results or summary.handlers or _jax.has_callbacks_of_jax(jaxpr) or _jax.has_state(jaxpr):
        return False
    for eqn in _jax.eqns_in(jaxpr):
        if effects_of(eqn.effects) and eqn.primitive is not effect_p and not any(_jax.jaxprs_in(eqn.params)):
            return False
    if ends and any(eqn.primitive is _jax.shard_map_p for eqn in _jax.eqns_in(jaxpr)):
        return False  # the search would need devices that wait for it
    return not (_jax.has_axis(jaxpr) or jax.sharding.get_abstract_mesh().manual_axes or _jax.is_in_kernel())


def run_searched(jaxpr: Any, args: Sequence[Any], watch: Watch, names: tuple[str, ...]) -> list[Any]:
    """Evaluates a jaxpr with constants, and searches it if a value is bad."""
    flag, outs = run_flagged(jaxpr, args, watch)
    if flag is False:
        return outs
    given, leaves, tree = take_arguments(tuple(args), {}, "fx.watch", watch.where)
    find = _finder(jaxpr, watch, names)
    call = HostCall(HostFunction(find, name="fx.watch"), pass_record=True)
    content = ending(find) if watch.mode == "stop" else call
    site = Site(WATCH, content, leaves, tree, watch.where, filter=Filter())

    def nothing(*_: Any) -> list[Any]:
        return [_jax.as_per_device(jnp.int32(0))] if watch.mode == "stop" else []

    ended = jax.lax.cond(flag, lambda *given: effect_p.bind(*given, site=site), nothing, *given)
    return after(ended, outs) if ended else outs


def _finder(jaxpr: Any, watch: Watch, names: tuple[str, ...]) -> Callable[..., None]:
    """What is called with the arguments of a function that had a bad value."""
    search, lock = dataclasses.replace(watch, search=next(_numbers)), threading.Lock()
    again = jit(lambda *args: Each(search).run(silent_jaxpr(jaxpr), args, names), compiler_options=_NO_TRIALS)
    if watch.results:
        return _finder_of_results(jaxpr, watch, search, names, lock)

    def find(*given: Any, record: Record) -> None:
        if watch.mode == "raise" and not is_first(record.token):
            return
        args = [*map(_jax.with_type, given, jaxpr.in_avals)]
        with lock:  # one thread at a time has the list of what is found
            searches[search.search] = []
            again(*args)
            runtime.waiting.wait([*runtime.streams.own()], None, None)  # and raises nothing of others
            found = sorted(searches.pop(search.search), key=lambda each: each[0])
        if not found and not _takes_bad(jaxpr, args, watch):
            found = [_NOT_FOUND]
        for _, where, of, fields, device, grid in found if watch.mode == "log" else found[:1]:
            place = record.lane, record.device if device is None else device, grid
            if watch.mode == "stop":
                raise error_of(where or watch.where, read_fields(of, fields), STOPPED, *place)
            bind_fields(watch, where or watch.where, of, fields, place)

    return find


def _finder_of_results(
    jaxpr: Any, watch: Watch, search: Watch, names: tuple[str, ...], lock: threading.Lock
) -> Callable[..., None]:
    """The same where only results count. What operations make bad is repaired but up to one: the first with which a
    result is bad is found by bisection."""
    silent, depth = silent_jaxpr(jaxpr), depth_of(jaxpr)

    def run(numbers: Any, *args: Any) -> list[Any]:
        outs = Each(search, [numbers]).run(silent, args, names)
        return [bad for out in outs if (bad := watch.is_bad(out, "")) is not None]

    again = jit(run, compiler_options=_NO_TRIALS)

    def find(*given: Any, record: Record) -> None:
        if watch.mode == "raise" and not is_first(record.token):
            return
        args = [*map(_jax.with_type, given, jaxpr.in_avals)]

        def look(place: Sequence[float], first: int = 0, last: int = _ALL, most: int = _ALL) -> tuple[Any, list[Any]]:
            key = [int(min(x, _ALL)) for x in place]
            searches[search.search] = []
            numbers = np.array([most, first, last, *key, *[_ALL] * (depth + 1 - len(key))], np.int32)
            bad = [np.asarray(x) for x in again(numbers, *args)]
            runtime.waiting.wait([*runtime.streams.own()], None, None)
            found = sorted(searches.pop(search.search), key=lambda each: each[0][0])
            return bad, found

        with lock:
            _, found = look([_ALL])
            trips = max((int(x[_FIELDS]["trips"]) for x in found if "trips" in x[_FIELDS]), default=0)
            places = [x[0][0] for x in found if "trips" not in x[_FIELDS]]
            without, _ = look([-_ALL], most=trips)

            def is_bad(place: Sequence[float], last: int = _ALL) -> bool:
                bad, _ = look(place, last=last, most=trips)
                return any((now & ~before).any() for now, before in zip(bad, without, strict=True))

            at = bisect.bisect_left(places, True, key=is_bad)
            if at < len(places):
                of = next(of for (place, _), _, of, *_ in found if place == places[at])
                size = sum(math.prod(shape) for _, shape in of[2])
                element = bisect.bisect_left(range(size - 1), True, key=lambda last: is_bad(places[at], last))
                found = [x for x in look(places[at], first=element, most=trips)[1] if x[0][0] == places[at]]
            elif _takes_bad(jaxpr, args, watch):
                return
            else:
                found = [_NOT_FOUND]
        _, where, of, fields, _, grid = found[0]
        place = record.lane, record.device, grid
        if watch.mode == "stop":
            raise error_of(where or watch.where, read_fields(of, fields), STOPPED, *place)
        bind_fields(watch, where or watch.where, of, fields, place)

    return find


_FIELDS = 3
"""Where what a record says stands in what a search has found."""

_ALL = np.iinfo(np.int32).max

_NO_TRIALS = {"xla_gpu_autotune_level": 0}
"""Compiles without trying out kernels on a GPU, since with `mode="stop"` that would be a deadlock:

1. A thread of XLA's launches the program, comes to the record, and waits there for the search.
2. The search compiles, and XLA waits with its trials until no program is being launched.
"""

_NOT_FOUND: tuple[Any, ...] = (), None, (), {"at": (0, 0), "values": (np.nan,), "iteration": ()}, None, ()


def _takes_bad(jaxpr: Any, args: Sequence[Any], watch: Watch) -> bool:
    """Whether a function is given bad values, or has such constants: then no operation has to make one."""
    literals = [x.val for eqn in _jax.eqns_in(jaxpr) for x in eqn.invars if hasattr(x, "val")]
    return bool(watch.any_bad([*args, *map(jnp.asarray, literals)], ""))
