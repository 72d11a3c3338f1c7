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
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401 - NumPy knows the narrow types by name once it is loaded
import numpy as np

from effects import _errors as errors
from effects import _jax as compat
from effects._content import Content, HostCall, Message, content_from
from effects._types import Effect, describe_effect


@dataclasses.dataclass(frozen=True)
class Where:
    """A place in the user's source."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def where_called(depth: int = 1) -> Where:
    """The place from which the caller of the caller was called."""
    frame: FrameType = sys._getframe(depth + 1)
    return Where(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)


@dataclasses.dataclass(frozen=True)
class Operand:
    """An array that travels in the record."""

    shape: tuple[int, ...]
    dtype: np.dtype  # as shown
    stored: np.dtype  # as it travels: narrow integers take a byte
    lanes: tuple[bool, ...] = ()  # for each `vmap` around the site, whether this operand differs between its lanes

    def zeros(self) -> np.ndarray:
        """An array of this type that takes no memory, to try a format with."""
        zero = np.zeros((), self.dtype)
        return np.broadcast_to(zero, [n if isinstance(n, int) else _MANY for n in self.shape]) if self.shape else zero

    @functools.cached_property
    def size(self) -> int:
        """Bytes in the record, without padding."""
        return self.stored.itemsize * int(np.prod(self.shape, dtype=np.int64))

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
    unknown: int = 0  # how many sizes are known only when the program runs; they come first in its records
    per_shard: bool = False  # whether each shard of a sharded array is an effect of its own
    bounds: tuple[tuple[slice, ...], ...] = ()  # of a record's shards: where each operand lies in the whole
    cut: int = 0  # of these: the first that is not the whole

    @functools.cached_property
    def description(self) -> str:
        """All of it as JSON, without what goes without saying: a program carries it at every call."""
        description = {
            "effect": describe_effect(self.effect),
            "content": self.content.describe(),
            "leaves": list(map(_describe_leaf, self.leaves)),
            "where": [self.where.file, self.where.line, self.where.function],
        }
        if not self._is_flat:  # with all that tells trees apart: types of keys and nodes, their own data
            description |= {"tree": _describe_tree(self.tree), "structure": str(self.tree)}
        if self.lanes:
            description["lanes"] = self.lanes
        if self.mask is not None:
            description["mask"] = self.mask.describe()
        if self.processes:
            description["processes"] = self.processes
        if self.unknown:
            description["unknown"] = self.unknown
        if self.per_shard:
            description["per_shard"] = True
        return _to_json(description)

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
        if not isinstance(self.content, HostCall) or self.content.results is None:
            return None
        lanes = tuple(True for _ in self.lanes)
        return tuple(
            dataclasses.replace(result, shape=(*self.lanes, *result.shape), lanes=lanes)
            for result in self.content.results
        )

    @functools.cached_property
    def operands(self) -> tuple[Operand, ...]:
        """What travels in the record: the mask, if there is one, and the leaves that are arrays."""
        return self._arrays if self.mask is None else (self.mask, *self._arrays)

    @functools.cached_property
    def _arrays(self) -> tuple[Operand, ...]:
        """The leaves that are arrays."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, Operand))

    @functools.cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each operand begins in a record's payload; each is padded to eight bytes."""
        offsets, end = [], _padded(self.unknown * SIZE.itemsize)
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

        mask = None if self.mask is None else with_lane(self.mask)
        leaves = tuple(with_lane(leaf) if isinstance(leaf, Operand) else leaf for leaf in self.leaves)
        return dataclasses.replace(self, leaves=leaves, lanes=(size, *self.lanes), mask=mask)

    def without_idle_mask(self, operands: Sequence[Any]) -> tuple[Sequence[Any], Site]:
        """Operands and site without a mask that has no lanes to choose from: it always holds."""
        if self.mask is None or self.lanes:
            return operands, self
        return operands[1:], dataclasses.replace(self, mask=None)

    def with_mask(self) -> Site:
        """The site with a mask ahead of its operands that is the same in all the lanes that it has by now."""
        boolean = np.dtype(bool)
        return dataclasses.replace(self, mask=Operand((), boolean, boolean, (False,) * len(self.lanes)))

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
        results = self.content.results or () if isinstance(self.content, HostCall) else ()
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
        places = {size: place for place, size in enumerate(self.symbols)}
        return self._resized(lambda size: size if isinstance(size, int) else -1 - places[size], len(places))

    @functools.cached_property
    def in_shards(self) -> Site:
        """The site as its records know it where arrays are sharded automatically. In a record come first the sizes of
        the shards, where they begin, where they end, since the last along an axis may be smaller, and the whole
        sizes."""
        numbers = itertools.count(-1, -1)

        def of(operand: Operand) -> Operand:
            return dataclasses.replace(operand, shape=tuple(next(numbers) for _ in operand.shape))

        mask = None if self.mask is None else of(self.mask)
        leaves = tuple(of(leaf) if isinstance(leaf, Operand) else leaf for leaf in self.leaves)
        return dataclasses.replace(self, leaves=leaves, mask=mask, unknown=4 * (-1 - next(numbers)))

    def _with_bounds(self, sizes: Sequence[int]) -> Site:
        count = self.unknown // 4
        axes = zip(sizes[count : 2 * count], sizes[2 * count : 3 * count], sizes[3 * count :], strict=True)
        each = [list(itertools.islice(axes, len(operand.shape))) for operand in self.operands]
        bounds = tuple(tuple(slice(start, stop) for start, stop, _ in one) for one in each)
        cut = (i for i, one in enumerate(each) if any(stop - start != whole for start, stop, whole in one))
        return dataclasses.replace(self, bounds=bounds, cut=next(cut, len(self.operands) - len(self._arrays)))

    @functools.cached_property
    def index(self) -> tuple[slice, ...] | None:
        """Of a record's shard: where the first array that is cut lies in the whole, or the first if none is."""
        if not self.per_shard or not self._arrays:
            return None
        operand = self.operands[self.cut] if self.bounds else self._arrays[0]
        bounds = self.bounds[self.cut] if self.bounds else tuple(slice(0, n) for n in operand.shape)
        return bounds[sum(operand.lanes) :]

    @functools.cached_property
    def _smaller(self) -> list[tuple[int, tuple[slice, ...]]]:
        """The arguments that are smaller in this record than the shards of others, and how much of them counts."""
        masks = len(self.operands) - len(self._arrays)
        counts = [tuple(slice(bound.stop - bound.start) for bound in bounds) for bounds in self.bounds[masks:]]
        return [
            (i, count)
            for i, (operand, count) in enumerate(zip(self._arrays, counts, strict=False))
            if any(part.stop < size for part, size in zip(count, operand.shape, strict=True))
        ]

    def of_record(self, payload: Any) -> Site:
        """The site with the sizes that a record has, and with what it says itself."""
        if not self.unknown:
            return self
        site = self._sized(*np.ndarray((self.unknown,), SIZE, payload).tolist())
        if not isinstance(self.content, Message):
            return site
        content, args, kwargs = self.content.read(*site.read(payload))
        leaves, tree = jax.tree.flatten((args, kwargs))
        return dataclasses.replace(site, content=content, leaves=tuple(map(Static, leaves)), tree=tree, unknown=0)

    @functools.cached_property
    def _sized(self) -> Callable[..., Site]:
        @functools.lru_cache(maxsize=64)
        def sized(*sizes: int) -> Site:
            site = self._resized(lambda size: size if size >= 0 else sizes[-1 - size], self.unknown)
            return site._with_bounds(sizes) if self.per_shard else site

        return sized

    def _resized(self, resize: Callable[[Any], int], unknown: int) -> Site:
        def of(operand: Operand) -> Operand:
            return dataclasses.replace(operand, shape=tuple(map(resize, operand.shape)))

        content = self.content
        if isinstance(content, HostCall) and content.results:
            content = dataclasses.replace(content, results=tuple(map(of, content.results)))
        leaves = tuple(of(leaf) if isinstance(leaf, Operand) else leaf for leaf in self.leaves)
        lanes = tuple(map(resize, self.lanes))
        mask = None if self.mask is None else of(self.mask)
        return dataclasses.replace(self, content=content, leaves=leaves, lanes=lanes, mask=mask, unknown=unknown)

    @functools.cached_property
    def leaf_names(self) -> tuple[str, ...]:
        """What each leaf is called: the name or position of its argument, and the way into it."""
        paths, _ = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(self.tree, range(len(self.leaves))))
        names = [jax.tree_util.keystr(path[1:], simple=True, separator=".") for path, _ in paths]
        if len(set(names)) < len(names):  # a key of the user's has a dot in it
            names = [jax.tree_util.keystr(path[1:]) for path, _ in paths]
        return tuple(names)

    @functools.cached_property
    def _is_flat(self) -> bool:
        """Whether the leaves are the positional arguments, one by one."""
        return self.tree is None or self.tree == flat_arguments(len(self.leaves))

    @functools.cached_property
    def _is_plain(self) -> bool:
        """Whether the operands are the positional arguments, one by one."""
        return self._is_flat and all(isinstance(leaf, Operand) for leaf in self.leaves)

    def arguments(self, operands: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """`(args, kwargs)` with these values in the operands' places."""
        if self._is_plain:
            return tuple(operands), {}
        values = iter(operands)
        leaves = [leaf.value if isinstance(leaf, Static) else next(values) for leaf in self.leaves]
        return (tuple(leaves), {}) if self._is_flat else jax.tree.unflatten(self.tree, leaves)

    def read(self, payload: Any) -> list[np.ndarray]:
        """The arguments' values from a record's payload, without the mask; read-only."""
        values = [np.ndarray(shape, stored, payload, at) for shape, stored, at in self._places]
        for i, count in self._smaller if self.bounds else ():
            values[i] = values[i][count]
        for i, dtype in self._shown_otherwise:
            values[i] = values[i].astype(dtype)
            values[i].flags.writeable = False
        return values

    @functools.cached_property
    def _places(self) -> list[tuple[tuple[int, ...], np.dtype, int]]:
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


@functools.cache
def flat_arguments(count: int) -> Any:
    """The structure of so many positional arguments, each of them a leaf."""
    return jax.tree.structure(((0,) * count, {}))


_to_json = json.JSONEncoder(separators=(",", ":"), default=str).encode

SIZE = np.dtype(np.int32)
"""In which type a record has sizes that were not known before."""

_MANY = 1 << 10
"""What stands for a size that is not known yet when a format is tried."""


def _padded(size: int) -> int:
    """Bytes that so many take in a record."""
    return -(-size // 8) * 8


def size_operands(site: Site) -> list[Any]:
    """What comes ahead of the operands in a record: the sizes that are known only when the program runs."""
    return [jnp.stack([jnp.asarray(size).astype(SIZE) for size in site.symbols])] if site.symbols else []


compat.hold_weakly_in_caches(Site)  # it may have a function of the user's


def take_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], call: str, where: Where
) -> tuple[list[Any], tuple[Operand | Static, ...], Any]:
    """Sorts arguments into what travels in records and what is known now: (operand values, leaves, treedef)."""
    paths, tree = jax.tree_util.tree_flatten_with_path((args, kwargs))
    values: list[Any] = []
    leaves: list[Operand | Static] = []
    for path, leaf in paths:
        if isinstance(leaf, (str, bytes, int, float, complex, np.generic)):
            leaves.append(Static(leaf))
            continue
        if compat.is_reference(leaf):
            leaf = leaf[...]  # what it holds now
        if not isinstance(leaf, (jax.Array, np.ndarray)):
            raise _bad_argument(leaf, path, call, where, "an array, or the text you want to see, say `str(x)`")
        value, operand = take_array(leaf, path, call, where)
        values.append(value)
        leaves.append(operand)
    return values, tuple(leaves), tree


def take_array(x: Any, path: Any, call: str, where: Where) -> tuple[Any, Operand]:
    """An array as it travels, and its description. What has no numbers is refused."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = compat.physical_key_data(x)
    if x.dtype == jax.dtypes.float0:  # the tangent of an integer: it has no value
        x = np.zeros(x.shape, bool)
    elif isinstance(x, np.ndarray):
        if not (jnp.issubdtype(x.dtype, np.number) or x.dtype == bool):
            raise _bad_argument(x, path, call, where, "an array of numbers or booleans")
        x = jnp.asarray(x)
    dtype = np.dtype(x.dtype)
    stored = stored_dtype(dtype)
    return (x if stored == dtype else x.astype(stored)), Operand(tuple(x.shape), dtype, stored)


@functools.cache
def dtype_name(dtype: np.dtype) -> str:
    """The type's name, which NumPy makes anew at every asking."""
    return dtype.name


# Less than a byte: devices pack them in ways of their own.
_STORED = {
    **dict.fromkeys(("int1", "int2", "int4"), np.dtype(np.int8)),
    **dict.fromkeys(("uint1", "uint2", "uint4"), np.dtype(np.uint8)),
    "float4_e2m1fn": np.dtype(np.float32),
}


def stored_dtype(dtype: np.dtype) -> np.dtype:
    """The type in which values of this one travel between devices and host."""
    return _STORED.get(dtype_name(dtype), dtype)


def _bad_argument(leaf: Any, path: Any, call: str, where: Where, remedy: str) -> TypeError:
    (which, key), rest = (path[0].idx, path[1]), path[2:]
    name = f"argument {key.idx + 1}" if which == 0 else f"argument {key.key!r}"
    if rest:
        name += f", at {jax.tree_util.keystr(rest)}"
    try:
        value = repr(leaf)
    except Exception:
        value = "a value"
    if len(value) > 80:
        value = value[:77] + "..."
    return TypeError(
        errors.MSG_ARGUMENT.format(
            call=call, where=where, value=value, type=f"`{type(leaf).__name__}`", path=name, remedy=remedy
        )
    )


# Descriptions


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
    return {"text": str(value), "of": [type(value).__qualname__, repr(value)]}  # a subclass, such as an enumeration


_OPERAND = re.compile(r"(\w+)\[([-,\d]*)\](?:/(\w+))?(?:@([01]+))?")


def _read_operand(description: str) -> Operand:
    match = _OPERAND.fullmatch(description)
    assert match is not None, description
    dtype, shape, stored, lanes = match.groups()
    return Operand(
        tuple(map(int, shape.split(","))) if shape else (),
        np.dtype(dtype),
        np.dtype(stored or dtype),
        tuple(lane == "1" for lane in lanes or ""),
    )


def _read_leaf(description: str | dict[str, Any]) -> Operand | Static:
    if isinstance(description, str):
        return _read_operand(description)
    kind, value = next(iter(description.items()))
    if kind == "scalar":
        return Static(np.frombuffer(bytes.fromhex(value[1]), np.dtype(value[0]))[0])
    if kind == "complex":
        return Static(complex(*value))
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
    return "none" if type_ is type(None) else {"other": [type_.__qualname__, children]}


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


def site_from(text: str) -> Site:
    """The site that describes itself so."""
    description = json.loads(text)
    leaves = tuple(map(_read_leaf, description["leaves"]))
    tree = jax.tree.structure(_read_tree(description["tree"], 0)) if "tree" in description else None
    site = Site(
        effect=Effect(**description["effect"]),
        content=content_from(description["content"], _read_operand),
        leaves=leaves,
        tree=tree or flat_arguments(len(leaves)),
        where=Where(*description["where"]),
        lanes=tuple(description.get("lanes", ())),
        mask=_read_operand(description["mask"]) if "mask" in description else None,
        processes=tuple(description.get("processes", ())),
        unknown=description.get("unknown", 0),
        per_shard=description.get("per_shard", False),
    )
    site.__dict__["description"] = text  # a class of the user's reads back as a list, and would hash otherwise
    return site
