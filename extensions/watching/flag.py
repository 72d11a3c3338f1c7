"""A boolean that is true if any value is bad, for which as little as possible is computed.

Most bad values show in a later one: a NaN shows in each sum that it is added to, and in a loop's carry up to the last
iteration. So only the results are tested, and values that show in none of them. Nothing else of the program changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import PartitionSpec

from effects import _jax
from effects.extensions.watching.options import Watch, any_of, bind_region, bodies_of, has_any, is_condition, makes_any
from effects.extensions.watching.tables import is_float
from effects.lowering.holders import Extra, find_holder, with_carried_predicate


class _Plan(NamedTuple):
    """The values of a body that are tested in addition to its results.

    Attributes:
        hidden: The variables that may be bad and show in no result.
        applied: The positions of the equations that return such a variable, or have one inside.
    """

    hidden: frozenset[Any]
    applied: frozenset[int]


def run_flagged(jaxpr: Any, args: Sequence[Any], watch: Watch) -> tuple[Any, list[Any]]:
    """Evaluates a jaxpr with constants. Returns a flag, true if a value is bad, and the results."""
    hidden, outs = (False, _jax.evaluate(jaxpr, args)) if watch.results else _run(jaxpr, args, watch)
    given = {*jaxpr.jaxpr.invars}
    made = [out for out, var in zip(outs, jaxpr.jaxpr.outvars, strict=True) if not (_is_variable(var) and var in given)]
    return any_of([hidden, watch.any_bad(made, "")]), outs


@_jax.weakref_lru_cache
def _plan(jaxpr: Any, watch: Watch, first: int, carried: int) -> _Plan:
    inner = jaxpr.jaxpr
    makers = [eqn for eqn in inner.eqns if makes_any(eqn, watch)]
    maybe = {var for eqn in makers for var in eqn.outvars if watch.may_be_bad(var.aval)}
    _, hidden = _seen_in(inner, watch, first, carried, (True,) * len(inner.outvars), maybe)
    applied = [
        any(plan.hidden or plan.applied for plan in _plans_of(eqn, watch)) or not hidden.isdisjoint(eqn.outvars)
        for eqn in inner.eqns
    ]
    return _Plan(frozenset(hidden), frozenset(at for at, is_applied in enumerate(applied) if is_applied))


def _plans_of(eqn: Any, watch: Watch) -> Iterable[_Plan]:
    """The plans of the bodies of an equation. All values of a loop's condition are hidden: they show in no result."""
    for body in bodies_of(eqn):
        if not is_condition(eqn, body):
            yield _plan(body, watch, *_carried(eqn, body))
        elif has_any(body, watch):
            yield _Plan(frozenset(), frozenset([0]))


def _carried(eqn: Any, body: Any) -> tuple[int, int]:
    """The number of constants of a loop's body, and the number of values that it carries."""
    if eqn.primitive is _jax.scan_p:
        return _jax.read_scan(eqn.params)
    if eqn.primitive is _jax.while_p and not is_condition(eqn, body):
        return eqn.params["body_nconsts"], len(eqn.outvars)
    return 0, 0


def _seen_in(
    jaxpr: Any, watch: Watch, first: int, carried: int, kept: Sequence[bool], maybe: set[Any]
) -> tuple[set[Any], set[Any]]:
    """The result of `_seen` for a body whose results are tested where `kept` is true. A loop's body carries `carried`
    values: they follow its `first` inputs, and are its first results. A bad value in the carry is seen if it lasts up
    to the last iteration."""
    lasting = {at for at in range(carried) if kept[at]}
    while True:
        results = [var for at, var in enumerate(jaxpr.outvars) if (at in lasting if at < carried else kept[at])]
        seen, hidden = _seen(jaxpr, watch, results, maybe)
        lost = {at for at in lasting if jaxpr.invars[first + at] not in seen}
        if not lost:
            return seen, hidden
        lasting -= lost


@_jax.weakref_lru_cache
def _shown_inputs(jaxpr: Any, watch: Watch, first: int, carried: int, kept: tuple[bool, ...]) -> frozenset[int]:
    """The positions of the inputs of a body whose bad values show in those of its results that are `kept`."""
    seen, _ = _seen_in(jaxpr.jaxpr, watch, first, carried, kept, set())
    return frozenset(at for at, var in enumerate(jaxpr.jaxpr.invars) if var in seen)


def _shown_operands(eqn: Any, watch: Watch, seen: set[Any]) -> Iterable[int]:
    """The positions of the operands of an equation whose bad values show in results that are in `seen`."""
    if not (bodies := bodies_of(eqn)):
        floats = [var for var in eqn.outvars if is_float(var.aval)]
        return [at for at in range(len(eqn.invars)) if floats and floats[0] in seen and watch.shows(eqn, at)]
    if (ahead := _ahead(eqn)) is None:
        return []
    kept = tuple(var in seen for var in eqn.outvars)
    looping = [body for body in bodies if not is_condition(eqn, body)]
    shown = frozenset.intersection(*(_shown_inputs(body, watch, *_carried(eqn, body), kept) for body in looping))
    if eqn.primitive is _jax.while_p or eqn.params.get("length") == 0:  # then the loop may have no iteration
        first, carried = _carried(eqn, looping[0])
        shown = [at for at in shown if first <= at < first + carried and kept[at - first]]
    return [ahead + at for at in shown]


def _ahead(eqn: Any) -> int | None:
    """The number of operands before those of the equation's bodies; None if the bodies do not take all others."""
    if eqn.primitive is _jax.while_p:
        return eqn.params["cond_nconsts"]
    return _AHEAD.get(eqn.primitive)


_CALLS = _jax.jit_p, _jax.custom_jvp_call_p, _jax.custom_vjp_call_p, _jax.remat_p
_AHEAD = {**dict.fromkeys((*_CALLS, _jax.scan_p), 0), _jax.cond_p: 1}


def _seen(jaxpr: Any, watch: Watch, results: Sequence[Any], maybe: set[Any]) -> tuple[set[Any], set[Any]]:
    """The variables whose bad values show in one of these results or in a tested variable; and the variables that are
    tested, since their bad values show nowhere else."""
    seen, hidden = {var for var in results if _is_variable(var)}, set[Any]()
    used = {x for eqn in jaxpr.eqns for x in eqn.invars if _is_variable(x)}.union(filter(_is_variable, jaxpr.outvars))
    for eqn in reversed(jaxpr.eqns):
        # A carried value may be used in the loop only.
        of_use = used.union(eqn.outvars) if bodies_of(eqn) else used
        hidden.update(var for var in eqn.outvars if var in maybe and var in of_use and var not in seen)
        seen |= hidden
        seen.update(x for at in _shown_operands(eqn, watch, seen) if _is_variable(x := eqn.invars[at]))
    return seen, hidden


def _is_variable(x: Any) -> bool:
    return not hasattr(x, "val")


def _run(jaxpr: Any, args: Sequence[Any], watch: Watch, first: int = 0, carried: int = 0) -> tuple[Any, list[Any]]:
    """Evaluates a jaxpr. Returns a flag, true if a value is bad that shows in no result, and the results."""
    plan = _plan(jaxpr, watch, first, carried)
    flags: list[Any] = []

    def apply(eqn: Any, operands: list[Any]) -> Sequence[Any]:
        if any(inner.hidden or inner.applied for inner in _plans_of(eqn, watch)):
            flag, outs = _bind_flagged(eqn, operands, watch)
        else:
            flag, outs = False, _jax.bind(eqn, operands)
        hidden = [out for out, var in zip(outs, eqn.outvars, strict=True) if var in plan.hidden]
        flags.extend([flag, watch.any_bad(hidden, eqn.primitive.name)])
        return outs

    with_effects = {position for position, eqn in enumerate(jaxpr.eqns) if eqn.effects}
    outs = _jax.interpret(jaxpr, args, apply, plan.applied | with_effects)
    return any_of(flags), outs


def _bind_flagged(eqn: Any, operands: Sequence[Any], watch: Watch) -> tuple[Any, Sequence[Any]]:
    """Binds an equation in whose bodies bad values may be hidden. The bodies take the flag and return it updated."""
    if eqn.primitive is _jax.shard_map_p:
        return _bind_region(eqn, operands, watch)
    if eqn.primitive is _jax.while_p and has_any(bodies_of(eqn)[0], watch):
        return _run(*with_carried_predicate(operands, **eqn.params), watch)

    def run(body: Any, state: Sequence[Any], args: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        flag, outs = _run(body, args, watch)
        return [_with(state[0], flag)], outs

    extra = Extra(
        eqn.primitive.bind,
        lambda body, after: _flagged(body, watch, *_carried(eqn, body), after),
        run,
        state=[_jax.as_per_device(np.bool_(False))],
    )
    holder = find_holder(eqn.primitive)
    assert holder is not None
    outs = holder(extra, *operands, **eqn.params)
    return extra.state[0], outs


def _with(flag: Any, other: Any) -> Any:
    return flag if other is False else flag | _jax.as_per_device(other)


@_jax.weakref_lru_cache
def _flagged(jaxpr: Any, watch: Watch, first: int, carried: int, after: int) -> Any:
    """A body that takes a flag after its first `after` inputs, and returns it before its results."""

    def run(*args: Any) -> list[Any]:
        flag, outs = _run(jaxpr, [*args[:after], *args[after + 1 :]], watch, first, carried)
        return [_with(args[after], flag), *outs]

    avals = jaxpr.in_avals
    flag = _jax.per_device(_jax.boolean())
    return _jax.trace_to_jaxpr(run, [*avals[:after], flag, *avals[after:]], like=jaxpr)


def _bind_region(eqn: Any, operands: Sequence[Any], watch: Watch) -> tuple[Any, Sequence[Any]]:
    """Binds a per-device region, in which each device has a flag."""

    def region(*args: Any) -> tuple[Any, ...]:
        flag, outs = _run(_jax.closed_jaxpr(eqn.params["jaxpr"]), args, watch)
        return (_jax.as_per_device(np.bool_(False) | flag).reshape(1), *outs)

    flags, *outs = bind_region(eqn, region, operands, out_specs=[PartitionSpec(tuple(eqn.params["newly_manual_axes"]))])
    return flags.any(), outs
