"""Everything of JAX's own that behaves differently once this library is imported, in one table.

The rows that change Pallas are in a separate table, since few programs import it.

A row declares a change and its reason. The layer that has the replacement registers it with `@implements(name)`, which
changes nothing yet. Only `apply` changes JAX. It is called once, at the end of `effects/__init__.py`: modules that JAX
imports itself are changed at once, the others when they are imported. Every replacement calls JAX's own function if a
program has no effects of this library.

Registering primitives and effect types in JAX's tables changes no behaviour of JAX's own code; see `dispatch.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
import textwrap
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import jax
from jax._src import api, callback, core, custom_batching, custom_partitioning, debugging, dispatch
from jax._src.interpreters import ad, batching, mlir
from jax._src.interpreters import partial_eval as pe
from jax._src.lax.control_flow import conditionals, loops
from jax._src.pjit import jit_p

from effects._jax.primitives import cond_p, custom_vmap_p, run_state_p, scan_p, while_p

# A change of JAX: its patch points, and its row of the table.


class PatchPoint(NamedTuple):
    """An attribute of a module or a class of JAX's, or an entry of one of its tables."""

    name: str
    owner: Any
    key: Any

    def get(self) -> Any:
        if isinstance(self.owner, dict):
            return self.owner.get(self.key)
        return getattr(self.owner, self.key)

    def put(self, value: Any) -> None:
        if isinstance(self.owner, dict):
            self.owner[self.key] = value
        else:
            setattr(self.owner, self.key, value)


class _Lowering(PatchPoint):
    """The rule in an entry of JAX's table of lowerings."""

    def get(self) -> Any:
        return self.owner[self.key].rule

    def put(self, value: Any) -> None:
        self.owner[self.key] = dataclasses.replace(self.owner[self.key], rule=value)


def attribute(owner: Any, name: str) -> PatchPoint:
    owner_name = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
    return PatchPoint(f"{owner_name}.{name}", owner, name)


def entry(module: Any, table: str, primitive: Any) -> PatchPoint:
    return PatchPoint(f"{module.__name__}.{table}[{primitive}]", getattr(module, table), primitive)


def lowering(primitive: Any) -> PatchPoint:
    return _Lowering(f"{mlir.__name__}._lowerings[{primitive}]", mlir._lowerings, primitive)


def method(module: Any, primitive: str, name: str) -> PatchPoint:
    return PatchPoint(f"{module.__name__}.{primitive}.{name}", getattr(module, primitive), name)


class Patch(NamedTuple):
    """One change of JAX.

    Attributes:
        name: The name of the change.
        points: The places in JAX that are changed.
        now: The new behaviour.
        why: The failure without the change.
        since: The oldest supported version of JAX that needs the change. No supported version is older than 0.10.
        until: The change in JAX that would make this one needless.
    """

    name: str
    points: tuple[PatchPoint, ...]
    now: str
    why: str
    since: str
    until: str

    @property
    def changes(self) -> tuple[str, ...]:
        """The dotted names of what of JAX is changed."""
        return tuple(point.name for point in self.points)

    def __repr__(self) -> str:
        lines = [("changes" if i == 0 else "", name) for i, name in enumerate(self.changes)]
        lines += [("now", self.now), ("why", self.why), ("since", f"JAX {self.since}"), ("until", self.until)]
        texts = [
            textwrap.fill(text, 110, initial_indent=f"    {name:9}", subsequent_indent=" " * 13, break_on_hyphens=False)
            for name, text in lines
        ]
        return "\n".join([self.name, *texts])


class Patches(tuple[Patch, ...]):
    """The rows of the table. Printed, they are the table."""

    def __repr__(self) -> str:
        return "\n\n".join([_TITLE, *map(repr, self)])


_TITLE = f"What importing `effects` changes in JAX {jax.__version__}:"


# The rows of patches of Pallas's modules, which `import jax` does not import.

Rows = Callable[[], tuple[Patch, ...]]

KERNELS = "jax._src.pallas.pallas_call"
FOR_TPUS = "jax._src.pallas.mosaic.interpret.interpret_pallas_call"


def _rows_of_kernels() -> tuple[Patch, ...]:
    from jax._src.pallas import hlo_interpreter, pallas_call

    return (
        Patch(
            "effects of kernels",
            (method(pallas_call, "pallas_call_p", "abstract_eval"),),
            "The equation of a `pl.pallas_call` shows the effects that its kernel has, and effects in index maps are "
            "refused. JAX's own callbacks are shown for simulated kernels only.",
            "JAX shows none, so that a kernel whose results are not used is dropped with its effects, and those of "
            "other kernels have no token.",
            "0.10",
            "JAX shows the effects of kernels.",
        ),
        Patch(
            "bounds of kernels",
            (method(pallas_call, "pallas_call_p", "bind"),),
            "With the setting `bounds_checks`, a simulated kernel checks every index and where its blocks begin, and a "
            "compiled one is refused.",
            "JAX's simulation moves what is outside to the nearest that is inside, without a word.",
            "0.10",
            "JAX's simulation checks bounds.",
        ),
        Patch(
            "vmap of kernels",
            (entry(batching, "fancy_primitive_batchers", pallas_call.pallas_call_p),),
            "A kernel with effects runs in every lane of a `vmap`, also where no operand differs, and knows which lane "
            "it is.",
            "JAX leaves a kernel without mapped operands as it is, so that its effects happen once for all lanes.",
            "0.10",
            "JAX batches what has effects also where no argument has lanes.",
        ),
        Patch(
            "derivatives of kernels",
            (entry(ad, "primitive_jvps", pallas_call.pallas_call_p),),
            "In a kernel with effects, inputs that are not differentiated have tangents of zeros.",
            "JAX gives every input a block for its tangent, and fails where one has none, as the lane of a `vmap`.",
            "0.10",
            "JAX differentiates kernels with regard to some of their inputs.",
        ),
        Patch(
            "lowering of compiled kernels",
            (lowering(pallas_call.pallas_call_p),),
            "A compiled kernel with effects writes them to a log, from which they are recorded after it.",
            "A compiled kernel cannot call the host, and JAX's compilers of kernels know no effects of other "
            "libraries.",
            "0.10",
            "JAX's compilers of kernels let libraries lower effects of theirs.",
        ),
        Patch(
            "grids of simulated kernels",
            (attribute(hlo_interpreter, "pallas_call_hlo_interpret"),),
            "In a simulated kernel, effects know the index of their program in the grid, `pl.program_id` may stand in "
            "loops and branches, and `fx.pallas_call` says in which order the grid is visited.",
            "The simulation turns the grid into a loop, in which nothing says whose effects these are.",
            "0.10",
            "JAX's simulation has the program's index in all bodies.",
        ),
    )


def _rows_of_interpreter() -> tuple[Patch, ...]:
    return (
        Patch(
            "state of simulated kernels",
            (attribute(sys.modules[FOR_TPUS], "_initialize_shared_memory"),),
            "A kernel that is simulated for a TPU begins with new memory where one that failed has left its own.",
            "JAX keeps that for debugging, and refuses the next kernel of the process: 'Revisited block'. A callback "
            "that fails would end all kernels after its own.",
            "0.10",
            "JAX's simulation gives each kernel memory of its own.",
        ),
    )


ROWS_OF: dict[str, Rows] = {KERNELS: _rows_of_kernels, FOR_TPUS: _rows_of_interpreter}
"""By module: the rows that change it, which are made once it has been imported."""

# Import hooks for modules that few programs need, such as Pallas's.
#
# To import such modules early would take longer than the import of this library. A hook runs inside the import of its
# module, so no code sees the module without the changes.

_waiting: dict[str, list[Callable[[], None]]] = {}


def when_imported(name: str, do: Callable[[], None]) -> None:
    """Calls `do` once the module of this name has been imported: now, or at the end of its import."""
    if name in sys.modules:
        do()
    else:
        _waiting.setdefault(name, []).append(do)


class _Finder(MetaPathFinder):
    """Finds modules with import hooks, by the other finders, and wraps their loaders."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _waiting:
            return None
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _LoaderThenDo(spec.loader)
        return spec


class _LoaderThenDo(Loader):
    """Loads a module by another loader, which stays the module's `__loader__`, and then calls its import hooks."""

    def __init__(self, loader: Loader):
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for do in _waiting.pop(module.__name__, ()):
            do()


sys.meta_path.insert(0, _Finder())


Maker = Callable[[Any], Any]
"""Makes the replacement for a patch point from JAX's original, which is None if JAX has none."""

_Maker = TypeVar("_Maker", bound=Maker)

_BATCHERS = "fancy_primitive_batchers"
_REMAT = "partial_eval_jaxpr_custom_rules"
_MASKS = "JAX tells batching rules of effects for which lanes a branch or an iteration is."

_TABLE = (
    Patch(
        "text of traced values",
        (attribute(core.Tracer, "__format__"),),
        'A traced value that is formatted with a specification, as in `f"{x:.2f}"`, in a function that uses this '
        "library, is an error that says what to write. Elsewhere the error is Python's.",
        "The f-string fails before the call that it is for, so that no function of this library sees it.",
        "0.10",
        "JAX lets libraries say what such an error says.",
    ),
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
        "JAX's callbacks outside of traces",
        (
            method(debugging, "debug_print_p", "impl"),
            method(debugging, "debug_callback_p", "impl"),
            method(callback, "io_callback_p", "impl"),
            method(conditionals, "cond_p", "impl"),
            *(method(loops, name, "impl") for name in ("scan_p", "while_p")),
        ),
        "They happen at once, as in JAX, behind the effects that the thread's calls of `fx.jit` functions have issued.",
        "They would come ahead of lines of programs that were called before.",
        "0.10",
        "JAX lets libraries wait for their effects ahead of such a callback.",
    ),
    Patch(
        "jax.debug.breakpoint",
        (attribute(jax.debug, "breakpoint"),),
        "While a function is traced for `fx.jit`, it is an `fx.breakpoint`, unless it is given `token`, `backend` or "
        "other options of a debugger. The setting `jax_effects` keeps JAX's semantics.",
        "JAX's callback returns nothing to wait for, so that the program does not stop.",
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
    Patch(
        "effects of custom_partitioning",
        (method(custom_partitioning, "custom_partitioning_p", "abstract_eval"),),
        "A `custom_partitioning` function with effects of this library is refused in a function that is traced.",
        "The equation shows no effects, so that they are dropped where its results are not used, and over several "
        "devices JAX lowers them in a program by itself, which ends the process.",
        "0.10",
        "JAX shows the effects of these functions, and lowers them with the program.",
    ),
    Patch(
        "calls without arguments",
        (lowering(jit_p),),
        "Under plain `jax.jit`, a call of a jitted function without arguments that has ordered effects is inlined.",
        "XLA gives the constants of such a function control dependencies, with which its CSE ends the process: "
        "openxla/xla's pull request 23476.",
        "0.12",
        "XLA's CSE leaves out what it cannot remove.",
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

# By the names of rows, and of patch points. A reload of this module keeps both dictionaries, so that nothing is patched
# twice.
_makers: dict[str, Maker] = globals().get("_makers", {})
_originals: dict[str, Any] = globals().get("_originals", {})


def implements(*names: str) -> Callable[[_Maker], _Maker]:
    """Declares the implementation of the rows of these names: `make(original)` returns the replacement for a patch
    point. Nothing is changed yet."""

    def collect(make: _Maker) -> _Maker:
        for name in names:
            _makers[name] = make
        return make

    return collect


def apply() -> None:
    """Changes JAX as the table says, in the order of its rows; modules that JAX does not import itself, once they are
    imported, and extensions have declared their implementations. The second call changes nothing."""
    if _originals:
        return
    _change(_TABLE)
    for module, rows in ROWS_OF.items():
        when_imported(module, lambda rows=rows: _change(rows()))


def _change(rows: Sequence[Patch]) -> None:
    """Makes the changes of rows. The row of a missing extension has no implementation, and changes nothing."""
    for row in rows:
        for point in row.points if row.name in _makers else ():
            original = point.get()
            _originals.setdefault(point.name, original)
            point.put(_makers[row.name](original))


def patches() -> Patches:
    """Lists the changes that importing this library makes in JAX, why, and what would make them needless.

    Changes of Pallas are made when Pallas is imported. This function imports it.

    Returns:
        A tuple of rows with the attributes `name`, `changes` (the names of what is changed), `now`, `why`, `since`
        and `until`. Printed, it is the table.

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
    return Patches([row for row in rows if row.name in _makers])


# Axes along which JAX maps tangents: `jax._src.api` and `jax._src.custom_batching`.
#
# JAX does not tell them apart from other axes. The name given here is part of the keys of JAX's caches, so that a jaxpr
# with effects that was batched for `jax.jacfwd` is not taken for one that was batched for a user's `vmap`.


class _Tangents:
    """The name of an axis of tangents."""

    def __repr__(self) -> str:
        return "<tangents>"


_TANGENTS = _Tangents()


def is_axis_of_tangents(axis_data: Any) -> bool:
    """True if tangents are mapped along this axis, by `jax.jacfwd` or by the derivative of a `custom_vmap`. Primal
    values are evaluated once along it, so their effects happen once."""
    return axis_data.name is _TANGENTS


@implements("axis of tangents")
def _name_axes_of_pushforwards(vmap: Any) -> Any:
    """Wraps the `vmap` that JAX itself calls. `jacfwd` maps a pushforward: `_jvp` with bound function and primals."""

    @functools.wraps(vmap)
    def named(fun: Any, *args: Any, **options: Any) -> Any:
        if isinstance(fun, functools.partial) and fun.func is api._jvp:
            options["axis_name"] = _TANGENTS
        return vmap(fun, *args, **options)

    named.__module__ = __name__
    return named


@implements("axis of tangents in custom_vmap")
def _name_axes_of_rules(vmap: Any) -> Any:
    """Wraps the `vmap` that JAX uses only for the derivative of a `custom_vmap` rule."""

    @functools.wraps(vmap)
    def named(fun: Any, *args: Any, axis_name: Any, **options: Any) -> Any:
        return vmap(fun, *args, axis_name=_TANGENTS, **options)

    named.__module__ = __name__
    return named
