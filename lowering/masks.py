"""The mask pass: effects only where a predicate holds.

Under `vmap`, a branch whose predicate differs between lanes runs for all lanes, and a loop runs until its last lane has
ended. The pass gives every effect inside a mask, so that only the lanes that would reach the effect in a Python program
have it. Like the token pass it is a loop over the equations of a jaxpr, with rules for some primitives and holders for
the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp

from effects import _errors as errors
from effects import _jax
from effects.lowering.holders import Extra, find_holder, holds, registering, rewritten_for, send, send_into
from effects.lowering.summary import effects_of, needs_mask, summarize
from effects.lowering.tokens import registered_rule

# Lanes one after the other, for calls that cannot run for all lanes of a `vmap` at once.
#
# Under nested `vmap`s the lanes of the outermost vary slowest, as for every other effect. A `scan` would reverse that,
# since an outer `vmap` maps the body of the `scan`. So such a call stays a primitive until it is lowered, and each
# `vmap` puts a loop around its body.

_Binder = TypeVar("_Binder", bound=Callable[..., Sequence[Any]])

_lane_p: _jax.Primitive = _jax.Primitive("lane_by_lane")
_lane_p.multiple_results = True
"""(*operands) -> the results of its body."""


_lane_takers: dict[_jax.Primitive, Callable[..., Sequence[Any]]] = {}
"""By primitive, a function of (lane, *args, **params) that binds it such that its effects know their lane. Pallas has
such primitives."""


def takes_lane(primitive: _jax.Primitive) -> Callable[[_Binder], _Binder]:
    """Declares a function that binds a primitive such that its effects know their lane."""
    return registering(_lane_takers, [primitive])


def lane_by_lane(fun: Callable[..., Sequence[Any]], args: Sequence[Any]) -> list[Any]:
    """Calls a function such that `vmap` calls it for one lane after the other."""
    return _lane_p.bind(*args, body=jax.make_jaxpr(fun)(*args))


def call_lanes(axis_data: Any, args: Sequence[Any], dims: Sequence[int | None], *, body: Any) -> tuple[Any, Any]:
    """The batching rule: calls a jaxpr for one lane after the other."""
    is_mapped = [dim is not None for dim in dims]
    values = [x if dim is None else _jax.lanes_at_front(x, dim, axis_data) for x, dim in zip(args, dims, strict=True)]
    if _jax.is_axis_of_tangents(axis_data):  # along such an axis, effects happen once
        loop, has_lanes = _jax.batched(body, axis_data, is_mapped, False)
        return _lane_p.bind(*values, body=loop), [0 if has else None for has in has_lanes]

    def call_each(*args: Any) -> Any:
        def call(given: tuple[Any, list[Any]]) -> list[Any]:
            lane, mapped = given[0], iter(given[1])
            operands = [next(mapped) if is_one else x for is_one, x in zip(is_mapped, args, strict=True)]
            return send(_LANES, body, operands, [lane])[1]

        mapped = [x for is_one, x in zip(is_mapped, args, strict=True) if is_one]
        return jax.lax.map(call, (lanes_of(axis_data), mapped))

    outs = lane_by_lane(call_each, values)
    return outs, [0] * len(outs)


def lanes_of(axis_data: Any) -> Any:
    """The numbers of the lanes, in the type and rank of a kernel's input."""
    return jnp.arange(axis_data.size, dtype=jnp.float32)[:, None, None]


class _Lanes:
    """The pass that gives each kernel the number of its lane."""

    def bind(self, eqn: Any, operands: list[Any], consts: Sequence[Any], state: list[Any]) -> Sequence[Any] | None:
        if not self.enters(eqn) or (bind := _lane_takers.get(eqn.primitive)) is None:
            return None
        (lane,) = consts
        return bind(lane, *operands, **eqn.params)

    def enters(self, eqn: Any) -> bool:
        return any(summarize(inner).all_effects for inner in _jax.jaxprs_in(eqn.params))


_LANES = _Lanes()


@holds(_lane_p)
def _hold(extra: Extra, *args: Any, body: Any) -> Sequence[Any]:
    return extra.bind(*extra.values, *args, body=extra.rewrite(body))


@_lane_p.def_effectful_abstract_eval
def _abstract_eval(*avals: Any, body: Any) -> tuple[Any, Any]:
    return body.out_avals, set(body.effects)


@_lane_p.def_impl
def _run(*args: Any, body: Any) -> list[Any]:
    return _jax.evaluate(body, args)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, body: Any) -> tuple[Any, Any]:
    given = [x for x in tangents if not isinstance(x, _jax.ad.Zero)]
    which = [not isinstance(x, _jax.ad.Zero) for x in tangents]
    derivative, has_tangent = _jax.ad.jvp_jaxpr(body, which, False)
    outs = _lane_p.bind(*primals, *given, body=derivative)
    rest = iter(outs[len(has_tangent) :])
    outs = outs[: len(has_tangent)]
    return outs, [
        next(rest) if has else _jax.ad.Zero.from_primal_value(out) for has, out in zip(has_tangent, outs, strict=True)
    ]


_jax.batching.fancy_primitive_batchers[_lane_p] = call_lanes
_jax.ad.primitive_jvps[_lane_p] = _jvp
_jax.mlir.register_lowering(_lane_p, _jax.mlir.lower_fun(_run))


MSG_MISSING_MASK = (
    "Effect {effects} reached the primitive `{primitive}` at {where}, under a predicate that differs between the lanes "
    "of a `vmap`. There only some lanes have the effect, and no rule says how to mask it in `{primitive}`. Move the "
    "effect out of `{primitive}`, describe the primitive with `@lowering.holds({primitive}_p)`, or loop over the lanes "
    "with `jax.lax.map`."
)
MSG_MASKED_STATE = (
    "A {control} whose predicate differs between the lanes of a `vmap` has effects and uses a mutable reference from "
    "outside. It runs for all lanes together, and the writes of inactive lanes cannot be suppressed. Carry the value "
    "in place of the reference, or loop over the lanes with `jax.lax.map`."
)


class MaskContext(NamedTuple):
    """The context that a mask rule gets with its equation.

    Attributes:
        eqn: The equation.
        mask: `mask(jaxpr, active, args) -> outs` evaluates a jaxpr in place of the equation, with its effects only
            where `active` holds.
        masked: `masked(jaxpr)` is the jaxpr with the predicate ahead of its inputs. Made once and cached.
    """

    eqn: Any
    mask: Callable[[Any, Any, Sequence[Any]], list[Any]]
    masked: Callable[[Any], Any]

    @property
    def primitive(self) -> Any:
        return self.eqn.primitive

    @property
    def where(self) -> str:
        return _jax.source_of(self.eqn)


class MaskRule(Protocol):
    def __call__(self, ctx: MaskContext, active: Any, *args: Any, **params: Any) -> Sequence[Any]:
        """Binds an equation such that its effects happen where a predicate holds.

        Args:
            ctx: The equation's context.
            active: The predicate, a scalar boolean: True if the lane is active.
            *args: The equation's operands.
            **params: The equation's parameters.

        Returns:
            The equation's results. Those of inactive lanes are not used.
        """
        ...


_mask_rules: dict[Any, MaskRule] = {}  # by primitive; written when modules are loaded


def register_mask_rule(*primitives: Any) -> Callable[[MaskRule], MaskRule]:
    """Registers how primitives have effects in some lanes only, where `lowering.holds` is not enough.

    A branch or a loop whose predicate differs between the lanes of a `vmap` runs for all lanes, but only those that
    would reach an effect in a Python program have it. A rule takes `(ctx, active, *args, **params)` and returns the
    equation's results. A primitive that only has a token rule runs lane by lane; one without any rule is refused.

    Args:
        *primitives: The primitives.

    Returns:
        A decorator for the rule.

    Example:
        A primitive that runs its body, which costs too much for inactive lanes.

        >>> import jax, effects as fx
        >>> from effects import lowering
        >>> from jax.extend.core import Primitive
        >>> costly_p = Primitive("costly")
        >>> costly_p.multiple_results = True
        >>> _ = costly_p.def_effectful_abstract_eval(lambda *avals, body: (body.out_avals, set(body.effects)))
        >>> @lowering.holds(costly_p)
        ... def _costly(extra, *args, body):
        ...     return extra.run(body, args)
        >>> @lowering.register_mask_rule(costly_p)
        ... def _costly_mask_rule(ctx, active, *args, body):
        ...     cheap = [jax.numpy.where(active, x, 0) for x in args]
        ...     return ctx.mask(body, active, cheap)
        >>> @fx.jit
        ... def f(x):
        ...     body = jax.make_jaxpr(lambda x: (fx.print("x = {}", x), x + 1)[1])(x)
        ...     return costly_p.bind(x, body=body)[0]
        >>> jax.vmap(lambda x: jax.lax.cond(x > 1, f, lambda x: x, x))(jax.numpy.arange(3))
        Array([0, 1, 3], dtype=int32)
        >>> fx.effects_barrier()
        x = 2
    """

    return registering(_mask_rules, primitives)


class _Masks:
    """The mask pass. The predicate is a constant for every holder."""

    def bind(self, eqn: Any, operands: list[Any], consts: Sequence[Any], state: list[Any]) -> Sequence[Any] | None:
        if not needs_mask(eqn):
            return None
        (active,) = consts
        if (rule := _mask_rules.get(eqn.primitive)) is not None:
            return rule(MaskContext(eqn, mask_effects, masked), active, *operands, **eqn.params)
        if find_holder(eqn.primitive) is not None:
            return None
        if registered_rule(eqn.primitive) is not None:
            return mask_lane_by_lane(eqn, active, operands)
        inside = (summarize(inner).all_effects for inner in _jax.jaxprs_in(eqn.params))
        names = ", ".join(sorted(f"`{effect}`" for effect in effects_of(eqn.effects).union(*inside)))
        where = _jax.source_of(eqn)
        raise errors.MissingTokenRule(
            MSG_MISSING_MASK.format(effects=names or "of a backward pass", primitive=eqn.primitive, where=where)
        )

    def enters(self, eqn: Any) -> bool:
        return needs_mask(eqn)


_MASKS = _Masks()


def mask_effects(jaxpr: Any, active: Any, args: Sequence[Any]) -> list[Any]:
    """Evaluates a jaxpr with its effects only where `active` holds."""
    return send(_MASKS, jaxpr, args, [active])[1]


def mask_held(eqn: Any, active: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """Binds an equation that holds jaxprs, with its effects only where `active` holds."""
    return send_into(_MASKS, eqn, operands, [active])


def masked(jaxpr: Any) -> Any:
    """The jaxpr, closed or open, with the predicate ahead of its inputs."""
    return rewritten_for(_MASKS, jaxpr, [_jax.per_device(_jax.boolean())])


def needs_masks(jaxpr: Any) -> bool:
    """True if a jaxpr has effects, or will have them when it is transposed."""
    return summarize(jaxpr).needs_masks


def mask_lane_by_lane(eqn: Any, active: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """Binds an equation that has neither a mask rule nor a holder, for one active lane after the other."""
    if any(map(_jax.is_reference, operands)):
        raise errors.unsupported(MSG_MASKED_STATE.format(control=f"branch or loop with `{eqn.primitive}`"))

    def call(active: Any, *operands: Any) -> list[Any]:
        def skip(*operands: Any) -> list[Any]:
            return [jax.lax.full(var.aval.shape, 0, var.aval.dtype) for var in eqn.outvars]

        return jax.lax.cond(active, lambda *operands: list(_jax.bind(eqn, operands)), skip, *operands)

    return lane_by_lane(call, [active, *operands])
