"""Every primitive of JAX that holds a jaxpr is known."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import inspect
import re

from jax.extend.core import Primitive

from tests.internals import find_rule

NO_EFFECTS_INSIDE = {
    # kernels: JAX does not show their effects, `lowering` looks inside and refuses
    "pallas_call", "core_map", "run_scoped", "jaxpr_call", "mpmd_map", "cudnn_fusion",
    "emit_pipeline", "pipeline_body", "custom_fusion",
    "custom_partitioning",  # refuses effects where it is traced
    "dot_product_attention_fwd", "dot_product_attention_bwd",
    # small functions that XLA applies as often and in the order it likes
    "reduce", "reduce_window", "select_and_scatter", "scatter", "scatter-add", "scatter-sub", "scatter-mul",
    "scatter-min", "scatter-max", "composite",
    "call_hi_primitive_linearized",
    # JAX shows no effect on the equation, and may drop it
    "linear_call",
    # per-device regions have no rule yet
    "shard_map",
}  # fmt: skip
"""Primitives that hold a jaxpr and have no rule: an effect inside raises `MissingTokenRule`."""


NEVER_IN_A_JAXPR = {"custom_lin", "eval_jaxpr"}
"""Primitives that are gone before a jaxpr is finished. (`eval_jaxpr` of 0.10 is staged as a closed call.)"""


OURS = {"record", "records", "started_custom_call", "twice", "broken", "ghost", "opaque"}
"""Primitives of this project's and its tests'."""


_MODULES = [
    "jax.experimental.pallas", "jax.experimental.checkify", "jax.experimental.custom_partitioning",
    "jax.experimental.compute_on", "jax.experimental.xla_metadata", "jax.experimental.hijax",
    "jax.experimental.buffer_callback", "jax.experimental.sparse", "jax.experimental.shard_map", "jax.export",
    "jax.custom_batching", "jax.scipy.special", "jax._src.state.discharge", "jax._src.pallas.primitives",
    "jax._src.pallas.core", "jax._src.cudnn.fusion",
]  # fmt: skip


def _parameters(function, depth=0):
    names = set()
    while isinstance(function, functools.partial):
        names |= set(function.keywords)
        function = function.func
    with contextlib.suppress(ValueError, TypeError):
        names |= set(inspect.signature(function).parameters)
    for cell in getattr(function, "__closure__", None) or ():
        try:
            inner = cell.cell_contents
        except ValueError:
            continue
        if callable(inner) and not isinstance(inner, type) and depth < 3:
            names |= _parameters(inner, depth + 1)
    return names


def _primitives_with_jaxprs():
    """Names of JAX's primitives whose implementation takes something that looks like a jaxpr."""
    from jax._src import core
    from jax._src.interpreters import ad, mlir
    from jax._src.interpreters import partial_eval as pe

    for module in _MODULES:
        try:
            importlib.import_module(module)
        except ImportError:
            continue  # not in every version
    looks = re.compile(r"jaxpr|branches|^fwd$|^bwd$|subfun|^call$|callee|^_prim$|^body$")
    tables = [mlir._lowerings, *mlir._platform_specific_lowerings.values(), ad.primitive_jvps, ad.primitive_transposes,
              pe.custom_staging_rules, pe.partial_eval_jaxpr_custom_rules, core.custom_typechecks]  # fmt: skip
    found = {}
    gc.unfreeze()  # what has been there since the run began is hidden otherwise
    for primitive in [p for p in gc.get_objects() if isinstance(p, Primitive)]:
        functions = [table[primitive] for table in tables if isinstance(table, dict) and primitive in table]
        functions = [getattr(f, "rule", f) for f in functions]
        functions += [primitive.__dict__[a] for a in ("impl", "abstract_eval") if primitive.__dict__.get(a)]
        if any(looks.search(name) for f in functions for name in _parameters(f)):
            found[primitive.name] = primitive
    return found


def test_every_primitive_with_a_jaxpr_is_known():
    """Each of JAX's primitives that holds a jaxpr has a token rule, or is listed as having none."""
    found = _primitives_with_jaxprs()
    assert {"while", "scan", "cond", "jit", "remat2", "shard_map", "pallas_call", "run_state"} <= set(found)
    without = {name for name, primitive in found.items() if find_rule(primitive) is None}
    unknown = without - NO_EFFECTS_INSIDE - NEVER_IN_A_JAXPR - OURS
    unknown = {name for name in unknown if not name.startswith("vjp_node[")}  # made while differentiating
    assert not unknown, f"JAX has primitives that hold a jaxpr and have neither rule nor entry: {unknown}"
