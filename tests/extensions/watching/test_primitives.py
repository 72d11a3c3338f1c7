"""The tables of primitives against what the primitives do: all of `jax.lax`, over all types."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec

from effects import _jax
from effects.extensions.watching import tables

ASKED = [(True, False), (True, True), (False, True)]  # `nan` and `inf`
SMALL = [name for name in dir(ml_dtypes) if name.startswith(("float4", "float8")) and hasattr(jnp, name)]
TYPES = [*SMALL, "bfloat16", "float16", "float32", "complex64", "int32", "uint8", "bool"]


def _type(name: str) -> Any:
    return jnp.dtype(getattr(jnp, name + "_" * (name == "bool")))


@functools.cache
def _values(name: str) -> Any:
    """Zeros, denormals, the least and largest, infinities and NaN, as far as the type has them."""
    dtype = _type(name)
    if not jnp.issubdtype(dtype, jnp.inexact):
        return np.unique(np.array([0, 1, 2, 127, 255]).astype(dtype))
    if jnp.issubdtype(dtype, jnp.complexfloating):
        parts = np.float32([0, -0.0, 1, -2.5, 1e-45, 3e38, -3e38, np.inf, -np.inf, np.nan])
        return np.array([complex(a, b) for a in parts for b in parts], dtype)
    limits = jnp.finfo(dtype)
    numbers = [float(x) for x in (limits.smallest_subnormal, limits.tiny, limits.max)]
    numbers += [0, 0.25, 0.5, 1, 1.5, 2, 3, 11.5, 90.0, 180.0, np.inf, np.nan]
    with np.errstate(all="ignore"):
        found = np.array([*numbers, *(-x for x in numbers)]).astype(np.float32).astype(dtype)
    return found


def _is_bad(x: Any, nan: bool, inf: bool) -> Any:
    x = np.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return np.zeros(x.shape, bool)
    x = x if jnp.issubdtype(x.dtype, jnp.complexfloating) else x.astype(np.float32)
    return (nan & np.isnan(x)) | (inf & np.isinf(x))


REDUCED = ("max", "min", "sum", "prod")


def _mesh() -> Any:
    return jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


def _in_region(f: Any, typed: bool = False) -> Any:
    mesh, spec = _mesh(), PartitionSpec()
    out = PartitionSpec("d") if typed else spec
    inputs = PartitionSpec("d") if typed and "psum" in inspect.getsource(f) else spec
    return lambda x: jax.shard_map(f, mesh=mesh, in_specs=inputs, out_specs=out, check_vma=typed)(x)


def _ones(names: str) -> dict[str, list[Any]]:
    return {name: [getattr(lax, name)] for name in names.split()}


def _reduced(name: str) -> Any:
    return lambda x: getattr(lax, f"reduce_{name}")(x, (0,))


ELEMENTWISE = (
    "abs acos acosh asin asinh atan atanh bessel_i0e cbrt ceil conj cos cosh digamma erf erf_inv erfc exp exp2 expm1 "
    "floor imag lgamma log log1p logistic neg real round rsqrt sign sin sinh sqrt square tan tanh cumsum cumprod "
    "cummax cummin cumlogsumexp sort optimization_barrier"
)


UNARY = {
    **_ones(ELEMENTWISE),
    "reduce_precision": [lambda x: lax.reduce_precision(x, 5, 2), lambda x: lax.reduce_precision(x, 8, 7)],
    "one_minus_square": [lambda x: jax.grad(lambda x: jnp.tanh(x).real.sum())(x)],
    "integer_pow": [lambda x, y=y: lax.integer_pow(x, y) for y in (-3, -1, 2, 3)],
    "top_k": [lambda x: lax.top_k(x, x.shape[0])],
    "rev": [lambda x: lax.rev(x, (0,))],
    "reshape": [lambda x: lax.reshape(x, (1, *x.shape))],
    "transpose": [lambda x: lax.transpose(lax.reshape(x, (1, *x.shape)), (1, 0))],
    "squeeze": [lambda x: lax.squeeze(lax.reshape(x, (1, *x.shape)), (0,))],
    "broadcast_in_dim": [lambda x: lax.broadcast_in_dim(x, (2, *x.shape), (1,))],
    "tile": [lambda x: jnp.tile(x, 2)],
    "slice": [lambda x: lax.slice(x, (0,), x.shape)],
    "dynamic_slice": [lambda x: lax.dynamic_slice(x, (1,), x.shape)],
    "split": [lambda x: lax.split(x, (0, x.shape[0]))],
    "copy": [jnp.copy],
    "name": [lambda x: checkpoint_name(x, "x")],
    "device_put": [lambda x: jax.device_put(x, jax.devices()[0])],
    "convert_element_type": [lambda x, to=to: lax.convert_element_type(x, _type(to)) for to in TYPES],
    "gather": [lambda x, how=how: x.at[jnp.arange(3)].get(mode=how) for how in ("clip", "fill")],
    "pad": [lambda x: lax.pad(x, lax.full((), 1, x.dtype), [(1, 1, 1)])],
    "get": [lambda x: jax.new_ref(x)[...]],
    "psum": [_in_region(lambda x: lax.psum(x, "d"))],
    "psum_invariant": [_in_region(lambda x: lax.psum(x, "d"), True)],
    "pmax": [_in_region(lambda x: lax.pmax(x, "d"))],
    "pmin": [_in_region(lambda x: lax.pmin(x, "d"))],
    "all_gather": [_in_region(lambda x: lax.all_gather(x, "d"))],
    "ppermute": [_in_region(lambda x: lax.ppermute(x, "d", [(0, 1), (1, 0)]))],
    "all_to_all": [_in_region(lambda x: lax.all_to_all(x[None].repeat(2, 0), "d", 0, 0))],
    "pvary": [_in_region(lambda x: lax.pcast(x, "d", to="varying"), True)],
    "pcast": [_in_region(lambda x: lax.pcast(x, "d", to="varying"), True)],
    "sharding_constraint": [lambda x: lax.with_sharding_constraint(x, NamedSharding(_mesh(), PartitionSpec()))],
    **{f"reduce_{name}": [_reduced(name)] for name in REDUCED},
}
BINARY = {
    **_ones("add sub mul div rem max min pow atan2 nextafter complex"),
    "add_any": [_jax.ad.add_jaxvals],
    "concatenate": [lambda x, y: lax.concatenate([x, y], 0)],
    "dynamic_update_slice": [lambda x, y: lax.dynamic_update_slice(x, y[:1], (1,))],
    "dot_general": [lambda x, y: x[None] @ y, lambda x, y: x[:, None] * y[None], lambda x, y: jnp.outer(x, y)],
    "scatter": [lambda x, y: x.at[jnp.arange(x.shape[0])].set(y)],
    "scatter-add": [lambda x, y: x.at[jnp.arange(x.shape[0])].add(y)],
    "swap": [lambda x, y: jax.ref.swap(jax.new_ref(x), ..., y)],
    "select_n": [lambda x, y: lax.select_n(jnp.arange(x.shape[0]) % 2 > 0, x, y)],
}


def _equation(f: Any, operands: Any, name: str) -> Any:
    """The equation of a primitive in the function; None if there is none, or JAX has it not for these operands."""
    try:
        eqns = _jax.eqns_in(jax.make_jaxpr(f)(*operands))
    except Exception:
        return None
    return next((eqn for eqn in eqns if eqn.primitive.name == name), None)


def _operands(count: int, dtype: str) -> list[Any]:
    """All combinations of the values of a type."""
    values = _values(dtype)
    columns = [np.array(x, values.dtype) for x in zip(*itertools.product(values, repeat=min(count, 2)), strict=True)]
    return [*columns, *columns[:1] * (count - 2)]


OF_ONE_VERSION = ("pvary", "pcast", "psum", "tile", "one_minus_square", "stop_gradient")
CALLS = [*UNARY.items(), *BINARY.items(), ("clamp", [lax.clamp])]


def _bad_operands(eqn: Any, good: list[Any], every: list[Any], nan: bool, inf: bool) -> Iterator[list[Any]]:
    """Good operands with one bad value, which an equation with one result must show. Operands of ones make no other bad
    value, behind which it could hide."""
    for at, x in enumerate(every if len(eqn.outvars) == 1 else []):
        if tables.shows_bad(eqn, at, nan, inf):
            bad = x[_is_bad(x, nan, inf)]
            # By their bits: `np.unique` takes all complex numbers with NaN in a part for one.
            for one in {each.tobytes(): each for each in bad}.values():
                for others in (good, [np.ones_like(each) for each in good]):
                    given = [each.copy() for each in others]
                    given[at][:1] = one
                    yield given


def _runs(f: Any, operands: list[Any]) -> Any:
    """One program that evaluates the function with each of some operands; None if this device cannot."""
    program = jax.jit(lambda operands: [jax.tree.leaves(f(*each)) for each in operands])
    try:
        program(operands)
    except Exception:
        return None
    return program


def _check(name: str, f: Any, operands: list[Any]) -> bool:
    """Compares the tables with a primitive of operands of all types together, as far as JAX and this device have it."""
    eqns = [_equation(f, each, name) for each in operands]
    found = [(eqn, each) for eqn, each in zip(eqns, operands, strict=True) if eqn is not None]
    program = _runs(f, [each for _, each in found])
    if program is None:
        found = [(eqn, each) for eqn, each in found if _runs(f, [each])]
        program = _runs(f, [each for _, each in found])
    for nan, inf in ASKED if found else []:
        good = [[np.where(_is_bad(x, nan, inf), x.dtype.type(1), x) for x in each] for _, each in found]
        for (eqn, _), outs in zip(found, program(good), strict=True):
            made = [out for out in outs if _is_bad(out, nan, inf).any()]
            assert not made or tables.makes_bad(eqn, nan, inf), (str(eqn), nan, inf, made)
        bad = [_bad_operands(eqn, one, every, nan, inf) for (eqn, every), one in zip(found, good, strict=True)]
        for given in itertools.zip_longest(*bad):
            shown = program([one or each for one, each in zip(given, good, strict=True)])
            for (eqn, _), one, outs in zip(found, given, shown, strict=True):
                assert one is None or any(_is_bad(out, nan, inf).any() for out in outs), (str(eqn), nan, inf, one)
    return bool(found)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "calls"), CALLS, ids=[name for name, _ in CALLS])
def test_tables_are_what_primitives_do(name, calls):
    """No primitive makes a bad value that the table says it cannot make, or hides one that it is said to show."""
    count = 1 if name in UNARY else 2 if name in BINARY else 3
    types = [each for each in TYPES if name == "convert_element_type" or jnp.issubdtype(_type(each), jnp.inexact)]
    operands = [_operands(count, dtype) for dtype in types]
    operands += [[x[:0] for x in _operands(count, dtype)] for dtype in ("float32", "complex64")]
    ran = [_check(name, f, operands) for f in calls]
    assert any(ran) or name in OF_ONE_VERSION


def test_tables_name_what_is_swept():
    """A name in a table is that of a primitive that has been evaluated, or of one that hands its operand on."""
    names = {name for table in vars(tables).values() if isinstance(table, frozenset) for name in table}
    assert names - {name for name, _ in CALLS} - tables._ACROSS == {
        "dependency", "layout_constraint", "mesh_cast", "print_grad", "reshard",
    }  # fmt: skip
