"""A custom call whose results are started as an asynchronous operation, and used for nothing else, is that operation.

So the program goes on when the handler has returned, and what the handler gives may come later.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from effects import _jax
from effects._api.custom_call_primitive import custom_call_p
from effects._model.asynchronous import async_start_p
from effects._model.operation import Called, Kept


def with_started_calls(jaxpr: Any) -> Any:
    """A jaxpr with constants, in which such a call and its start are one equation."""
    inner = jaxpr.jaxpr
    uses = Counter(id(atom) for eqn in inner.eqns for atom in eqn.invars)
    uses.update(map(id, inner.outvars))
    eqns: list[Any] = []
    calls: dict[int, tuple[int, int]] = {}  # by the identity of a result: which equation gives it, and as which result
    for eqn in inner.eqns:
        if eqn.primitive is async_start_p and type(eqn.params["operation"]) is Kept:
            sources = [calls.get(id(atom), (-1, -1)) for atom in eqn.invars]
            at = sources[0][0] if sources else -1
            if at >= 0 and all(source[0] == at for source in sources) and _is_started_alone(eqns[at:], uses):
                eqn, eqns[at] = _started(eqns[at], eqn, tuple(result for _, result in sources)), None
        elif eqn.primitive is custom_call_p and not eqn.params["masked"] and not eqn.params["lanes"]:
            calls.update((id(out), (len(eqns), result)) for result, out in enumerate(eqn.outvars))
        eqns.append(eqn)
    if len(left := [eqn for eqn in eqns if eqn is not None]) == len(eqns):
        return jaxpr
    return _jax.closed_jaxpr(inner.replace(eqns=left), jaxpr.consts)


def _is_started_alone(eqns: list[Any], uses: Counter[int]) -> bool:
    """Whether nothing but the start uses what the first of these equations gives, and no effect comes in between."""
    call, *between = eqns
    return all(uses[id(out)] <= 1 for out in call.outvars) and not any(eqn and eqn.effects for eqn in between)


def _started(call: Any, start: Any, kept: tuple[int, ...]) -> Any:
    params = dict(call.params)
    site, operation = params.pop("site"), start.params["operation"]
    fields = {field.name: getattr(operation, field.name) for field in dataclasses.fields(operation)}
    called = Called(**fields, site=site, call=tuple(params.items()), kept=kept)
    effects = frozenset(call.effects) | frozenset(start.effects)
    return call.replace(
        primitive=async_start_p,
        params={"operation": called},
        outvars=start.outvars,
        effects=type(call.effects)(effects),
    )
