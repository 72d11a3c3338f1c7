"""A custom call whose results are started as an asynchronous operation, and used for nothing else, is that operation.

So the program goes on when the handler has returned, and what the handler gives may come later.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from effects import _jax
from effects._config import config
from effects._model.device import platforms_on_host, platforms_with_handlers
from effects._model.effect import token_key
from effects._model.site import Site
from effects.extensions.asynchronous.operation import Kept
from effects.extensions.asynchronous.primitives import ASYNC, async_start_p
from effects.extensions.asynchronous.rules import keep, start_by
from effects.extensions.custom_calls.primitive import custom_call_p
from effects.extensions.custom_calls.rules import call_handler, of_lanes_and_call, threaded_call_p
from effects.lowering.tokens import TokenContext, Tokens


@dataclasses.dataclass(frozen=True, repr=False)
class Called(Kept):
    """What a handler of the user's gives, which may answer later. The token pass makes it of a custom call and the
    start of its results.

    Attributes:
        site: That of the records that the handler publishes.
        call: The other parameters of the call.
        kept: Which of the results of the call are those of the operation.
    """

    site: Site = dataclasses.field(kw_only=True)
    call: tuple[tuple[str, Any], ...] = dataclasses.field(kw_only=True)
    kept: tuple[int, ...] = dataclasses.field(kw_only=True)


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
    called = Called(**{**fields, "site": site}, call=tuple(params.items()), kept=kept)
    effects = frozenset(call.effects) | frozenset(start.effects)
    return call.replace(
        primitive=async_start_p,
        params={"operation": called},
        outvars=start.outvars,
        effects=type(call.effects)(effects),
    )


started_call_p: _jax.Primitive = _jax.Primitive("started_custom_call")
started_call_p.multiple_results = True
"""(*operands, tokens) -> (*results, ticket, tokens): the tokens of the effect, if there is one, and of asynchronous
operations. The results hold nothing: what the handler gives is taken when it is done."""


@started_call_p.def_abstract_eval
def _started_call_abstract_eval(*operands: Any, results: Any, start: Called, tokens: int, **_: Any) -> list[Any]:
    return [*map(_jax.per_device, results), start.ticket, *operands[len(operands) - tokens :]]


def start_call(ctx: TokenContext, tokens: Tokens, operands: Sequence[Any], start: Called) -> tuple[Tokens, list[Any]]:
    """Calls a handler that may answer later, and gives the ticket of what it comes to."""
    _, params = of_lanes_and_call(dict(start.call))
    own = token_key(start.site.effect)
    keys = [key for key in (own, token_key(ASYNC)) if key in tokens]
    given = [tokens[key] for key in keys]
    outs = started_call_p.bind(*operands, *given, site=start.site, start=start, tokens=len(keys), **params)
    ticket, *after = outs[len(params["results"]) :]
    return dict(zip(keys, after, strict=True)), [ticket]


def _lower_started(
    ctx: Any, *operands: Any, platform: str, start: Called, tokens: int, site: Site, **params: Any
) -> Any:
    """Our handler starts the user's. Without native handlers the call is made as any other, and what it gives is
    kept."""
    if config.native and platform in platforms_on_host():
        token = tuple(ctx.avals_out[len(ctx.avals_out) - tokens : -1])
        options = {"token": token, "counts": bool(token), "start": start, "has_side_effect": True}
        return call_handler(ctx, platform, operands, site=site, **options, **params)

    def run(*operands: Any) -> Sequence[Any]:
        operands, given = operands[: len(operands) - tokens], operands[len(operands) - tokens :]
        if tokens > 1:
            outs = threaded_call_p.bind(*operands, given[0], site=site, call=0, **params)
        else:
            lanes = {"masked": False, "lanes": (), "lanes_of": ((),) * len(operands)}
            outs = custom_call_p.bind(*operands, site=site, **lanes, **params)
        results, own = outs[: len(params["results"])], outs[len(params["results"]) :]
        token, ticket = keep(given[-1], [results[at] for at in start.kept], start)
        return [*results, *ticket, *own, token]

    return _jax.mlir.lower_fun(run)(ctx, *operands)


for _platform in platforms_with_handlers():
    _rule = functools.partial(_lower_started, platform=_platform)
    _jax.mlir.register_lowering(started_call_p, _rule, platform=_platform, cacheable=False)

start_by(Called, start_call, with_started_calls)
