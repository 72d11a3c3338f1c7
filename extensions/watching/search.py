"""The search for a bad value: the function is run again from its arguments, now with a test after each equation.

So the watched program computes only one extra boolean, and the search is compiled only if a value is bad.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from effects import _jax
from effects._model.callback import HostCall
from effects._model.dependency import add_dependency
from effects._model.filter import Filter
from effects._model.function import HostFunction
from effects._model.operand import take_arguments
from effects._model.primitive import effect_p
from effects._model.record import Record
from effects._model.site import Site
from effects.dispatch.calling.jit import jit
from effects.dispatch.runtime.runtime import runtime
from effects.extensions.watching import WATCH
from effects.extensions.watching.each import Each, depth_of
from effects.extensions.watching.flag import run_flagged
from effects.extensions.watching.found import (
    STOPPED,
    Finding,
    bind_fields,
    ending,
    error_of,
    is_first_raised,
    read_fields,
    searches,
)
from effects.extensions.watching.options import Watch
from effects.lowering.derivatives import silent_jaxpr
from effects.lowering.summary import effects_of, summarize

_numbers = itertools.count(1)


def can_search(jaxpr: Any, regions: bool) -> bool:
    """True if a function can be run again: its results depend on its arguments alone. `regions`: True if the function
    may have per-device regions. With `mode="stop"` it may not: the program blocks the devices that the search needs,
    which is a deadlock. With `results=True` it may not either."""

    def is_in_the_way(eqn: Any) -> bool:
        is_effect = eqn.primitive is effect_p or any(_jax.jaxprs_in(eqn.params))
        return bool(effects_of(eqn.effects) and not is_effect) or (not regions and eqn.primitive is _jax.shard_map_p)

    summary = summarize(jaxpr)
    if summary.awaits_results or summary.handlers or _jax.has_callbacks_of_jax(jaxpr) or _jax.has_state(jaxpr):
        return False
    if any(map(is_in_the_way, _jax.eqns_in(jaxpr))) or _jax.has_axis(jaxpr) or _jax.is_in_kernel():
        return False
    return not jax.sharding.get_abstract_mesh().manual_axes


def run_searched(jaxpr: Any, args: Sequence[Any], watch: Watch, names: tuple[str, ...]) -> list[Any]:
    """Evaluates a closed jaxpr, and runs a search if a value is bad."""
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
    return add_dependency(ended, outs) if ended else outs


def _finder(jaxpr: Any, watch: Watch, names: tuple[str, ...]) -> Callable[..., None]:
    """Returns the callback that runs the function again on its arguments, and reports its bad values."""
    search, lock = dataclasses.replace(watch, search=next(_numbers)), threading.Lock()
    silent, depth = silent_jaxpr(jaxpr), depth_of(jaxpr)

    def run(numbers: Any, *args: Any) -> list[Any]:
        outs = Each(search, [numbers] * watch.results).run(silent, args, names)
        return [bad for out in outs if watch.results and (bad := watch.is_bad(out, "")) is not None]

    run.__qualname__ = "fx.watch"  # in the log
    again = jit(run, compiler_options=_NO_TRIALS)

    def look(args: Sequence[Any], place: Sequence[int] = (), first: int = 0, last: int = _ALL, most: int = _ALL) -> Any:
        """Runs the function again. Returns masks of the bad elements of its results, and the findings in program order.

        `place`: values made after this place are repaired; by default none. `first`, `last`: at the place, the first
        element to report, and the last not to repair. `most`: the maximum trip count of loops."""
        numbers = [most, first, last, *place, *[_ALL] * (depth + 1 - len(place))]
        searches[search.search] = []
        bad = [np.asarray(x) for x in again(np.array(numbers, np.int32), *args)]
        runtime.waiting.wait([*runtime.streams.of_this_thread()], None, None)  # without raising errors of other calls
        # An equation sorts after the equations of its own jaxprs.
        return bad, sorted(searches.pop(search.search), key=lambda each: ([*each.place, math.inf], each.device))

    def find(*given: Any, record: Record) -> None:
        if watch.mode == "raise" and not is_first_raised(record.token):
            return
        args = [*map(_jax.with_type, given, jaxpr.in_avals)]
        with lock:  # the findings' list in `searches` is for one thread at a time
            _, found = look(args)
            if watch.results:
                found = _first_that_shows(found, functools.partial(look, args))
        if not found and not _takes_bad(jaxpr, args, watch):
            found = [_NOT_FOUND]
        for _, device, where, of, fields in found if watch.mode == "log" else found[:1]:
            place = record.lane, record.device if device < 0 else device
            if watch.mode == "stop":
                raise error_of(where or watch.where, read_fields(of, fields), STOPPED, *place)
            bind_fields(watch, where or watch.where, of, fields, place)

    return find


def _first_that_shows(found: list[Finding], look: Callable[..., Any]) -> list[Finding]:
    """Finds by bisection the first finding that makes a result bad: each run repairs the bad values made after a given
    place."""
    most = max((int(each.fields["trips"]) for each in found if "trips" in each.fields), default=0)
    found = [each for each in found if "trips" not in each.fields]
    places = [each.place for each in found]
    without, _ = look([-_ALL], most=most)

    def is_bad(place: Sequence[int], last: int = _ALL) -> bool:
        bad, _ = look(place, last=last, most=most)
        return any((now & ~before).any() for now, before in zip(bad, without, strict=True))

    at = bisect.bisect_left(places, True, key=is_bad)
    if at == len(places):
        return []
    size = sum(math.prod(shape) for _, shape in found[at].of[2])
    element = bisect.bisect_left(range(size - 1), True, key=lambda last: is_bad(places[at], last))
    return [each for each in look(places[at], first=element, most=most)[1] if each.place == places[at]]


_ALL = np.iinfo(np.int32).max

_NO_TRIALS = {"xla_gpu_autotune_level": 0}
"""Compiles without trying out kernels on a GPU, since with `mode="stop"` that would be a deadlock:

1. A thread of XLA's launches the program with `GetGpuMutex` (xla/service/gpu/stream_executor_util.h) held for reading,
   comes to the record, and waits there for the search.
2. The search compiles, and XLA's autotuner wants that mutex for writing.
"""

_NOT_FOUND = Finding([], -1, None, (), {"at": (0, 0), "values": (np.nan,), "iteration": ()})


def _takes_bad(jaxpr: Any, args: Sequence[Any], watch: Watch) -> bool:
    """True if the arguments or constants of a function are bad: then a result may be bad though no operation is to
    blame."""
    literals = [x.val for eqn in _jax.eqns_in(jaxpr) for x in eqn.invars if hasattr(x, "val")]
    return bool(watch.any_bad([*args, *map(jnp.asarray, literals)], ""))
