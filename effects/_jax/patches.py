"""Everything of JAX's own that behaves differently once this library is imported, in one table.

The rows that change Pallas and `checkify` stand in `later_patches.py`, since few programs import them.

A row declares what is changed, and why. What stands there instead is given by the layer that knows it, with
`@implements(name)`, which only collects. `apply` is called once, at the end of `effects/__init__.py`, and nothing else
changes JAX: at once what JAX imports itself, and the rest once it is imported. Every replacement calls JAX's own
function where a program has no effects of this library.

What JAX's tables are told of primitives and effect types of this library changes nothing of JAX's own; see
`registrations.py`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.export
from jax._src import api, callback, custom_batching, debugging, dispatch
from jax._src.export import _export
from jax._src.interpreters import batching
from jax._src.interpreters import partial_eval as pe
from jax._src.lax.control_flow import loops
from jax._src.pjit import jit_p

from effects._jax.later_patches import CHECKIFY as CHECKIFY
from effects._jax.later_patches import KERNELS as KERNELS
from effects._jax.later_patches import MESH_KERNELS as MESH_KERNELS
from effects._jax.later_patches import ROWS_OF, Rows
from effects._jax.patch import Patch, Patches, attribute, entry, method
from effects._jax.primitives import (
    annotated_calls,
    cond_p,
    custom_vmap_p,
    inlined_calls,
    linear_solve_p,
    remat_p,
    run_state_p,
    scan_p,
    unused_remat_is_dropped,
    while_p,
)
from effects._jax.when_imported import when_imported

Maker = Callable[[Any], Any]
"""Makes what stands at a patch point from what JAX has there, which is None if that is nothing."""

_Maker = TypeVar("_Maker", bound=Maker)

_BATCHERS = "fancy_primitive_batchers"
_REMAT = "partial_eval_jaxpr_custom_rules"
_MASKS = "JAX tells batching rules of effects for which lanes a branch or an iteration is."

_TABLE = (
    Patch(
        "JAX's own callbacks",
        (
            method(debugging, "debug_print_p", "bind"),
            method(debugging, "debug_callback_p", "bind"),
            method(callback, "io_callback_p", "bind"),
        ),
        "While a function is traced for `fx.jit`, `jax.debug.print`, `.callback` and `.log`, and `io_callback`, are "
        "effects of this library. The setting `jax_effects` keeps JAX's semantics.",
        "JAX's transformations have these effects in all lanes and in all branches, drop and repeat them, and unroll a "
        "`vmap`. What they have done cannot be undone afterwards.",
        "0.10",
        "JAX lets libraries bind its callbacks otherwise while they trace.",
    ),
    Patch(
        "vmap of cond",
        (entry(batching, _BATCHERS, cond_p),),
        "Under `vmap`, a `cond` or `switch` whose index differs between lanes has the effects of a branch only in the "
        "lanes that choose it.",
        "JAX runs every branch for all lanes and selects the results, so that every lane has the effects of every "
        "branch.",
        "0.10",
        _MASKS,
    ),
    Patch(
        "vmap of while",
        (entry(batching, _BATCHERS, while_p),),
        "Under `vmap`, a loop whose condition differs between lanes has the effects of an iteration only in the lanes "
        "that are not through.",
        "JAX runs the body for all lanes until the last is through, so that the others go on having effects.",
        "0.10",
        _MASKS,
    ),
    Patch(
        "vmap of custom_vmap",
        (entry(batching, _BATCHERS, custom_vmap_p),),
        "A `custom_vmap` function with effects, none of whose arguments differs between lanes, runs in every lane.",
        "JAX leaves a call none of whose arguments has lanes as it is, so that its effects happen once for all lanes.",
        "0.10",
        "JAX batches what has effects also where no argument has lanes.",
    ),
    Patch(
        "vmap of run_state",
        (entry(batching, _BATCHERS, run_state_p),),
        "Under `vmap`, a `run_state` with effects runs for all lanes, with its references turned into values.",
        "JAX has no rule for it: it refuses arguments with lanes, and leaves a call without them as it is, so that its "
        "effects happen once for all lanes.",
        "0.10",
        "JAX has a batching rule for `run_state`, and batches what has effects also where no argument has lanes.",
    ),
    Patch(
        "axis of tangents",
        (attribute(api, "vmap"),),
        "The axis along which `jax.jacfwd` maps tangents has a name. `jax.vmap` is as it was.",
        "Effects of primal values happen once along an axis of tangents and in every lane of other axes, and JAX and "
        "its caches take the two for the same.",
        "0.10",
        "JAX's axes say whether they are of tangents.",
    ),
    Patch(
        "axis of tangents in custom_vmap",
        (attribute(custom_batching, "vmap_unrestricted"),),
        "The same for the axis along which the derivative of a `custom_vmap` rule maps what has lanes in values or "
        "tangents only.",
        "The same: what has no lanes there happens once.",
        "0.10",
        "JAX's axes say whether they are of tangents.",
    ),
    Patch(
        "lanes of a device",
        tuple(
            entry(batching, _BATCHERS, primitive)
            for primitive in (
                jit_p,
                cond_p,
                while_p,
                scan_p,
                remat_p,
                run_state_p,
                *annotated_calls(),
                *inlined_calls(),
            )
            if primitive is run_state_p or primitive in batching.fancy_primitive_batchers
        ),
        "Where there are effects, arguments with the lanes of all devices, from outside of a region, are cut to those "
        "of a device.",
        "With `spmd_axis_name`, what a region closes over has the lanes of all devices, so that each device would have "
        "the effects of all of them.",
        "0.10",
        "JAX cuts what a region closes over as it cuts the region's arguments.",
    ),
    Patch(
        "lanes of a device in linear solves",
        (entry(batching, _BATCHERS, linear_solve_p),),
        "The same for `custom_linear_solve`, whether or not its functions have effects.",
        "Its functions are not found among its parameters.",
        "0.10",
        "JAX cuts what a region closes over as it cuts the region's arguments.",
    ),
    Patch(
        "hoisting from scans",
        (attribute(loops, "_scan_known_hoisting"),),
        "Where a `scan` is divided for differentiation, nothing is moved out of a body with effects.",
        "JAX moves what is the same in every iteration out of the loop, effects included, so that they happen once.",
        "0.10",
        "JAX moves only equations without effects.",
    ),
    Patch(
        "scan in remat",
        (entry(pe, _REMAT, scan_p),),
        "In a rematerialized region, a `scan` with effects carries a mask for them, which always holds.",
        "JAX takes effects whose operands are the same in every iteration out of the loop, and forgets those of a "
        "`cond` that it divides.",
        "0.10",
        "JAX moves only equations without effects, and keeps those of both halves of a `cond`.",
    ),
    Patch(
        "linearized while",
        (entry(pe, "custom_partial_eval_rules", while_p),),
        "Where a `while_loop` is differentiated forward, it runs once more for the tangents without its effects.",
        "JAX runs the whole loop twice, once for the values and once for the tangents, so that effects happen twice.",
        "0.10",
        "JAX runs the loop of the tangents without effects, or both in one loop.",
    ),
    Patch(
        "while in remat",
        (entry(pe, _REMAT, while_p),),
        "The same in a rematerialized region.",
        "The same: JAX runs the loop twice.",
        "0.10",
        "JAX runs the loop of the tangents without effects, or both in one loop.",
    ),
    *(
        Patch(
            "unused remat",
            (entry(pe, "dce_rules", remat_p),),
            "A rematerialized region with effects stays in its program, whether or not its results are used.",
            "JAX 0.10 drops one that has effects and neither operands nor results in use, where a kernel is traced or "
            "a loop divided: a condition of its rule is the wrong way round.",
            "0.10",
            "No supported version of JAX is older than 0.12.",
        )
        for _ in range(unused_remat_is_dropped)
    ),
    Patch(
        "eval_shape",
        (attribute(api, "eval_shape"), attribute(jax, "eval_shape")),
        "`jax.eval_shape` of what `fx.jit` returned knows its static arguments.",
        "JAX asks functions that `jax.jit` returned for their shapes, and takes all others to have none but arrays as "
        "arguments.",
        "0.10",
        "JAX asks whatever has the methods of its jitted functions.",
    ),
    Patch(
        "export",
        (attribute(_export, "export"), attribute(jax.export, "export")),
        "`jax.export.export` of what `fx.jit` returned is `fx.export` of it, if it has effects.",
        "JAX exports what it lowers, and would take the tokens of a threaded function for arguments of the user's.",
        "0.10",
        "JAX exports functions that take and return tokens of other libraries.",
    ),
    Patch(
        "deserialize",
        (attribute(_export, "deserialize"), attribute(jax.export, "deserialize")),
        "`jax.export.deserialize` reads what an exported program with effects serialized.",
        "JAX knows nothing of the effects that stand ahead of the program, and would read them as a part of it.",
        "0.10",
        "JAX serializes what other libraries say of a program.",
    ),
    Patch(
        "effects_barrier",
        (attribute(dispatch.RuntimeTokenSet, "block_until_ready"),),
        "`jax.effects_barrier()` also waits for the effects of this library, and raises what they raised, as "
        "`effects.effects_barrier()` does.",
        "JAX knows the end of a program, and not of the effects that are still to be replayed on the host.",
        "0.10",
        "JAX lets libraries register something to wait for.",
    ),
)

# By the names of rows, of modules of JAX's, and of patch points. A module that is loaded again keeps them, so that
# nothing is replaced twice.
_makers: dict[str, Maker] = globals().get("_makers", {})
_loaders: dict[str, Callable[[], None]] = globals().get("_loaders", {})
_originals: dict[str, Any] = globals().get("_originals", {})


def implements(*names: str) -> Callable[[_Maker], _Maker]:
    """Gives the rows of these names what is to stand at their patch points: `make(what JAX has there)`. Nothing is
    changed yet."""

    def collect(make: _Maker) -> _Maker:
        for name in names:
            _makers[name] = make
        return make

    return collect


def once_imported(module: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Declares what loads the implementations of the rows of this module, which JAX itself does not import. It is
    called once the module has been imported."""

    def collect(load: Callable[[], None]) -> Callable[[], None]:
        _loaders[module] = load
        return load

    return collect


def apply() -> None:
    """Changes JAX as the table says, in the order of its rows; what JAX does not import itself, once it is imported.
    The second call changes nothing."""
    if _originals:
        return
    _change(_TABLE)
    for module, rows in ROWS_OF.items():
        when_imported(module, functools.partial(_load_and_change, module, rows))


def _load_and_change(module: str, rows: Rows) -> None:
    _loaders[module]()
    _change(rows())


def _change(rows: Sequence[Patch]) -> None:
    names = {row.name for row in rows}
    if missing := names - set(_makers):
        raise AssertionError(f"rows without an implementation: {missing}")
    for row in rows:
        for point in row.points:
            original = point.get()
            _originals.setdefault(point.name, original)
            point.put(_makers[row.name](original))


def patches() -> Patches:
    """What importing this library changes in JAX: what, why, and what would make it needless.

    What it changes in Pallas and in `checkify`, it changes once they are imported, as they are by this function.

    Returns:
        A tuple of rows with the attributes `name`, `changes` (the names of what is changed), `now`, `why`, `since`
        and `until`. Printed, it is the table; `rich.print` draws it.

    Example:
        >>> import effects as fx
        >>> [patch.changes for patch in fx.patches() if patch.name == "effects_barrier"]
        [('jax._src.dispatch.RuntimeTokenSet.block_until_ready',)]
    """
    for module in ROWS_OF:
        importlib.import_module(module)
    rows = [*_TABLE, *(row for rows in ROWS_OF.values() for row in rows())]
    if unknown := set(_makers) - {row.name for row in rows}:
        raise AssertionError(f"implementations without a row: {unknown}")
    return Patches(rows)
