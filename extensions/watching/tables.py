"""Which primitives can make a bad value of good ones, and which show a bad operand in their result.

What no table names can make one, and hides none that is known.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from effects import _jax


def _named(names: str) -> frozenset[str]:
    return frozenset(names.split())


_MOVES = _named(
    "reshape transpose broadcast_in_dim squeeze expand_dims rev copy copy_p optimization_barrier name "
    "device_put sharding_constraint mesh_cast reshard layout_constraint pbroadcast pvary pcast all_gather "
    "all_to_all ppermute slice dynamic_slice dynamic_update_slice concatenate pad select_n scatter split tile "
    "gather iota rng_bit_generator real imag conj complex neg abs max min clamp reduce_max reduce_min argmax "
    "argmin pmax pmin cummax cummin sort top_k sign floor ceil round reduce_precision stop_gradient "
    "select_and_gather_add select_if_vmap maybe_set after print_grad get swap masked_load masked_swap"
)
"""They give values that they take, or their opposites."""

_BOUNDED = _named("tanh logistic erf erfc atan atan2 asinh")
"""They give neither NaN nor infinities, but of NaN."""

_NO_NAN = _named("exp exp2 expm1 sinh cosh cbrt square one_minus_square integer_pow nextafter")
"""They give infinities, and NaN of NaN only."""

_SHOWS_NAN = _named(
    "reshape transpose broadcast_in_dim squeeze expand_dims rev copy copy_p name device_put "
    "sharding_constraint mesh_cast reshard pbroadcast pvary pcast concatenate neg abs floor ceil round "
    "reduce_precision add sub mul div rem add_any max min sqrt rsqrt cbrt square one_minus_square log log1p exp "
    "exp2 expm1 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh logistic erf erfc erf_inv dot_general "
    "reduce_sum reduce_prod cumsum cumprod psum psum_invariant"
)
"""NaN in an operand is NaN in the result."""

_SHOWS_INFINITY = _named(
    "reshape transpose broadcast_in_dim squeeze expand_dims rev copy copy_p name device_put "
    "sharding_constraint mesh_cast reshard pbroadcast pvary pcast concatenate neg abs floor ceil round add "
    "sub mul add_any sqrt square log log1p dot_general reduce_sum cumsum psum psum_invariant"
)
"""An infinity in an operand is an infinity or NaN in the result."""

_MOVES_ALL = _named("reshape transpose broadcast_in_dim squeeze expand_dims rev copy copy_p name neg abs")


def is_float(aval: Any) -> bool:
    return is_numeric(aval) and jnp.issubdtype(aval.dtype, jnp.inexact)


def is_numeric(aval: Any) -> bool:
    """Whether a predicate may be asked of such values."""
    return isinstance(aval, _jax.ShapedArray) and jnp.issubdtype(aval.dtype, np.number)


def makes_bad(eqn: Any, nan: bool, inf: bool) -> bool:
    """Whether an equation can give a bad value if it takes none."""
    floats = [var.aval for var in eqn.outvars if is_float(var.aval)]
    if not floats:
        return False
    name = eqn.primitive.name
    if name == "gather":  # which fills in what lies outside
        return nan and "FILL" in str(eqn.params["mode"])
    if name == "convert_element_type":
        to, source = jnp.finfo(floats[0].dtype), eqn.invars[0].aval.dtype
        is_narrower = not jnp.issubdtype(source, jnp.inexact) or float(jnp.finfo(source).max) > float(to.max)
        return is_narrower and (inf or not _has_infinity(floats[0].dtype))
    if name in _MOVES:
        return False
    if any(jnp.issubdtype(aval.dtype, np.complexfloating) for aval in floats):
        return True
    return not (name in _BOUNDED or (name in _NO_NAN and not inf))


def _has_infinity(dtype: Any) -> bool:
    return bool(np.isinf(np.asarray(np.inf, dtype).astype(np.float32)))


def shows_bad(eqn: Any, position: int, nan: bool, inf: bool) -> bool:
    """Whether a bad value in this operand is one in the only result, whatever the others are."""
    if len(eqn.outvars) != 1 or not is_float(result := eqn.outvars[0].aval) or 0 in result.shape:
        return False
    name = eqn.primitive.name
    if name == "convert_element_type":
        return is_float(eqn.invars[0].aval)
    if name == "dynamic_update_slice":
        return position == 1
    if name == "integer_pow":
        return eqn.params["y"] > 0 and nan
    if inf and name == "div":
        return nan and position == 0
    return name in ((_SHOWS_INFINITY if inf else _SHOWS_NAN) if nan else _MOVES_ALL)
