"""Loops and their parameters: `jax._src.lax.control_flow`, `jax._src.state` and `jax._src.checkify`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from jax._src import core
from jax._src.state import discharge

from effects._jax.core import typeof
from effects._jax.jaxprs import closed_jaxpr
from effects._jax.regions import boolean


def read_scan(params: dict[str, Any]) -> tuple[int, int]:
    """How many of a scan's operands are constants, and how many are carried."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def with_scan_values(params: dict[str, Any], *, consts: int, carry: int) -> dict[str, Any]:
    """A scan's parameters for a body that takes so many constants more, and carries so many values more, each ahead of
    what it has."""
    if "num_consts" in params:
        return {**params, "num_consts": params["num_consts"] + consts, "num_carry": params["num_carry"] + carry}
    from jax._src import flattree as ft  # since 0.11

    old_consts, old_carry, xs = params["ft_in"].unpack()
    carry_out, ys = params["ft_out"].unpack()
    return {
        **params,
        "ft_in": ft.pack(((ft.nones(consts), old_consts), (ft.nones(carry), old_carry), xs)),
        "ft_out": ft.pack(((ft.nones(carry), carry_out), ys)),
    }


def literal(value: Any) -> Any:
    """A value as an operand of an equation."""
    return core.Literal(value, typeof(value))


def with_more_outputs(eqn: Any, invars: Sequence[Any], params: dict[str, Any]) -> Any:
    """An equation with other operands and parameters, and one result more, ahead of all others, that is not used. It is
    of the type of a predicate."""
    return eqn.replace(invars=list(invars), outvars=[core.DropVar(boolean()), *eqn.outvars], params=params)


def hoisting_unless(has_effects: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """Makes of JAX's function that moves values out of a `scan` one that moves nothing if the body has effects."""

    def make(hoist: Any) -> Any:
        def rule(jaxpr: Any, consts: Any, num_residuals: int, *others: Any) -> Any:
            if has_effects(jaxpr):
                return jaxpr, consts, [False] * num_residuals, []
            return hoist(jaxpr, consts, num_residuals, *others)

        return rule

    return make


def checkifying_instead(other: Callable[[dict[str, Any]], Any]) -> Callable[[Any], Any]:
    """Makes of a rule of `checkify` one that takes another jaxpr in place of the equation: `other(params)` gives it, or
    None to leave the equation."""

    from jax._src import checkify

    def make(check: Any) -> Any:
        context = list(inspect.signature(check).parameters).index("error")  # since 0.11 there is one

        def rule(*args: Any, **params: Any) -> Any:
            if (jaxpr := other(params)) is None:
                return check(*args, **params)
            error, enabled_errors, *operands = args[context:]
            return checkify.checkify_jaxpr(*args[:context], jaxpr, enabled_errors, error, *operands)

        return rule

    return make


def discharge_state(jaxpr: Any, args: Sequence[Any], is_initialized: Sequence[bool]) -> tuple[Any, list[Any]]:
    """The pure jaxpr of a `run_state`, and its arguments, with the references that come uninitialized made up."""
    discharged = discharge.discharge_state(closed_jaxpr(jaxpr))
    given = iter(args)
    filled = [
        next(given) if initialized else discharge._default_initialization(var.aval)
        for initialized, var in zip(is_initialized, discharged.jaxpr.invars, strict=True)
    ]
    return discharged, filled
