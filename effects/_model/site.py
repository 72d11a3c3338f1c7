"""A site: one call of an effect in the user's source, described so that anyone can replay its records.

Records carry the site's hash and the bytes of the operands. The description travels with the compiled program, so a
program that was compiled elsewhere is understood too: the hash is of the content, never an address or a counter.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import operator
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np

from effects import _jax
from effects._model.callback import HostCall, Numbering
from effects._model.content import Content, HandlerContent, content_from
from effects._model.effect import Effect, describe_effect
from effects._model.filter import ALWAYS, Filter

# Arrays that travel in records, and arguments that do not.


@dataclasses.dataclass(frozen=True)
class Operand:
    """An array that travels in the record."""

    shape: tuple[int, ...]
    dtype: np.dtype  # as shown
    stored: np.dtype  # as it travels: narrow integers take a byte
    lanes: tuple[bool, ...] = ()  # for each `vmap` around the site, whether this operand differs between its lanes

    def zeros(self) -> np.ndarray:
        """What one lane may see of the operand, in next to no memory, to try something with."""
        zero = np.zeros((), self.dtype)
        shape = [n if isinstance(n, int) and n >= 0 else _MANY for n in self.shape[sum(self.lanes) :]]
        return np.broadcast_to(zero, shape) if shape else zero

    @functools.cached_property
    def size(self) -> int:
        """Bytes in the record, without padding."""
        return self.stored.itemsize * math.prod(self.shape)

    @functools.cached_property
    def strides(self) -> tuple[int, ...]:
        """How many bytes lie between two lanes, along each axis of lanes; empty if it is the same in all of them."""
        if not any(self.lanes):
            return ()
        steps = itertools.accumulate(reversed(self.shape[1:]), operator.mul, initial=self.stored.itemsize)
        of_axes = iter(reversed([*steps]))
        return tuple(next(of_axes) if differs else 0 for differs in self.lanes)

    def describe(self) -> str:
        """All of it as text: `float32[2,3]`, `int4[2]/int8`, `float32[9,2]@10` (lanes of the outer of two `vmap`s)."""
        stored = "" if self.stored == self.dtype else f"/{dtype_name(self.stored)}"
        lanes = "@" + "".join("01"[differs] for differs in self.lanes) if self.lanes else ""
        return f"{dtype_name(self.dtype)}[{','.join(map(str, self.shape))}]{stored}{lanes}"

    def of_lane(self, value: np.ndarray, lane: tuple[int, ...]) -> np.ndarray:
        """What one lane sees of the operand."""
        if not all(self.lanes):
            lane = tuple(i for i, differs in zip(lane, self.lanes, strict=True) if differs)
        return value[(*lane, ...)]


@dataclasses.dataclass(frozen=True)
class Static:
    """An argument that is known while tracing and travels in the description."""

    value: Any

    @property
    def is_object(self) -> bool:
        """Whether it is of a type that descriptions do not have: only its text travels."""
        return not isinstance(self.value, _PLAIN)

    def as_text(self) -> Static:
        """The same of an object's text."""
        return Static(Text(self.value)) if self.is_object else self


class Text(str):
    """The text of an object, which has that of its `repr` too: containers show what is in them by it."""

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
    except Exception:  # a format that shows it says so
        return f"<{type(thing).__qualname__}>"


_PLAIN = (str, bytes, int, float, complex, np.generic)

_OPERAND = r"(\w+)\[([-,\d]*)\](?:/(\w+))?(?:@([01]+))?"


def read_operand(description: str) -> Operand:
    """The operand that describes itself so."""
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
"""What stands for a size that is not known yet when a format is tried."""


@functools.cache
def dtype_name(dtype: np.dtype) -> str:
    """The type's name, which NumPy makes anew at every asking."""
    return dtype.name


# Less than a byte: each device packs them in its own format.
_STORED = {
    **dict.fromkeys(("int1", "int2", "int4"), np.dtype(np.int8)),
    **dict.fromkeys(("uint1", "uint2", "uint4"), np.dtype(np.uint8)),
    "float4_e2m1fn": np.dtype(np.float32),
}


def stored_dtype(dtype: np.dtype) -> np.dtype:
    """The type in which values of this one travel between devices and host."""
    return _STORED.get(dtype_name(dtype), dtype)


# Lines of the user's source.

MAX_CALLERS = 8
"""How many callers a line is kept with: a recursive function has no end of them, and each program carries them."""


class _Line(NamedTuple):
    file: str
    line: int
    function: str


class Where(_Line):
    """A line of the user's source: `(file, line, function)`.

    Attributes:
        callers: The lines that called its function, the nearest first, and at most eight of them. They end with the
            function that is traced: JAX traces a function once, and calls the result from several places.
    """

    callers: tuple[Where, ...] = ()

    def __str__(self) -> str:
        return _jax.named_line(self.file, self.line)

    @property
    def called(self) -> str:
        """The lines that called its function, as a part of a message; empty if there are none."""
        return f"called from {', '.join(map(str, self.callers))}" if self.callers else ""

    def called_from(self, callers: Iterable[Any]) -> Where:
        """The same line with the lines `(file, line, function)` that called its function."""
        where = Where(*self)
        where.callers = tuple(Where(*caller) for caller in callers)
        return where


def where_called(depth: int = 1) -> Where:
    """The line from which the caller of the caller was called."""
    frame: FrameType = sys._getframe(depth + 1)
    if frame.f_code is _jax.OF_CALL and frame.f_back is not None:
        frame = frame.f_back
    callers = _jax.traced_callers(frame, MAX_CALLERS)
    return _line_of(frame).called_from(map(_line_of, callers))


def _line_of(frame: FrameType) -> Where:
    return Where(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)


# Arguments of effects: what of them travels in records, and what is known while a program is traced.

MSG_ARGUMENT = (
    "`{call}` at {where} was given {value} of type {type} as {path}. Arguments are pytrees of arrays, and strings, "
    "numbers and None are taken as they are. Pass {remedy}."
)


MSG_TRACER_IN_TEXT = (
    "`{call}` at {where} was given {text!r} as {path}, which holds the text of a traced value. An f-string is filled "
    "while tracing, when values are not known yet. Pass the value itself, as an argument of its own."
)


def holds_tracer(text: str) -> bool:
    """Whether a text has what JAX shows of a value that is not known yet: the name of a tracer, and what it holds."""
    names = re.findall(r"\b(\w+Tracer)[<(]", text)
    return "Traced<" in text or bool(names and not _jax.tracer_names().isdisjoint(names))


@functools.cache
def flat_arguments(count: int) -> Any:
    """The structure of so many positional arguments, each of them a leaf."""
    return jax.tree.structure(((0,) * count, {}))


def whole_arguments(tree: Any, leaves: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """`(args, kwargs)` of this structure: of each argument that is a leaf, this leaf, and of a pytree nothing but None.

    No object of a class of the user's is made, which may want arrays in place of these leaves.
    """
    remaining = iter(leaves)

    def whole(child: Any) -> Any:
        own = list(itertools.islice(remaining, child.num_leaves))
        return own[0] if own and jax.tree_util.treedef_is_leaf(child) else None

    args, kwargs = tree.children()
    positional = list(map(whole, args.children()))
    return positional, dict(zip(kwargs.node_data()[1], map(whole, kwargs.children()), strict=True))


def take_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], call: str, where: Where, takes_objects: bool = False
) -> tuple[list[Any], tuple[Operand | Static, ...], Any]:
    """Sorts arguments into what travels in records and what is known now: (operand values, leaves, treedef).

    `takes_objects`: whether any object is taken as it is, for what makes text of it.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path((args, kwargs))
    values: list[Any] = []
    leaves: list[Operand | Static] = []
    for path, leaf in paths:
        if isinstance(leaf, (str, bytes, int, float, complex, np.generic)):
            if isinstance(leaf, str) and holds_tracer(leaf):
                name = _name_of(path)
                raise TypeError(MSG_TRACER_IN_TEXT.format(call=call, where=where, text=leaf, path=name))
            leaves.append(Static(_jax.plain_number(leaf)))
            continue
        if _jax.is_reference(leaf):
            leaf = leaf[...]  # what it holds now
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
    """Whether this is an array of JAX's, or one of NumPy's that has numbers or booleans."""
    if isinstance(x, np.ndarray):
        return bool(jnp.issubdtype(x.dtype, np.number)) or x.dtype == bool or x.dtype == jax.dtypes.float0
    return isinstance(x, jax.Array)


def take_array(x: Any, path: Any, call: str, where: Where) -> tuple[Any, Operand]:
    """An array as it travels, and its description. What has no numbers is refused."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = _jax.physical_key_data(x)
    if x.dtype == jax.dtypes.float0:  # the tangent of an integer: it has no value
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
    """What messages call the leaf at this path of `(args, kwargs)`."""
    (which, key), rest = (path[0].idx, path[1]), path[2:]
    name = f"argument {key.idx + 1}" if which == 0 else f"argument {key.key!r}"
    return f"{name}, at {jax.tree_util.keystr(rest)}" if rest else name


# From sites to JSON and back: a site travels with compiled and exported programs as its description.


def describe_site(site: Site) -> str:
    """All of a site as JSON, without what goes without saying: a program carries it at every call."""
    description = {
        "effect": describe_effect(site.effect),
        "content": site.content.describe(),
        "leaves": list(map(_describe_leaf, site.leaves)),
        "where": site.where,
    }
    if site.where.callers:
        description["callers"] = site.where.callers
    if not site.is_flat:  # with all that tells trees apart: types of keys and nodes, their own data
        description |= {"tree": _describe_tree(site.tree), "structure": str(site.tree)}
    if site.lanes:
        description["lanes"] = site.lanes
    if site.mask is not None:
        description["mask"] = site.mask.describe()
    if site.grid is not None:
        description["grid"] = site.grid.describe()
    if site.processes:
        description["processes"] = site.processes
    if site.num_dynamic_sizes:
        description["unknown"] = site.num_dynamic_sizes
    if site.per_shard:
        description["per_shard"] = True
    if asked := site.filter.describe():
        description["filter"] = asked
    return _to_json(description)


_to_json = json.JSONEncoder(separators=(",", ":"), default=str).encode


def read_site(text: str) -> dict[str, Any]:
    """The fields of the site that describes itself so."""
    description = json.loads(text)
    leaves = tuple(map(_read_leaf, description["leaves"]))
    tree = jax.tree.structure(_read_tree(description["tree"], 0)) if "tree" in description else None
    return {
        "effect": Effect(**description["effect"]),
        "content": content_from(description["content"], read_operand),
        "leaves": leaves,
        "tree": tree or flat_arguments(len(leaves)),
        "where": Where(*description["where"]).called_from(description.get("callers", ())),
        "lanes": tuple(description.get("lanes", ())),
        "mask": read_operand(description["mask"]) if "mask" in description else None,
        "grid": read_operand(description["grid"]) if "grid" in description else None,
        "processes": tuple(description.get("processes", ())),
        "num_dynamic_sizes": description.get("unknown", 0),
        "per_shard": description.get("per_shard", False),
        "filter": Filter(**description.get("filter", {})),
    }


# Leaves and trees of arguments


def _describe_leaf(leaf: Operand | Static) -> Any:
    if isinstance(leaf, Operand):
        return leaf.describe()
    value = leaf.value
    if isinstance(value, np.generic):
        return {"scalar": [value.dtype.name, value.tobytes().hex()]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if type(value) in (str, int, float, bool):
        return {"static": value}
    return {"text": str(value), "of": [type(value).__qualname__, repr(value)]}  # an object's, or a subclass


def _read_leaf(description: str | dict[str, Any]) -> Operand | Static:
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


def _describe_tree(tree: Any) -> Any:
    if tree is None:
        return None
    data = tree.node_data()
    children = [_describe_tree(child) for child in tree.children()]
    if data is None:
        return "none" if tree.num_leaves == 0 else "leaf"
    type_, keys = data
    if type_ in (dict, collections.OrderedDict):
        return {type_.__name__: [[_describe_key(key) for key in keys], children]}
    if type_ in (list, tuple):
        return {type_.__name__: children}
    if issubclass(type_, tuple) and (fields := getattr(type_, "_fields", None)) is not None:
        return {"namedtuple": [type_.__name__, fields, children]}
    return "none" if type_ is type(None) else {"other": [_own_name(type_), children]}


_numbering = Numbering()


def _own_name(type_: type) -> str:
    """The name of a class of the user's. One that has been defined again, as in a notebook, has a number too."""
    number = _numbering.number_of(type_.__qualname__, type_)
    return f"{type_.__qualname__}#{number}" if number else type_.__qualname__


def _describe_key(key: Any) -> Any:
    if isinstance(key, tuple):
        return {"tuple": [_describe_key(part) for part in key]}
    return None if key is None else _describe_leaf(Static(key))


def _read_key(description: Any) -> Any:
    if description is None:
        return None
    if "tuple" in description:
        return tuple(map(_read_key, description["tuple"]))
    leaf = _read_leaf(description)
    assert isinstance(leaf, Static)
    return leaf.value


def nodes_unknown_elsewhere(tree: Any) -> set[str]:
    """Types of a tree's nodes that another process reads as lists."""
    if tree is None or tree.node_data() is None:
        return set()
    description = _describe_tree(tree)
    own = {description["other"][0]} if isinstance(description, dict) and "other" in description else set()
    return own.union(*map(nodes_unknown_elsewhere, tree.children()))


@functools.cache
def _namedtuple(name: str, fields: tuple[str, ...]) -> Any:
    return collections.namedtuple(name, fields)


def _read_tree(description: Any, leaf: object) -> Any:
    if description in ("leaf", "none"):
        return leaf if description == "leaf" else None
    [(kind, value)] = description.items()
    if kind in ("dict", "OrderedDict"):
        keys, children = value
        pairs = zip(map(_read_key, keys), (_read_tree(child, leaf) for child in children), strict=True)
        return dict(pairs) if kind == "dict" else collections.OrderedDict(pairs)
    if kind == "namedtuple":
        name, fields, children = value
        return _namedtuple(name, tuple(fields))(*(_read_tree(child, leaf) for child in children))
    children = [_read_tree(child, leaf) for child in (value[1] if kind == "other" else value)]
    return tuple(children) if kind == "tuple" else children


class Origin(Protocol):
    """What an effect was written as, where that is none of ours."""

    @property
    def primitive(self) -> Any: ...

    @property
    def params(self) -> Mapping[str, Any]: ...

    @property
    def ordered(self) -> bool:
        """As the user wrote it."""
        ...

    def give_back(self, site: Site, operands: Sequence[Any]) -> list[Any]:
        """Binds what was written to what travels for a site."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
    """One call of an effect in the user's source. Equal sites are those of equal content."""

    effect: Effect
    content: Content
    leaves: tuple[Operand | Static, ...]
    tree: Any  # the treedef of (args, kwargs)
    where: Where
    lanes: tuple[int, ...] = ()  # sizes of the `vmap`s around the call, the outermost first
    mask: Operand | None = None  # travels ahead of the leaves, and says which lanes have the effect; None: all
    processes: tuple[int, ...] = ()  # whose devices all have each of its records, where XLA's partitioner has several
    num_dynamic_sizes: int = 0  # how many sizes are known only when the program runs; they come first in its records
    per_shard: bool = False  # whether each shard of a sharded array is an effect of its own
    shard_bounds: tuple[tuple[slice, ...], ...] = ()  # of a record's shards: where each operand lies in the whole
    first_sharded: int = 0  # of these: the first that is not the whole
    filter: Filter = ALWAYS  # which of its effects are shown
    origin: Origin | None = None  # the callback of JAX's own that it was written as
    grid: Operand | None = (
        None  # in a kernel: travels behind the mask, and says which program of the grid has the effect
    )

    @functools.cached_property
    def description(self) -> str:
        return describe_site(self)

    @functools.cached_property
    def id(self) -> int:
        """The hash of the description, in 63 bits."""
        digest = hashlib.blake2b(self.description.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Site) and self.id == other.id

    def __hash__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"Site({self.effect.name} {self.content} at {self.where})"

    @functools.cached_property
    def results(self) -> tuple[Operand, ...] | None:
        """Types of the results that a program waits for, all lanes together; None if it waits for nothing."""
        if not isinstance(call := self.content, HostCall) or call.results is None:
            return None
        lanes = tuple(True for _ in self.lanes)
        return tuple(
            dataclasses.replace(result, shape=(*self.lanes, *result.shape), lanes=lanes) for result in call.results
        )

    @functools.cached_property
    def operands(self) -> tuple[Operand, ...]:
        """What travels in the record: the mask and the place in a grid, if there are any, and the leaves that are
        arrays."""
        return (*(hidden for hidden in (self.mask, self.grid) if hidden is not None), *self._arrays)

    @functools.cached_property
    def _arrays(self) -> tuple[Operand, ...]:
        """The leaves that are arrays."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, Operand))

    @functools.cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each operand begins in a record's payload; each is padded to eight bytes."""
        offsets, end = [], _padded(self.num_dynamic_sizes * SIZE.itemsize)
        for operand in self.operands:
            offsets.append(end)
            end += _padded(operand.size)
        return tuple(offsets)

    def with_lanes(self, size: int, batched: Sequence[bool]) -> Site:
        """The site under one more `vmap`: its batched operands get a leading axis."""
        flags = iter(batched)

        def with_lane(operand: Operand) -> Operand:
            differs = next(flags)
            shape = (size, *operand.shape) if differs else operand.shape
            return dataclasses.replace(operand, shape=shape, lanes=(differs, *operand.lanes))

        return self._with_operands(with_lane, lanes=(size, *self.lanes))

    def _with_operands(self, of: Callable[[Operand], Operand], **changes: Any) -> Site:
        """The site with these changes, and with `of` each operand in its place."""
        mask = None if self.mask is None else of(self.mask)
        grid = None if self.grid is None else of(self.grid)
        leaves = tuple(of(leaf) if isinstance(leaf, Operand) else leaf for leaf in self.leaves)
        return dataclasses.replace(self, mask=mask, grid=grid, leaves=leaves, **changes)

    def without_idle_mask(self, operands: Sequence[Any]) -> tuple[Sequence[Any], Site]:
        """Operands and site without a mask that has no lanes to choose from: it always holds."""
        if self.mask is None or self.lanes:
            return operands, self
        return operands[1:], dataclasses.replace(self, mask=None)

    def with_mask(self) -> Site:
        """The site with a mask ahead of its operands that is the same in all the lanes that it has by now."""
        boolean = np.dtype(bool)
        return dataclasses.replace(self, mask=Operand((), boolean, boolean, (False,) * len(self.lanes)))

    def with_grid(self, operands: Sequence[Any], index: Any) -> tuple[Sequence[Any], Site]:
        """Operands and site in a program of a kernel's grid, whose index is this vector."""
        masks = 0 if self.mask is None else 1
        number = np.dtype(np.int32)
        grid = Operand(index.shape, number, number, (False,) * len(self.lanes))
        return [*operands[:masks], index, *operands[masks:]], dataclasses.replace(self, grid=grid)

    def grid_of(self, payload: Any) -> tuple[int, ...] | None:
        """Which program of a kernel's grid has the effect, as a record's payload says; None outside of kernels."""
        if self.grid is None:
            return None
        offset = self.offsets[0 if self.mask is None else 1]
        return tuple(np.ndarray(self.grid.shape, self.grid.stored, payload, offset).tolist())

    def active(self, payload: Any) -> np.ndarray | None:
        """Which lanes have the effect, as a record's payload says; None: all."""
        if self.mask is None:
            return None
        mask = np.ndarray(self.mask.shape, self.mask.stored, payload, self.offsets[0])
        shape = tuple(size if differs else 1 for size, differs in zip(self.lanes, self.mask.lanes, strict=True))
        active = np.broadcast_to(mask.reshape(shape), self.lanes)
        return None if active.all() else active

    def lanes_of(self, payload: Any) -> Iterator[tuple[int, ...]]:
        """The lanes that have the effect, in order; one that is empty without lanes."""
        if (active := self.active(payload)) is None:
            return np.ndindex(*self.lanes)
        return map(tuple, np.argwhere(active).tolist())

    def of_lane(self, values: Sequence[np.ndarray], lane: tuple[int, ...]) -> list[np.ndarray]:
        """What one lane sees of the values that were read from a payload."""
        return [operand.of_lane(value, lane) for operand, value in zip(self._arrays, values, strict=True)]

    def all_lanes(self, values: Sequence[np.ndarray], vmap_method: str) -> list[np.ndarray]:
        """What a function that is called once for all lanes sees of the values that were read from a payload."""
        if vmap_method == "legacy_vectorized":
            return list(values)
        shown = []
        for operand, value in zip(self._arrays, values, strict=True):
            inner = value.shape[sum(operand.lanes) :]
            lanes = tuple(size if differs else 1 for size, differs in zip(self.lanes, operand.lanes, strict=True))
            value = value.reshape(*lanes, *inner)
            shown.append(np.broadcast_to(value, self.lanes + inner) if vmap_method == "broadcast_all" else value)
        return shown

    @functools.cached_property
    def symbols(self) -> tuple[Any, ...]:
        """The sizes that are not numbers, while a program is traced for symbolic shapes."""
        results = call.results or () if isinstance(call := self.content, HostCall) else ()
        sizes = list(self.lanes)
        for operand in (self.mask, *self.leaves, *results):
            if isinstance(operand, Operand):
                sizes += operand.shape
        return tuple(dict.fromkeys([size for size in sizes if not isinstance(size, int)]))

    @functools.cached_property
    def portable(self) -> Site:
        """The site as its records know it: in place of a symbol stands a negative number, which counts the sizes that
        come first in a record."""
        if not self.symbols:
            return self
        positions = {size: position for position, size in enumerate(self.symbols)}
        return self._resized(lambda size: size if isinstance(size, int) else -1 - positions[size], len(positions))

    @functools.cached_property
    def in_shards(self) -> Site:
        """The site as its records know it where arrays are sharded automatically. In a record come first the sizes of
        the shards, where they begin, where they end, since the last along an axis may be smaller, and the whole
        sizes."""
        numbers = itertools.count(-1, -1)

        def of(operand: Operand) -> Operand:
            return dataclasses.replace(operand, shape=tuple(next(numbers) for _ in operand.shape))

        sizes = sum(len(operand.shape) for operand in self.operands)
        return self._with_operands(of, num_dynamic_sizes=4 * sizes)

    def _with_bounds(self, sizes: Sequence[int]) -> Site:
        count = self.num_dynamic_sizes // 4
        axes = zip(sizes[count : 2 * count], sizes[2 * count : 3 * count], sizes[3 * count :], strict=True)
        each = [list(itertools.islice(axes, len(operand.shape))) for operand in self.operands]
        bounds = tuple(tuple(slice(start, stop) for start, stop, _ in one) for one in each)
        sharded = (i for i, one in enumerate(each) if any(stop - start != whole for start, stop, whole in one))
        return dataclasses.replace(
            self, shard_bounds=bounds, first_sharded=next(sharded, len(self.operands) - len(self._arrays))
        )

    @functools.cached_property
    def index(self) -> tuple[slice, ...] | None:
        """Of a record's shard: where the first array that is sharded lies in the whole, or the first if none is."""
        if not self.per_shard or not self._arrays:
            return None
        operand = self.operands[self.first_sharded] if self.shard_bounds else self._arrays[0]
        bounds = (
            self.shard_bounds[self.first_sharded] if self.shard_bounds else tuple(slice(0, n) for n in operand.shape)
        )
        return bounds[sum(operand.lanes) :]

    @functools.cached_property
    def _smaller(self) -> list[tuple[int, tuple[slice, ...]]]:
        """The arguments that are smaller in this record than the shards of others, and how much of them counts."""
        masks = len(self.operands) - len(self._arrays)
        counts = [tuple(slice(bound.stop - bound.start) for bound in bounds) for bounds in self.shard_bounds[masks:]]
        return [
            (i, count)
            for i, (operand, count) in enumerate(zip(self._arrays, counts, strict=False))
            if any(part.stop < size for part, size in zip(count, operand.shape, strict=True))
        ]

    def resolve_sizes(self, payload: Any) -> Site:
        """The site with the sizes that a record has, and with what it says itself."""
        if not self.num_dynamic_sizes:
            return self
        sized = self._sized(*np.ndarray((self.num_dynamic_sizes,), SIZE, payload).tolist())
        return self.content.read(sized, payload) if isinstance(self.content, HandlerContent) else sized

    def saying(self, content: Content, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Site:
        """The site of one record that says itself what it means, and of what."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        return dataclasses.replace(
            self, content=content, leaves=tuple(map(Static, leaves)), tree=tree, num_dynamic_sizes=0
        )

    @functools.cached_property
    def _sized(self) -> Callable[..., Site]:
        @functools.lru_cache(maxsize=64)
        def sized(*sizes: int) -> Site:
            site = self._resized(lambda size: size if size >= 0 else sizes[-1 - size], self.num_dynamic_sizes)
            return site._with_bounds(sizes) if self.per_shard else site

        return sized

    def _resized(self, resize: Callable[[Any], int], num_dynamic_sizes: int) -> Site:
        def of(operand: Operand) -> Operand:
            return dataclasses.replace(operand, shape=tuple(map(resize, operand.shape)))

        content = self.content.resized(of) if isinstance(self.content, HostCall) else self.content
        lanes = tuple(map(resize, self.lanes))
        return self._with_operands(of, content=content, lanes=lanes, num_dynamic_sizes=num_dynamic_sizes)

    @functools.cached_property
    def leaf_names(self) -> tuple[str, ...]:
        """What each leaf is called: the name or position of its argument, and the path into it."""
        values = [leaf.zeros() if isinstance(leaf, Operand) else leaf.value for leaf in self.leaves]
        paths, _ = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(self.tree, values))
        names = [jax.tree_util.keystr(path[1:], simple=True, separator=".") for path, _ in paths]
        if len(set(names)) < len(names):  # a key of the user's has a dot in it
            names = [jax.tree_util.keystr(path[1:]) for path, _ in paths]
        return tuple(names)

    @functools.cached_property
    def is_flat(self) -> bool:
        """Whether the leaves are the positional arguments, one by one."""
        return self.tree is None or self.tree == flat_arguments(len(self.leaves))

    @functools.cached_property
    def _is_plain(self) -> bool:
        """Whether the operands are the positional arguments, one by one."""
        return self.is_flat and all(isinstance(leaf, Operand) for leaf in self.leaves)

    @functools.cached_property
    def direct_call(self) -> tuple[Any, ...] | None:
        """How native code calls the function of this site. None if it cannot, since this process does not have the
        function, or the function is called with something else than what lies in a record.

        Four things: the function; the `places` of its arguments; what takes a structure of results apart, None where
        the function returns one result by itself; and of each result the type, the shape, and a table that says for
        each type that may be returned what makes bytes of it, None for arrays. The last of the four is None if native
        code cannot read the results."""
        if not isinstance(call := self.content, HostCall) or not self._is_plain:
            return None
        if call.pass_record or call.prints:
            return None
        if (fn := call.function.fn) is None:
            return None
        if self.lanes or self.mask or self.grid or self.num_dynamic_sizes or self.shard_bounds or self._shown_otherwise:
            return None
        flatten = None if call.only_result else getattr(call.tree, "flatten_up_to", None)
        results = call.results or ()
        is_read = all(result.stored.isbuiltin == 1 and result.stored == result.dtype for result in results)
        types = tuple(map(_taken, results)) if is_read and (call.only_result or flatten) else None
        return fn, tuple(self.places), flatten, types

    def arguments(self, operands: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """`(args, kwargs)` with these values in place of the operands."""
        if self._is_plain:
            return tuple(operands), {}
        values = iter(operands)
        leaves = [leaf.value if isinstance(leaf, Static) else next(values) for leaf in self.leaves]
        return (tuple(leaves), {}) if self.is_flat else jax.tree.unflatten(self.tree, leaves)

    def read(self, payload: Any) -> list[np.ndarray]:
        """The arguments' values from a record's payload, without the mask; read-only."""
        values = [np.ndarray(shape, stored, payload, at) for shape, stored, at in self.places]
        for i, count in self._smaller if self.shard_bounds else ():
            values[i] = values[i][count]
        for i, dtype in self._shown_otherwise:
            values[i] = values[i].astype(dtype)
            values[i].flags.writeable = False
        return values

    @functools.cached_property
    def places(self) -> list[tuple[tuple[int, ...], np.dtype, int]]:
        """Shape, type and first byte of each argument in a payload."""
        offsets = self.offsets[len(self.operands) - len(self._arrays) :]
        return [(operand.shape, operand.stored, at) for operand, at in zip(self._arrays, offsets, strict=True)]

    @functools.cached_property
    def _shown_otherwise(self) -> list[tuple[int, np.dtype]]:
        """The arguments that are not shown in the type in which they travel."""
        return [(i, operand.dtype) for i, operand in enumerate(self._arrays) if operand.stored != operand.dtype]

    @functools.cached_property
    def payload_size(self) -> int:
        """Bytes of a record's payload."""
        return self.offsets[-1] + _padded(self.operands[-1].size) if self.operands else 0


def _taken(result: Operand) -> tuple[Any, ...]:
    """Type and shape of a result, and what may be given for it, see `Site.direct_call`."""
    kind, char = result.dtype.kind, result.dtype.char
    layout = f"={char}" if kind == "f" else char  # without "=" no number is too large for a float
    numbers = () if result.shape else _NUMBERS.get(kind, ())
    arrays = dict.fromkeys((np.ndarray, _jax.Array, result.stored.type))
    return result.stored, result.shape, {**arrays, **{number: struct.Struct(layout).pack for number in numbers}}


_NUMBERS = {"f": (float, int), "i": (int,), "u": (int,), "b": (bool,)}
"""By kind of a result: the numbers of Python's that it may be."""


SIZE = np.dtype(np.int32)
"""In which type a record has sizes that were not known before."""


def _padded(size: int) -> int:
    """Bytes that so many take in a record."""
    return -(-size // 8) * 8


def size_operands(site: Site) -> list[Any]:
    """What comes ahead of the operands in a record: the sizes that are known only when the program runs."""
    return [jnp.stack([jnp.asarray(size).astype(SIZE) for size in site.symbols])] if site.symbols else []


_jax.hold_weakly_in_caches(Site)  # it may have a function of the user's


def site_from(text: str) -> Site:
    """The site that describes itself so."""
    site = Site(**read_site(text))
    site.__dict__["description"] = text  # a class of the user's reads back as a list, and would hash otherwise
    return site
