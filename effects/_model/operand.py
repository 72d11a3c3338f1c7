"""The operands of an effect: arrays that travel in its records, and arguments that are known while tracing.

Their descriptions are text and JSON, which travel with compiled and exported programs.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from effects import _errors as errors
from effects import _jax
from effects._model.numbering import Numbering
from effects._model.where import Where

# Arrays that travel in records, and arguments that do not.


@dataclasses.dataclass(frozen=True)
class Operand:
    """An array that travels in the record."""

    shape: tuple[int, ...]
    dtype: np.dtype  # as shown
    stored: np.dtype  # in the record: narrow integers take a byte
    lanes: tuple[bool, ...] = ()  # for each `vmap` around the site: True if this operand differs between lanes

    def zeros(self) -> np.ndarray:
        """Returns zeros of the shape that one lane sees, in next to no memory, to try a format with."""
        zero = np.zeros((), self.dtype)
        shape = [n if isinstance(n, int) and n >= 0 else _MANY for n in self.shape[sum(self.lanes) :]]
        return np.broadcast_to(zero, shape) if shape else zero

    @functools.cached_property
    def size(self) -> int:
        """Bytes in the record, without padding."""
        return self.stored.itemsize * math.prod(self.shape)

    @functools.cached_property
    def strides(self) -> tuple[int, ...]:
        """The bytes between two lanes, along each axis of lanes; empty if the operand is the same in all of them."""
        if not any(self.lanes):
            return ()
        steps = itertools.accumulate(reversed(self.shape[1:]), operator.mul, initial=self.stored.itemsize)
        of_axes = iter(reversed([*steps]))
        return tuple(next(of_axes) if differs else 0 for differs in self.lanes)

    def describe(self) -> str:
        """The operand as text: `float32[2,3]`, `int4[2]/int8`, `float32[9,2]@10` (lanes of the outer of two
        `vmap`s)."""
        stored = "" if self.stored == self.dtype else f"/{dtype_name(self.stored)}"
        lanes = "@" + "".join("01"[differs] for differs in self.lanes) if self.lanes else ""
        return f"{dtype_name(self.dtype)}[{','.join(map(str, self.shape))}]{stored}{lanes}"

    def of_lane(self, value: np.ndarray, lane: tuple[int, ...]) -> np.ndarray:
        """Returns the part of a value that one lane sees."""
        if not all(self.lanes):
            lane = tuple(i for i, differs in zip(lane, self.lanes, strict=True) if differs)
        return value[(*lane, ...)]


@dataclasses.dataclass(frozen=True)
class Static:
    """An argument that is known while tracing and travels in the description."""

    value: Any

    @property
    def is_object(self) -> bool:
        """True if descriptions have no value of this type, so that only its text travels."""
        return not isinstance(self.value, _PLAIN)

    @property
    def travels_as_text(self) -> bool:
        """True if a description has only the text of the value: of objects, and of subclasses of plain types."""
        value = self.value
        is_scalar = isinstance(value, np.generic) and not isinstance(value, (str, bytes, np.void))
        return type(value) not in _TYPES and not is_scalar

    def as_text(self) -> Static:
        """The argument with an object replaced by its text."""
        return Static(Text(self.value)) if self.is_object else self


class Text(str):
    """The text of an object, and its `repr`, which containers show."""

    def __new__(cls, thing: object, repr_text: str | None = None) -> Self:
        text = super().__new__(cls, thing if isinstance(thing, str) else _text(str, thing))
        text._repr = _text(repr, thing) if repr_text is None else repr_text
        return text

    _repr: str

    def __repr__(self) -> str:
        return self._repr


def _text(of: Callable[[object], str], thing: object) -> str:
    try:
        return of(thing)
    except Exception:  # a format with this field raises
        return f"<{type(thing).__qualname__}>"


_TYPES = (str, bytes, int, float, complex, bool)
_PLAIN = (*_TYPES, np.generic)

_OPERAND = r"(\w+)\[([-,\d]*)\](?:/(\w+))?(?:@([01]+))?"


def read_operand(description: str) -> Operand:
    """The operand that has this description."""
    match = re.fullmatch(_OPERAND, description)
    assert match is not None, description
    dtype, shape, stored, lanes = match.groups()
    return Operand(
        tuple(map(int, shape.split(","))) if shape else (),
        np.dtype(dtype),
        np.dtype(stored or dtype),
        tuple(lane == "1" for lane in lanes or ""),
    )


_MANY = 1 << 10
"""The size that stands for an unknown one when a format is tried."""


@functools.cache
def dtype_name(dtype: np.dtype) -> str:
    """The type's name, cached, since NumPy makes `dtype.name` anew each time."""
    return dtype.name


# Types narrower than a byte are widened in records, since devices pack them in different formats.
_STORED = {
    **dict.fromkeys(("int1", "int2", "int4"), np.dtype(np.int8)),
    **dict.fromkeys(("uint1", "uint2", "uint4"), np.dtype(np.uint8)),
    "float4_e2m1fn": np.dtype(np.float32),
}


def stored_dtype(dtype: np.dtype) -> np.dtype:
    """The type in which values of this one travel between devices and host."""
    return _STORED.get(dtype_name(dtype), dtype)


# Arguments of effects: arrays, which travel in records, and static values, known while a program is traced.

MSG_ARGUMENT = (
    "`{call}` at {where} was given {value} of type {type} as {path}. Arguments are pytrees of arrays, and strings, "
    "numbers and None are taken as they are. Pass {remedy}."
)


MSG_TRACER_IN_TEXT = (
    "`{call}` at {where} was given {text!r} as {path}, which holds the text of a traced value. An f-string is filled "
    "while tracing, when values are not known yet. Pass the value itself, as an argument of its own."
)


def holds_tracer(text: str) -> bool:
    """True if a text contains the text of a tracer: the name of a tracer class with its contents, or `Traced<`."""
    names = re.findall(r"\b(\w+Tracer)[<(]", text)
    return "Traced<" in text or bool(names and not _jax.tracer_names().isdisjoint(names))


@functools.cache
def flat_arguments(count: int) -> Any:
    """The structure of `count` positional arguments, each of them a leaf."""
    return jax.tree.structure(((0,) * count, {}))


def whole_arguments(tree: Any, leaves: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """`(args, kwargs)` of this structure, with each argument that is a leaf replaced by this leaf, and each pytree by
    None. No object of a user class is made, since its constructor may require arrays as leaves."""
    remaining = iter(leaves)

    def whole(child: Any) -> Any:
        own_leaves = list(itertools.islice(remaining, child.num_leaves))
        return own_leaves[0] if own_leaves and jax.tree_util.treedef_is_leaf(child) else None

    args, kwargs = tree.children()
    positional = list(map(whole, args.children()))
    return positional, dict(zip(kwargs.node_data()[1], map(whole, kwargs.children()), strict=True))


def take_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], call: str, where: Where, takes_objects: bool = False
) -> tuple[list[Any], tuple[Operand | Static, ...], Any]:
    """Flattens arguments and separates the arrays, which travel in records: (operand values, leaves, treedef).

    `takes_objects`: True if any object is taken as a static leaf, by a caller that makes text of it.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path((args, kwargs))
    values: list[Any] = []
    leaves: list[Operand | Static] = []
    for path, leaf in paths:
        if isinstance(leaf, (str, bytes, int, float, complex, np.generic)):
            if isinstance(leaf, str) and holds_tracer(leaf):
                name = _name_of(path)
                raise errors.type_error(MSG_TRACER_IN_TEXT.format(call=call, where=where, text=leaf, path=name))
            leaves.append(Static(_jax.plain_number(leaf)))
            continue
        if _jax.is_reference(leaf):
            leaf = leaf[...]  # a copy of its present value
        if takes_objects and not is_array(leaf):
            leaves.append(Static(leaf))
            continue
        if not isinstance(leaf, (jax.Array, np.ndarray)):
            raise _bad_argument(leaf, path, call, where, "an array, or the text you want to see, say `str(x)`")
        value, operand = take_array(leaf, path, call, where)
        values.append(value)
        leaves.append(operand)
    return values, tuple(leaves), tree


def is_array(x: Any) -> bool:
    """True for a JAX array, and for a NumPy array of numbers or booleans."""
    if isinstance(x, np.ndarray):
        return bool(jnp.issubdtype(x.dtype, np.number)) or x.dtype == bool or x.dtype == jax.dtypes.float0
    return isinstance(x, jax.Array)


def take_array(x: Any, path: Any, call: str, where: Where) -> tuple[Any, Operand]:
    """An array in the type in which it travels, and its description. Arrays of other things than numbers and booleans
    are refused."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if x.dtype == jax.dtypes.float0:  # float0, the tangent of an integer: it has no value
        x = np.zeros(x.shape, bool)
    elif isinstance(x, np.ndarray):
        if not is_array(x):
            raise _bad_argument(x, path, call, where, "an array of numbers or booleans")
        x = jnp.asarray(x)
    dtype = np.dtype(x.dtype)
    stored = stored_dtype(dtype)
    return (x if stored == dtype else x.astype(stored)), Operand(tuple(x.shape), dtype, stored)


def _bad_argument(leaf: Any, path: Any, call: str, where: Where, remedy: str) -> TypeError:
    try:
        value = repr(leaf)
    except Exception:
        value = "a value"
    if len(value) > 80:
        value = value[:77] + "..."
    return TypeError(
        MSG_ARGUMENT.format(
            call=call, where=where, value=value, type=f"`{type(leaf).__name__}`", path=_name_of(path), remedy=remedy
        )
    )


def _name_of(path: Any) -> str:
    """Returns the name in messages of the leaf at this path of `(args, kwargs)`."""
    (which, key), rest = (path[0].idx, path[1]), path[2:]
    name = f"argument {key.idx + 1}" if which == 0 else f"argument {key.key!r}"
    return f"{name}, at {jax.tree_util.keystr(rest)}" if rest else name


# Leaves and trees of arguments as JSON, and back.


def describe_leaf(leaf: Operand | Static) -> Any:
    if isinstance(leaf, Operand):
        return leaf.describe()
    value = leaf.value
    if leaf.travels_as_text:
        return {"text": _text(str, value), "of": [type(value).__qualname__, _text(repr, value)]}
    if isinstance(value, np.generic):
        return {"scalar": [value.dtype.name, value.tobytes().hex()]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return {"static": value}


def read_leaf(description: str | dict[str, Any]) -> Operand | Static:
    if isinstance(description, str):
        return read_operand(description)
    kind, value = next(iter(description.items()))
    if kind == "scalar":
        return Static(np.frombuffer(bytes.fromhex(value[1]), np.dtype(value[0]))[0])
    if kind == "complex":
        return Static(complex(*value))
    if kind == "text":
        return Static(Text(value, description["of"][1]))
    return Static(bytes.fromhex(value) if kind == "bytes" else value)


_USUAL_TEXT = collections.namedtuple("_", ()).__repr__.__code__


def describe_tree(tree: Any) -> Any:
    if tree is None:
        return None
    data = tree.node_data()
    children = [describe_tree(child) for child in tree.children()]
    if data is None:
        return "none" if tree.num_leaves == 0 else "leaf"
    type_, keys = data
    if type_ in (dict, collections.OrderedDict):
        return {type_.__name__: [[_describe_key(key) for key in keys], children]}
    if type_ in (list, tuple):
        return {type_.__name__: children}
    if issubclass(type_, tuple) and (fields := getattr(type_, "_fields", None)) is not None:
        has_usual_text = getattr(type_.__repr__, "__code__", None) is _USUAL_TEXT
        has_usual_text &= (type_.__str__, type_.__format__) == (tuple.__str__, tuple.__format__)
        return {"namedtuple" if has_usual_text else "other namedtuple": [type_.__name__, fields, children]}
    return "none" if type_ is type(None) else {"other": [_own_name(type_), children]}


_numbering = Numbering()


def _own_name(type_: type) -> str:
    """The name of a user class. A class that has been defined again, as in a notebook, gets a number too."""
    number = _numbering.number_of(type_.__qualname__, type_)
    return f"{type_.__qualname__}#{number}" if number else type_.__qualname__


def _describe_key(key: Any) -> Any:
    if isinstance(key, tuple):
        return {"tuple": [_describe_key(part) for part in key]}
    return None if key is None else describe_leaf(Static(key))


def _read_key(description: Any) -> Any:
    if description is None:
        return None
    if "tuple" in description:
        return tuple(map(_read_key, description["tuple"]))
    leaf = read_leaf(description)
    assert isinstance(leaf, Static)
    return leaf.value


def nodes_unknown_elsewhere(description: Any) -> set[str]:
    """The names of node types whose text another process cannot make, from a tree's description."""
    if not isinstance(description, dict):
        return set()
    [(kind, value)] = description.items()
    names = {value[0]} if kind in ("other", "other namedtuple") else set()
    return names.union(*map(nodes_unknown_elsewhere, value if kind in ("list", "tuple") else value[-1]))


@functools.cache
def _namedtuple(name: str, fields: tuple[str, ...]) -> Any:
    return collections.namedtuple(name, fields)


def read_tree(description: Any, leaf: object) -> Any:
    if description in ("leaf", "none"):
        return leaf if description == "leaf" else None
    [(kind, value)] = description.items()
    if kind in ("dict", "OrderedDict"):
        keys, children = value
        pairs = zip(map(_read_key, keys), (read_tree(child, leaf) for child in children), strict=True)
        return dict(pairs) if kind == "dict" else collections.OrderedDict(pairs)
    if kind in ("namedtuple", "other namedtuple"):
        name, fields, children = value
        return _namedtuple(name, tuple(fields))(*(read_tree(child, leaf) for child in children))
    children = [read_tree(child, leaf) for child in (value[1] if kind == "other" else value)]
    return tuple(children) if kind == "tuple" else children
