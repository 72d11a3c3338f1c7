"""Calls of Python functions: the content of `fx.callback` and of JAX's own callbacks."""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from effects import _jax
from effects._model.content import Content, described_by
from effects._model.function import HostFunction
from effects._model.operand import Operand

if TYPE_CHECKING:
    from effects._model.record import Record
    from effects._model.site import Site


class UnexpectedResults(TypeError):
    """A function did not return what its program expects. The two arguments describe the returned and the expected."""


@described_by("function")
@dataclasses.dataclass(frozen=True)
class HostCall(Content):
    """A call of `fx.callback`, or of a callback of JAX's."""

    delivered_individually = True

    raises_itself: ClassVar[bool] = False
    """True if the function's exception is raised as it is, since its message is complete. It ends the program."""

    always_ends: ClassVar[bool] = False
    """True if each call ends the program."""

    function: HostFunction
    results: tuple[Operand, ...] | None = None  # types of one lane's results; None: no program waits for results
    tree: Any = None  # their treedef, or only its text in a process without the treedef
    pass_record: bool = False
    vmap_method: str | None = None  # as for `jax.pure_callback`; None: lane by lane

    @property
    def title(self) -> str:
        return self.function.name

    @property
    def functions(self) -> tuple[HostFunction, ...]:
        return (self.function,)

    @property
    def runs_with_empty_mask(self) -> bool:
        """True if a device with no active lane makes the call too. `without_lanes` then makes its error."""
        return False

    def resized(self, resize: Callable[[Operand], Operand]) -> HostCall:
        """The content with symbolic sizes replaced."""
        return dataclasses.replace(self, results=tuple(map(resize, self.results))) if self.results else self

    def describe(self) -> dict[str, Any]:
        described = {
            "function": self.function.key,
            "name": self.function.name,
            "registered": self.function.registered,
            "results": None if self.results is None else [result.describe() for result in self.results],
            "structure": str(self.tree),
            "pass_record": self.pass_record,
        }
        if self.vmap_method is not None:
            described["vmap_method"] = self.vmap_method
        return described

    @classmethod
    def from_description(cls, description: Mapping[str, Any], read_operand: Callable[[Any], Operand]) -> HostCall:
        function = HostFunction(None, description["function"], description["name"], description["registered"])
        results = description["results"]
        results = None if results is None else tuple(map(read_operand, results))
        tree, pass_record = description["structure"], description["pass_record"]
        return cls(function, results, tree, pass_record, description.get("vmap_method"))

    def text(self, record: Record) -> str:
        given = [*map(str, record.args), *(f"{name}={value}" for name, value in record.fields.items())]
        return f"{self.function.name}({', '.join(given)})"

    def direct_call(self, site: Site) -> tuple[Any, ...] | None:
        """The call of the function by native code. None if this process does not have the function, or if its arguments
        are not simply the operands of a record.

        A tuple of four: the function; the `places` of its arguments; the function that flattens a pytree of results,
        None if the function returns a single array; and for each result its type, its shape, and a table from each type
        that may be returned to the packer that makes bytes of it, None for arrays. The last of the four is None if
        native code cannot read the results."""
        if not site.is_plain or self.pass_record:
            return None
        if (fn := self.function.fn) is None:
            return None
        if site.lanes or site.mask or site.hidden or site.num_dynamic_sizes or site.shards or site.shown_otherwise:
            return None
        flatten = None if self.only_result else getattr(self.tree, "flatten_up_to", None)
        results = self.results or ()
        is_read = all(result.stored.isbuiltin == 1 and result.stored == result.dtype for result in results)
        types = tuple(map(_taken, results)) if is_read and (self.only_result or flatten) else None
        return fn, tuple(site.places), flatten, types

    @property
    def is_vectorized(self) -> bool:
        """True if the function is called once for all lanes."""
        return self.vmap_method is not None and not self.vmap_method.startswith("sequential")

    @functools.cached_property
    def only_result(self) -> Operand | None:
        """The type of the result, if the function returns a single array; else None."""
        return self.results[0] if self.results and self.has_structure(_ONE) else None

    def has_structure(self, tree: Any) -> bool:
        """True if the program expects results of this structure."""
        return tree == self.tree or str(tree) == self.tree


def _taken(result: Operand) -> tuple[Any, ...]:
    """Type and shape of a result, and the table of types that may be returned for it: see `HostCall.direct_call`."""
    kind, char = result.dtype.kind, result.dtype.char
    layout = f"={char}" if kind == "f" else char  # without "=" no number is too large for a float
    numbers = () if result.shape else _NUMBERS.get(kind, ())
    arrays = dict.fromkeys((np.ndarray, _jax.Array, result.stored.type))
    return result.stored, result.shape, {**arrays, **{number: struct.Struct(layout).pack for number in numbers}}


_NUMBERS = {"f": (float, int), "i": (int,), "u": (int,), "b": (bool,)}
"""By kind of a result: the types of Python numbers that may be returned for it."""

_ONE = jax.tree.structure(0)
_SIMPLE = {str(jax.tree.structure(None)): "None", str(_ONE): "one array"}
"""The names of common structures in messages."""


def take_results(call: HostCall, returned: Any, types: Sequence[Operand]) -> list[np.ndarray]:
    """Converts a callback's results, for one lane or for all, to arrays of the stored dtypes of these types.

    Raises:
        UnexpectedResults: if structure, shapes or dtypes are not the declared ones.
    """
    if call.only_result is not None and isinstance(returned, _ARRAY):
        return [_take_result(returned, types[0])]
    leaves, tree = jax.tree.flatten(returned)
    if not call.has_structure(tree):
        raise UnexpectedResults(*(_SIMPLE.get(x, f"the structure {x}") for x in (str(tree), str(call.tree))))
    return [_take_result(leaf, result) for leaf, result in zip(leaves, types, strict=True)]


_ARRAY = np.ndarray, np.generic


def _take_result(leaf: Any, result: Operand) -> np.ndarray:
    if type(leaf) is np.ndarray and leaf.dtype is result.stored and leaf.shape == result.shape:
        return leaf  # the common case, which passes all tests below
    if type(leaf) in (bool, int, float, complex):
        # A Python number has no dtype: it is converted to the result's dtype, if that can represent it.
        kinds = {bool: "b", int: "biufc", float: "fc", complex: "c"}[type(leaf)]
        is_float = jnp.issubdtype(result.dtype, np.floating)  # such as bfloat16
        kind = result.dtype.kind if result.dtype.kind in "biufc" else ("f" if is_float else "i")
        if result.shape or kind not in kinds or (kind == "b" and leaf not in (0, 1)):
            raise UnexpectedResults(f"the Python number {leaf!r}", _describe(result))
        if kind in "iu":
            bounds = jnp.iinfo(result.dtype)
            fits = bounds.min <= leaf <= bounds.max
        else:
            fits = _fits_float(leaf, result.dtype)
        if not fits:
            raise UnexpectedResults(f"the Python number {leaf!r}", _describe(result))
        return np.asarray(leaf, result.dtype).astype(result.stored)
    if not isinstance(leaf, (np.ndarray, np.generic, jax.Array)):
        raise UnexpectedResults(f"{leaf!r} of type `{type(leaf).__name__}`", _describe(result))
    is_wide = leaf.dtype in _WIDE and leaf.shape == result.shape
    if is_wide and jax.dtypes.canonicalize_dtype(leaf.dtype) == result.dtype:  # x64 is off
        leaf = _narrowed(np.asarray(leaf), result)
    if leaf.shape != result.shape or leaf.dtype != result.dtype:
        raise UnexpectedResults(_describe(leaf), _describe(result))
    value = np.asarray(leaf)
    return value if result.stored == result.dtype else value.astype(result.stored)


_WIDE = frozenset(map(np.dtype, ("int64", "uint64", "float64", "complex128")))
"""NumPy's default types, which JAX has only with `jax_enable_x64`."""


def _narrowed(value: np.ndarray, result: Operand) -> np.ndarray:
    """Casts an array to the type of a result, as `io_callback` does, but raises an error if a number does not fit."""
    with np.errstate(all="ignore"):
        narrow = value.astype(result.dtype)
    fits = narrow == value if result.dtype.kind in "iu" else np.isfinite(narrow) >= np.isfinite(value)
    if not np.all(fits):
        raise UnexpectedResults(f"{_describe(value)} with numbers that are too large", _describe(result))
    return narrow


def _fits_float(number: Any, dtype: np.dtype) -> bool:
    """True unless a finite number becomes infinite in this type."""
    try:
        with np.errstate(all="ignore"):
            value = np.asarray(number, dtype).astype(np.complex128)
        return bool(np.isfinite(value)) or not np.isfinite(complex(number))
    except OverflowError:
        return False


def _describe(array: Any) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"
