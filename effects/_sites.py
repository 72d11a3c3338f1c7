"""A site: one call of an effect in the user's source, described so that anyone can replay its records.

Records carry the site's hash and the bytes of the operands. The description travels with the compiled program, so a
program that was compiled elsewhere is understood too: the hash is of the content, never an address or a counter.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401 - NumPy knows the narrow types by name once it is loaded
import numpy as np

from effects import _errors as errors
from effects import _jax_compat as compat
from effects._content import Content, HostCall, content_from
from effects._types import Effect


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
        return np.broadcast_to(np.zeros((), self.dtype), self.shape)

    @functools.cached_property
    def size(self) -> int:
        """Bytes in the record, without padding."""
        return self.stored.itemsize * int(np.prod(self.shape, dtype=np.int64))

    def read(self, payload: Any, offset: int) -> np.ndarray:
        """The value that lies at this byte of a payload; read-only."""
        value = np.ndarray(self.shape, self.stored, payload, offset)
        if self.stored is not self.dtype and self.stored != self.dtype:
            value = value.astype(self.dtype)
            value.flags.writeable = False
        return value

    def of_lane(self, value: np.ndarray, lane: tuple[int, ...]) -> np.ndarray:
        """What one lane sees of the operand."""
        return value[(*(i for i, differs in zip(lane, self.lanes, strict=True) if differs), ...)]


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

    @functools.cached_property
    def description(self) -> str:
        """All of it as JSON."""
        return json.dumps(
            {
                "effect": {**vars(self.effect), "allowed_in": sorted(self.effect.allowed_in)},
                "content": self.content.describe(),
                "leaves": [_describe_leaf(leaf) for leaf in self.leaves],
                "tree": _describe_tree(self.tree),
                "structure": str(self.tree),  # with all that tells trees apart: types of keys and nodes, their own data
                "where": dataclasses.astuple(self.where),
                "lanes": self.lanes,
                "mask": None if self.mask is None else _describe_leaf(self.mask),
            }
        )

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
        leaves = tuple(leaf for leaf in self.leaves if isinstance(leaf, Operand))
        return leaves if self.mask is None else (self.mask, *leaves)

    @functools.cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each operand begins in a record's payload; each is padded to eight bytes."""
        offsets, end = [], 0
        for operand in self.operands:
            offsets.append(end)
            end += -(-operand.size // 8) * 8
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

    def without_mask(self) -> Site:
        return dataclasses.replace(self, mask=None)

    def with_mask(self) -> Site:
        """The site with a mask ahead of its operands that is the same in all the lanes that it has by now."""
        boolean = np.dtype(bool)
        return dataclasses.replace(self, mask=Operand((), boolean, boolean, (False,) * len(self.lanes)))

    def active(self, payload: Any) -> np.ndarray | None:
        """Which lanes have the effect, as a record's payload says; None: all."""
        if self.mask is None:
            return None
        mask = self.mask.read(payload, 0)
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
        return [operand.of_lane(value, lane) for (operand, _), value in zip(self._places, values, strict=True)]

    def all_lanes(self, values: Sequence[np.ndarray], vmap_method: str) -> list[np.ndarray]:
        """What a function that is called once for all lanes sees of the values that were read from a payload."""
        if vmap_method == "legacy_vectorized":
            return list(values)
        shown = []
        for (operand, _), value in zip(self._places, values, strict=True):
            inner = value.shape[sum(operand.lanes) :]
            lanes = tuple(size if differs else 1 for size, differs in zip(self.lanes, operand.lanes, strict=True))
            value = value.reshape(*lanes, *inner)
            shown.append(np.broadcast_to(value, self.lanes + inner) if vmap_method == "broadcast_all" else value)
        return shown

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
        leaves = tuple(range(len(self.leaves)))
        return self.tree is None or jax.tree.unflatten(self.tree, leaves) == (leaves, {})

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
        return [operand.read(payload, at) for operand, at in self._places]

    @functools.cached_property
    def _places(self) -> list[tuple[Operand, int]]:
        places = list(zip(self.operands, self.offsets, strict=True))
        return places if self.mask is None else places[1:]

    @functools.cached_property
    def payload_size(self) -> int:
        """Bytes of a record's payload."""
        return self.offsets[-1] + -(-self.operands[-1].size // 8) * 8 if self.operands else 0


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
        value, operand = _take_array(leaf, path, call, where)
        values.append(value)
        leaves.append(operand)
    return values, tuple(leaves), tree


def _take_array(x: Any, path: Any, call: str, where: Where) -> tuple[Any, Operand]:
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
        return {"operand": [list(leaf.shape), dtype_name(leaf.dtype), dtype_name(leaf.stored), list(leaf.lanes)]}
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


def _read_leaf(description: dict[str, Any]) -> Operand | Static:
    kind, value = next(iter(description.items()))
    if kind == "operand":
        shape, dtype, stored, lanes = value
        return Operand(tuple(shape), np.dtype(dtype), np.dtype(stored), tuple(lanes))
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
    if type_ is dict:
        return {"dict": [[str(key) for key in keys], children]}
    if type_ is list:
        return {"list": children}
    if type_ is tuple or issubclass(type_, tuple):
        return {"tuple": children}
    return "none" if type_ is type(None) else {"other": [type_.__qualname__, children]}


def _read_tree(description: Any, leaf: object) -> Any:
    if description in ("leaf", "none"):
        return leaf if description == "leaf" else None
    [(kind, value)] = description.items()
    if kind == "dict":
        return {key: _read_tree(child, leaf) for key, child in zip(*value, strict=True)}
    children = [_read_tree(child, leaf) for child in (value[1] if kind == "other" else value)]
    return tuple(children) if kind == "tuple" else children


def site_from(text: str) -> Site:
    """The site that describes itself so."""
    content = json.loads(text)
    site = Site(
        effect=Effect(**content["effect"]),
        content=content_from(content["content"]),
        leaves=tuple(map(_read_leaf, content["leaves"])),
        tree=jax.tree.structure(_read_tree(content["tree"], 0)),
        where=Where(*content["where"]),
        lanes=tuple(content["lanes"]),
        mask=_read_leaf(content["mask"]) if content["mask"] is not None else None,  # type: ignore[arg-type]
    )
    site.__dict__["description"] = text  # a class of the user's reads back as a list, and would hash otherwise
    return site
