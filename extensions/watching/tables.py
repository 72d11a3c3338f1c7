"""Tables of primitives that can make a bad value of good ones, and of those that show a bad operand in the result.

A primitive in no table is taken to make bad values, and to show none. `tests/extensions/watching/test_primitives.py`
compares the tables with the primitives, over all types.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from effects import _jax


def _named(names: str) -> frozenset[str]:
    return frozenset(names.split())


_MOVES = _named(
    "reshape transpose broadcast_in_dim squeeze rev copy optimization_barrier name "
    "device_put sharding_constraint mesh_cast reshard layout_constraint pbroadcast pvary pcast all_gather "
    "all_to_all ppermute slice dynamic_slice dynamic_update_slice concatenate pad select_n split tile gather real imag "
    "dependency print_grad get swap"
)
"""Primitives that copy elements of their operands, of all types."""

_CHOOSES = _named("scatter neg abs max min clamp cummax cummin sort top_k sign floor ceil round")
"""Primitives that return an element of an operand, its negative or a rounded one."""

_FROM_BAD_ONLY = _named("tanh logistic erf erfc atan asinh")
"""Primitives that return NaN or infinities only for NaN or infinities."""

_NO_NAN = _named("exp exp2 expm1 sinh cosh cbrt square integer_pow reduce_max reduce_min pmax pmin")
"""Primitives that may return infinities, but NaN for NaN only."""

_SHOWS_INFINITY = _named(
    "reshape transpose broadcast_in_dim squeeze rev copy name device_put "
    "sharding_constraint mesh_cast reshard pbroadcast pvary pcast concatenate neg abs floor ceil round add "
    "sub mul add_any sqrt square log log1p dot_general reduce_sum cumsum psum psum_invariant"
)
"""An infinity in an operand is an infinity or NaN in the result."""

_SHOWS_NAN = _SHOWS_INFINITY | _named(
    "reduce_precision div rem max min rsqrt cbrt one_minus_square exp exp2 expm1 sin cos tan asin acos atan sinh cosh "
    "tanh asinh acosh atanh logistic erf erfc erf_inv reduce_prod cumprod"
)
"""NaN in an operand is NaN in the result."""

_SHOWS_COMPLEX = _SHOWS_INFINITY - _named("abs floor ceil round sqrt log log1p") | {"dynamic_update_slice"}
"""Operations that keep NaN in one part of a complex operand. Others may lose it: `tanh` of `inf + nan j` is 1."""

_ACROSS = _named(
    "psum psum_invariant pmax pmin ppermute all_gather all_gather_invariant all_gather_reduced all_to_all "
    "ragged_all_to_all reduce_scatter unreduced_psum unreduced_reduce_scatter pbroadcast"
)

_MOVES_ALL = _named("reshape transpose broadcast_in_dim squeeze rev copy name neg abs")


def is_float(aval: Any) -> bool:
    return is_numeric(aval) and jnp.issubdtype(aval.dtype, jnp.inexact)


def is_numeric(aval: Any) -> bool:
    """True if a predicate may be called with values of this type."""
    return isinstance(aval, _jax.ShapedArray) and jnp.issubdtype(aval.dtype, np.number)


def makes_bad(eqn: Any, nan: bool, inf: bool) -> bool:
    """True if an equation can return a bad value for good operands."""
    floats = [var.aval for var in eqn.outvars if is_float(var.aval) and 0 not in var.aval.shape]
    if not floats:
        return False
    name, to = eqn.primitive.name, jnp.finfo(floats[0].dtype)
    if name == "gather":  # the fill value for positions outside
        return nan and "FILL" in str(eqn.params["mode"])
    if name in _MOVES:
        return False
    if to.bits < 16:  # the type may have no infinity, zero or NaN
        return True
    if name == "convert_element_type":
        source = eqn.invars[0].aval.dtype
        return inf and not (jnp.issubdtype(source, jnp.inexact) and float(jnp.finfo(source).max) <= float(to.max))
    avals = [var.aval for var in (*eqn.invars, *eqn.outvars)]
    if any(is_float(aval) and jnp.issubdtype(aval.dtype, np.complexfloating) for aval in avals):
        return True
    return not (name in _CHOOSES or name in _FROM_BAD_ONLY or (name in _NO_NAN and not inf))


def shows_bad(eqn: Any, position: int, nan: bool, inf: bool) -> bool:
    """True if a bad value in this operand makes the only result bad, whatever the other operands are."""
    if len(eqn.outvars) != 1 or not is_float(result := eqn.outvars[0].aval) or 0 in result.shape:
        return False
    name = eqn.primitive.name
    if jnp.issubdtype(eqn.invars[position].aval.dtype, np.complexfloating) and name not in _SHOWS_COMPLEX:
        return False
    if name == "convert_element_type":
        return is_float(eqn.invars[0].aval) and jnp.finfo(result.dtype).bits >= 16
    if name == "dynamic_update_slice":
        return position == 1
    if name == "integer_pow":
        return eqn.params["y"] > 0 and nan
    if inf and name == "div":
        return nan and position == 0
    return name in ((_SHOWS_INFINITY if inf else _SHOWS_NAN) if nan else _MOVES_ALL)


def axes_across(eqn: Any) -> tuple[str, ...]:
    """The named axes along which an equation takes values of other devices or lanes."""
    if eqn.primitive.name not in _ACROSS:
        return ()
    axes = eqn.params.get("axes", eqn.params.get("axis_name"))
    return tuple(axis for axis in (axes if isinstance(axes, (tuple, list)) else (axes,)) if isinstance(axis, str))
