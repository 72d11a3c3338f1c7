"""Differentiation of loops with effects.

When JAX partitions a `scan` into a forward and a backward loop, it hoists loop-invariant equations out of the loop.
Effects must stay inside. JAX runs a `while` loop a second time for the tangents: that copy must have no effects. Both
are in `jax/_src/lax/control_flow/loops.py` of JAX 0.10 to 0.12: `_scan_known_hoisting` and `_while_partial_eval`.
`effects/_jax/patches.py` says when these rules can go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from effects import _errors as errors
from effects import _jax
from effects._jax import patches
from effects._model.content import HandlerContent
from effects._model.site import Site
from effects.lowering.holders import describe, find_holder
from effects.lowering.masks import mask_effects
from effects.lowering.rewrite import rewritten, with_jaxprs
from effects.lowering.summary import has_effects, summarize

MSG_UNAVAILABLE = (
    "The call of `{name}` at {where} is in a `while` loop that is linearized. JAX runs such a loop once more for the "
    "tangents, and a function whose results the loop needs would be called again. Use `jax.jvp`, which runs it once, "
    "or `jax.lax.scan`."
)


@_jax.weakref_lru_cache
def _anchored_jaxpr(jaxpr: Any, after: int) -> Any:
    """A loop's body that carries a mask, behind the first `after` inputs."""

    def with_indices(mask: Any, *args: Any) -> list[Any]:
        """Makes branch indices depend on the mask. Otherwise JAX partitions the branches and drops their effects."""

        def apply(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
            if eqn.primitive is _jax.cond_p and has_effects(eqn):
                operands = [jax.lax.select(mask, operands[0], operands[0]), *operands[1:]]
            return _jax.bind(eqn, operands)

        return _jax.interpret(jaxpr, args, apply)

    def body(*args: Any) -> list[Any]:
        consts, mask, others = args[:after], args[after], args[after + 1 :]
        return [mask, *mask_effects(chosen, mask, [mask, *consts, *others])]

    avals = jaxpr.in_avals
    boolean = _jax.boolean()
    chosen = _jax.trace_to_jaxpr(with_indices, [boolean, *avals], like=jaxpr)
    return _jax.trace_to_jaxpr(body, [*avals[:after], boolean, *avals[after:]], like=jaxpr)


@patches.implements("scan in remat")
def _anchors(divide: Callable[..., Any]) -> Callable[..., Any]:
    """In a rematerialized region, effects get a mask that always holds. The loop carries the mask, so JAX does not take
    the effects for loop-invariant. Without lanes, the mask is dropped when the program is lowered."""
    holder = find_holder(_jax.scan_p)
    assert holder is not None

    def rule(saveable: Any, unknown: Sequence[bool], instantiated: Sequence[bool], eqn: Any) -> Any:
        if not has_effects(eqn.params["jaxpr"]):
            return divide(saveable, unknown, instantiated, eqn)

        def carrying(value: Any, args: Sequence[Any]) -> Any:
            return describe(holder, value, _anchored_jaxpr, args, eqn.params)

        invars, params = carrying(_jax.literal(True), eqn.invars)
        known, staged, unknown_outs, instantiated_outs, values = divide(
            saveable,
            carrying(False, unknown)[0],
            carrying(True, instantiated)[0],
            _jax.with_more_outputs(eqn, invars, params),
        )
        return known, staged, unknown_outs[1:], instantiated_outs[1:], values

    return rule


patches.implements("hoisting from scans")(_jax.hoisting_unless(has_effects))


unavailable_p: _jax.Primitive = _jax.Primitive("unavailable")
unavailable_p.multiple_results = True
"""() -> the results of a callback or a custom call, of the types `avals`, in the copy of a loop that JAX re-runs for
the tangents. The function is not called again, so there are none: this must be dead code. JAX drops it if no tangent
needs a result; else lowering it is an error."""


@unavailable_p.def_impl
def _refuse_unavailable(*ctx: Any, site: Site, avals: Any = ()) -> Any:
    raise errors.NotDifferentiable(MSG_UNAVAILABLE.format(name=site.content.title, where=site.where))


unavailable_p.def_abstract_eval(lambda *, site, avals: list(avals))
_jax.mlir.register_lowering(unavailable_p, _refuse_unavailable)


@_jax.weakref_lru_cache
def silent_jaxpr(jaxpr: Any) -> Any:
    """The jaxpr without its effects."""

    def apply(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        if not has_effects(eqn):
            return _jax.bind(eqn, operands)
        if (site := eqn.params.get("site")) is not None:  # an effect itself
            avals = tuple(var.aval for var in eqn.outvars)
            return unavailable_p.bind(site=site, avals=avals) if avals else []
        return _jax.bind(with_jaxprs(eqn, silent_jaxpr), operands)

    return rewritten(jaxpr, apply)


class _Silencing:
    """A trace that stages a loop without its effects."""

    def __init__(self, trace: Any):
        self._trace = trace
        self.outs: Any = None

    def default_process_primitive(self, primitive: Any, tracers: Any, params: dict[str, Any]) -> Any:
        loops = {name: silent_jaxpr(value) if name.endswith("_jaxpr") else value for name, value in params.items()}
        self.outs = self._trace.default_process_primitive(primitive, tracers, loops)
        return self.outs


@patches.implements("linearized while")
def _runs_again_silently(divide: Callable[..., Any]) -> Callable[..., Any]:
    """Linearizes a loop. The copy of it that runs for the tangents has no effects."""

    def rule(trace: Any, *tracers: Any, **params: Any) -> Any:
        if not (has_effects(params["cond_jaxpr"]) or has_effects(params["body_jaxpr"])):
            return divide(trace, *tracers, **params)
        silencing = _Silencing(trace)
        outs = divide(silencing, *tracers, **params)
        # If JAX found no known values, only the staged loop runs, so that loop keeps its effects.
        return trace.default_process_primitive(_jax.while_p, tracers, params) if outs is silencing.outs else outs

    return rule


@patches.implements("while in remat")
def _runs_again_silently_in_remat(divide: Callable[..., Any]) -> Callable[..., Any]:
    """Partitions a loop in a rematerialized region. The copy of it that runs again has no effects."""

    def rule(saveable: Any, unknown: Sequence[bool], instantiated: Sequence[bool], eqn: Any) -> Any:
        try:
            known, staged, *others = divide(saveable, unknown, instantiated, eqn)
        except AssertionError:  # JAX's rule refuses: it would have to save residuals per iteration
            if not any(unknown):  # then it saves residuals of the loop as a whole, which runs once
                outs = [False] * len(eqn.outvars)
                return eqn, None, outs, outs, []
            for site in set[Site]().union(*(summarize(inner).sites for inner in _jax.jaxprs_in(eqn.params))):
                if site.results is not None or isinstance(site.content, HandlerContent):
                    _refuse_unavailable(site=site)
            raise
        if known is not None and staged is not None and has_effects(eqn):
            staged = with_jaxprs(staged, silent_jaxpr)
        return known, staged, *others

    return rule
