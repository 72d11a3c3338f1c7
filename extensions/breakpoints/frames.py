"""The user's frames at a breakpoint: what tracing knows of them, and the values that the program computes.

A value that the program computes is an operand. Arrays, numbers, text and pytrees of these are kept, and attributes of
objects that are of such types. Of any other value only the type is kept: an object may hold the function that is
traced, and the program would keep both alive for good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import FrameType, FunctionType, MemberDescriptorType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from effects import _jax

_KEPT = (np.ndarray, np.generic, bool, int, float, complex, str, bytes)


class _Named(str):
    """The text shown in place of a value that is not kept."""

    __repr__ = str.__str__


class _Object(SimpleNamespace):
    """The attributes of an object that is no pytree, in place of the object."""

    def __repr__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in vars(self).items() if name != "_title")
        return f"<{' '.join([self._title, *shown])}>"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no attribute {name!r} of <{self._title}> is kept")


jax.tree_util.register_pytree_node(
    _Object,
    lambda x: ([*vars(x).values()], (*vars(x),)),
    lambda names, values: _Object(**dict(zip(names, values, strict=True))),
)


class _Place(int):
    """Stands for a value of the program: its place among the operands."""


class Frame(NamedTuple):
    """A frame of the user's. `values` are by the names that the user gave them; a frame that is another at each call
    of the program has none."""

    file: str
    line: int
    function: str
    values: Mapping[str, Any]
    globals: Mapping[str, Any]

    def of_program(self, operands: Sequence[Any]) -> Frame:
        """The frame with the program's values, of these operands."""
        values = {name: _filled(value, operands) for name, value in self.values.items()}
        return self._replace(values=values)


def _filled(value: tuple[Any, Sequence[Any]], operands: Sequence[Any]) -> Any:
    tree, leaves = value
    leaves = [operands[leaf] if isinstance(leaf, _Place) else leaf for leaf in leaves]
    try:
        return jax.tree.unflatten(tree, leaves)
    except Exception as error:  # a user class that refuses such values
        return _Named(f"<not made again: {error!r}>")


def take_frames(frame: FrameType, at_most: int) -> tuple[list[Frame], list[Any]]:
    """This frame and those that called it, the innermost first, with the values that are operands."""
    places: dict[int, int] = {}  # by the identity of a tracer
    operands: list[Any] = []

    def take(leaf: Any, is_own: bool) -> Any:
        if not isinstance(leaf, _jax.Tracer):
            return leaf if leaf is None or isinstance(leaf, (jax.Array, *_KEPT)) else _named(leaf)
        if not (is_own and _is_value(leaf) and _jax.is_of_traces_here(leaf)):
            return _Named(f"<{str(_jax.typeof(leaf)).lstrip('~')}, which is not known here>")
        if id(leaf) not in places:
            places[id(leaf)] = len(operands)
            operands.append(jax.lax.stop_gradient(leaf))
        return _Place(places[id(leaf)])

    frames = []
    for each, is_traced, is_own in _jax.user_stack(frame, at_most):
        values = {}
        for name, value in each.f_locals.items() if is_traced and each.f_locals is not each.f_globals else ():
            try:
                leaves, tree = jax.tree.flatten(_with_attributes(value), is_leaf=_is_iterator)
            except Exception:  # a user class, or keys that cannot be sorted
                leaves, tree = jax.tree.flatten(_named(value))
            values[name] = tree, [take(leaf, is_own) for leaf in leaves]
        code = each.f_code
        frames.append(Frame(code.co_filename, each.f_lineno, code.co_qualname, values, each.f_globals))
    return frames, operands


def _is_iterator(x: Any) -> bool:
    return isinstance(x, Iterator)


_DEEPEST = 2
"""The depth of objects inside objects at which attributes are no longer kept."""


def _with_attributes(value: Any, depth: int = 0) -> Any:
    """A pytree with its objects replaced by their attributes. No code of the objects runs."""

    def expanded(leaf: Any) -> Any:
        if isinstance(leaf, (jax.Array, _jax.Tracer, *_KEPT, type, ModuleType, Iterator)) or depth == _DEEPEST:
            return leaf
        in_dict = getattr(leaf, "__dict__", {})
        of_classes = {name: x for base in reversed(type(leaf).__mro__) for name, x in vars(base).items()}
        slots = {
            name: getattr(leaf, name)
            for name, x in of_classes.items()
            if isinstance(x, MemberDescriptorType) and hasattr(leaf, name)
        }
        shared = {name: x for name, x in of_classes.items() if isinstance(x, (jax.Array, *_KEPT))}
        attributes = {name: x for name, x in {**shared, **slots, **in_dict}.items() if not name.startswith("_")}
        if isinstance(leaf, FunctionType) or not attributes:
            return leaf
        inside = {name: _with_attributes(x, depth + 1) for name, x in attributes.items()}
        return _Object(_title=type(leaf).__qualname__, **inside)

    return jax.tree.map(expanded, value, is_leaf=_is_iterator)


def _named(value: Any) -> _Named:
    name = getattr(value, "__qualname__", None)
    return _Named(f"<{type(value).__qualname__} {name}>" if isinstance(name, str) else f"<{type(value).__qualname__}>")


def _is_value(tracer: Any) -> bool:
    """Returns True if the host can be given the value: it is no reference, and no token."""
    dtype = getattr(tracer, "dtype", None)
    if dtype is None or _jax.is_reference(tracer):
        return False
    return any(jnp.issubdtype(dtype, kind) for kind in (np.number, np.bool_, jax.dtypes.prng_key))
