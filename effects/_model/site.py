"""A site: one call of an effect in the user's source, described so that anyone can replay its records.

Records carry the site's hash and the bytes of the operands. The description travels with the compiled program, so a
program that was compiled elsewhere is understood too: the hash is of the content, never an address or a counter.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from effects import _jax
from effects._model.content import Content, content_from
from effects._model.effect import Effect, describe_effect
from effects._model.filter import ALWAYS, Filter
from effects._model.operand import (
    Operand,
    Static,
    describe_leaf,
    describe_tree,
    flat_arguments,
    read_leaf,
    read_operand,
    read_tree,
)
from effects._model.shards import Shards
from effects._model.where import Where

# From sites to JSON and back: a site travels with compiled and exported programs as its description.


def describe_site(site: Site) -> str:
    """A site as JSON, without fields that have their defaults, since a program carries the text at every call."""
    description = {
        "effect": describe_effect(site.effect),
        "content": site.content.describe(),
        "leaves": list(map(describe_leaf, site.leaves)),
        "where": site.where,
    }
    if site.where.callers:
        description["callers"] = site.where.callers
    if not site.is_flat:  # with the types of keys and nodes and the node data, so that no two trees have one text
        description |= {"tree": describe_tree(site.tree), "structure": str(site.tree)}
    if site.lanes:
        description["lanes"] = site.lanes
    if site.mask is not None:
        description["mask"] = site.mask.describe()
    description |= {name: operand.describe() for name, operand in site.hidden}
    if site.processes:
        description["processes"] = site.processes
    if site.num_dynamic_sizes:
        description["unknown"] = site.num_dynamic_sizes
    if site.per_shard:
        description["per_shard"] = True
    if site.filter != ALWAYS:
        description["filter"] = site.filter.describe()
    return _to_json(description)


_OWN_KEYS = {
    *("effect", "content", "leaves", "where", "callers", "tree", "structure", "lanes", "mask", "processes", "unknown"),
    *("per_shard", "filter"),
}
"""The keys of a description that name no hidden operand."""

_to_json = json.JSONEncoder(separators=(",", ":"), default=str).encode


ReadContent = Callable[[Mapping[str, Any], Callable[[Any], Operand]], Content]


def read_site(description: Mapping[str, Any], content_of: ReadContent = content_from) -> dict[str, Any]:
    """The fields of the site that has this description."""
    leaves = tuple(map(read_leaf, description["leaves"]))
    tree = jax.tree.structure(read_tree(description["tree"], 0)) if "tree" in description else None
    return {
        "effect": Effect(**description["effect"]),
        "content": content_of(description["content"], read_operand),
        "leaves": leaves,
        "tree": tree or flat_arguments(len(leaves)),
        "where": Where(*description["where"]).called_from(description.get("callers", ())),
        "lanes": tuple(description.get("lanes", ())),
        "mask": read_operand(description["mask"]) if "mask" in description else None,
        "hidden": tuple((name, read_operand(of)) for name, of in description.items() if name not in _OWN_KEYS),
        "processes": tuple(description.get("processes", ())),
        "num_dynamic_sizes": description.get("unknown", 0),
        "per_shard": description.get("per_shard", False),
        "filter": Filter(**description.get("filter", {})),
    }


class Origin(Protocol):
    """The foreign equation that an effect was written as, such as a callback of JAX's."""

    @property
    def primitive(self) -> Any: ...

    @property
    def params(self) -> Mapping[str, Any]: ...

    @property
    def ordered(self) -> bool:
        """The `ordered` that the user wrote."""
        ...

    def restore(self, site: Site, operands: Sequence[Any]) -> list[Any]:
        """Binds the original primitive again, to the operands of a site."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
    """One call of an effect in the user's source. Sites are equal if their descriptions are."""

    effect: Effect
    content: Content
    leaves: tuple[Operand | Static, ...]
    tree: Any  # the treedef of (args, kwargs)
    where: Where
    lanes: tuple[int, ...] = ()  # sizes of the `vmap`s around the call, the outermost first
    mask: Operand | None = None  # the lanes that have the effect, an operand before the leaves; None: all lanes
    processes: tuple[int, ...] = ()  # the processes that have its records, if these are replicated over devices
    num_dynamic_sizes: int = 0  # the number of symbolic sizes, which come first in its records
    per_shard: bool = False  # True if each shard of a sharded array is an effect of its own
    shards: Shards | None = None  # in the site of one record: its shards
    filter: Filter = ALWAYS  # the filter of its line
    origin: Origin | None = None  # the callback of JAX's own from which it was taken over
    hidden: tuple[tuple[str, Operand], ...] = ()  # operands of extensions, by name, after the mask

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
        """The types of the results that a program waits for, all lanes together; None if it waits for none."""
        if (results := self.content.results) is None:
            return None
        lanes = tuple(True for _ in self.lanes)
        return tuple(dataclasses.replace(result, shape=(*self.lanes, *result.shape), lanes=lanes) for result in results)

    @functools.cached_property
    def operands(self) -> tuple[Operand, ...]:
        """The arrays of a record: the mask if there is one, the hidden operands, and the leaves that are arrays."""
        masks = () if self.mask is None else (self.mask,)
        return (*masks, *(operand for _, operand in self.hidden), *self.arrays)

    @functools.cached_property
    def arrays(self) -> tuple[Operand, ...]:
        """The leaves that are arrays."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, Operand))

    @functools.cached_property
    def offsets(self) -> tuple[int, ...]:
        """The first byte of each operand in a record's payload; each is padded to eight bytes."""
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
        """The site with these changes, and with `of` applied to each operand."""
        mask = None if self.mask is None else of(self.mask)
        hidden = tuple((name, of(operand)) for name, operand in self.hidden)
        leaves = tuple(of(leaf) if isinstance(leaf, Operand) else leaf for leaf in self.leaves)
        return dataclasses.replace(self, mask=mask, hidden=hidden, leaves=leaves, **changes)

    def without_idle_mask(self, operands: Sequence[Any]) -> tuple[Sequence[Any], Site]:
        """Operands and site; without the mask if the site has no lanes, for a caller that looks at the mask itself."""
        if self.mask is None or self.lanes:
            return operands, self
        return operands[1:], dataclasses.replace(self, mask=None)

    def with_mask(self) -> Site:
        """The site with a mask ahead of its operands. The mask is the same in all present lanes."""
        boolean = np.dtype(bool)
        return dataclasses.replace(self, mask=Operand((), boolean, boolean, (False,) * len(self.lanes)))

    def with_hidden(self, operands: Sequence[Any], name: str, value: Any) -> tuple[Sequence[Any], Site]:
        """Operands and site with one more hidden operand, behind the other hidden ones and the same in all lanes."""
        dtype, at = np.dtype(value.dtype), len(self.operands) - len(self.arrays)
        operand = Operand(value.shape, dtype, dtype, (False,) * len(self.lanes))
        site = dataclasses.replace(self, hidden=(*self.hidden, (name, operand)))
        return [*operands[:at], value, *operands[at:]], site

    def find_hidden(self, name: str) -> tuple[Operand, int] | None:
        """A hidden operand, and its first byte in a payload; None if the site has none of this name."""
        masks = 0 if self.mask is None else 1
        for at, (hidden_name, operand) in enumerate(self.hidden):
            if hidden_name == name:
                return operand, self.offsets[masks + at]
        return None

    def hidden_numbers(self, name: str, payload: Any) -> tuple[int, ...] | None:
        """The numbers of a hidden operand in a record's payload; None if the site has none of this name."""
        if (found := self.find_hidden(name)) is None:
            return None
        operand, offset = found
        return tuple(np.ndarray(operand.shape, operand.stored, payload, offset).tolist())

    def active(self, payload: Any) -> np.ndarray | None:
        """The mask of the lanes that have the effect, from a record's payload; None: all lanes."""
        if self.mask is None:
            return None
        mask = np.ndarray(self.mask.shape, self.mask.stored, payload, self.offsets[0])
        shape = tuple(size if differs else 1 for size, differs in zip(self.lanes, self.mask.lanes, strict=True))
        active = np.broadcast_to(mask.reshape(shape), self.lanes)
        return None if active.all() else active

    def lanes_of(self, payload: Any) -> Iterator[tuple[int, ...]]:
        """The lanes that have the effect, in order; a single `()` if the site has no lanes."""
        if (active := self.active(payload)) is None:
            return np.ndindex(*self.lanes)
        return map(tuple, np.argwhere(active).tolist())

    def of_lane(self, values: Sequence[np.ndarray], lane: tuple[int, ...]) -> list[np.ndarray]:
        """The part for one lane of the values that were read from a payload."""
        return [operand.of_lane(value, lane) for operand, value in zip(self.arrays, values, strict=True)]

    def all_lanes(self, values: Sequence[np.ndarray], vmap_method: str) -> list[np.ndarray]:
        """The arguments of a function that is called once for all lanes, from the values read from a payload."""
        if vmap_method == "legacy_vectorized":
            return list(values)
        shown = []
        for operand, value in zip(self.arrays, values, strict=True):
            inner = value.shape[sum(operand.lanes) :]
            lanes = tuple(size if differs else 1 for size, differs in zip(self.lanes, operand.lanes, strict=True))
            value = value.reshape(*lanes, *inner)
            shown.append(np.broadcast_to(value, self.lanes + inner) if vmap_method == "broadcast_all" else value)
        return shown

    @functools.cached_property
    def symbols(self) -> tuple[Any, ...]:
        """The sizes that are not numbers, while a program is traced with symbolic shapes."""
        sizes = list(self.lanes)
        for operand in (self.mask, *self.leaves, *(self.content.results or ())):
            if isinstance(operand, Operand):
                sizes += operand.shape
        return tuple(dict.fromkeys([size for size in sizes if not isinstance(size, int)]))

    @functools.cached_property
    def portable(self) -> Site:
        """The site as its records know it: each symbol is replaced by a negative number, -1 - i for the i-th of the
        sizes that come first in a record."""
        if not self.symbols:
            return self
        positions = {size: position for position, size in enumerate(self.symbols)}
        return self._resized(lambda size: size if isinstance(size, int) else -1 - positions[size], len(positions))

    @functools.cached_property
    def in_shards(self) -> Site:
        """The site as its records know it where arrays are sharded automatically. A record begins with the sizes of the
        shards, their starts, their ends (the last shard along an axis may be smaller), and the sizes of the whole."""
        numbers = itertools.count(-1, -1)

        def of(operand: Operand) -> Operand:
            return dataclasses.replace(operand, shape=tuple(next(numbers) for _ in operand.shape))

        sizes = sum(len(operand.shape) for operand in self.operands)
        return self._with_operands(of, num_dynamic_sizes=4 * sizes)

    @functools.cached_property
    def index(self) -> tuple[slice, ...] | None:
        """The slice that a record's shard is of the first sharded array; if none is sharded, all of the first array."""
        if not self.per_shard or not self.arrays:
            return None
        if self.shards is not None:
            return self.shards.index
        first = self.arrays[0]
        return tuple(slice(0, n) for n in first.shape)[sum(first.lanes) :]

    def resolve_sizes(self, payload: Any) -> Site:
        """The site of one record: with the sizes in its payload, and with its own content if it carries one."""
        if not self.num_dynamic_sizes:
            return self
        sized = self._sized(*np.ndarray((self.num_dynamic_sizes,), SIZE, payload).tolist())
        return self.content.resolve(sized, payload)

    def with_text(self, content: Content, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Site:
        """The site of one record that carries its own content and arguments."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        return dataclasses.replace(
            self, content=content, leaves=tuple(map(Static, leaves)), tree=tree, num_dynamic_sizes=0
        )

    @functools.cached_property
    def _sized(self) -> Callable[..., Site]:
        @functools.lru_cache(maxsize=64)
        def sized(*sizes: int) -> Site:
            site = self._resized(lambda size: size if size >= 0 else sizes[-1 - size], self.num_dynamic_sizes)
            if not self.per_shard:
                return site
            return dataclasses.replace(site, shards=Shards.from_sizes(site.operands, len(site.arrays), sizes))

        return sized

    def _resized(self, resize: Callable[[Any], int], num_dynamic_sizes: int) -> Site:
        def of(operand: Operand) -> Operand:
            return dataclasses.replace(operand, shape=tuple(map(resize, operand.shape)))

        lanes = tuple(map(resize, self.lanes))
        return self._with_operands(
            of, content=self.content.resized(of), lanes=lanes, num_dynamic_sizes=num_dynamic_sizes
        )

    @functools.cached_property
    def leaf_names(self) -> tuple[str, ...]:
        """The name of each leaf: the name or position of its argument, and the path into it."""
        values = [leaf.zeros() if isinstance(leaf, Operand) else leaf.value for leaf in self.leaves]
        paths, _ = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(self.tree, values))
        names = [jax.tree_util.keystr(path[1:], simple=True, separator=".") for path, _ in paths]
        if len(set(names)) < len(names):  # a key of the user's has a dot in it
            names = [jax.tree_util.keystr(path[1:]) for path, _ in paths]
        return tuple(names)

    @functools.cached_property
    def is_flat(self) -> bool:
        """True if the leaves are the positional arguments, one by one."""
        return self.tree is None or self.tree == flat_arguments(len(self.leaves))

    @functools.cached_property
    def is_plain(self) -> bool:
        """True if the operands are the positional arguments, one by one."""
        return self.is_flat and all(isinstance(leaf, Operand) for leaf in self.leaves)

    @functools.cached_property
    def direct_call(self) -> tuple[Any, ...] | None:
        """The call that native code makes with a record's values, if it makes any: see `HostCall.direct_call`."""
        return self.content.direct_call(self)

    def arguments(self, operands: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """`(args, kwargs)` with these values in place of the operands."""
        if self.is_plain:
            return tuple(operands), {}
        values = iter(operands)
        leaves = [leaf.value if isinstance(leaf, Static) else next(values) for leaf in self.leaves]
        return (tuple(leaves), {}) if self.is_flat else jax.tree.unflatten(self.tree, leaves)

    def read(self, payload: Any) -> list[np.ndarray]:
        """The arguments' values from a record's payload, without the mask; read-only."""
        values = [np.ndarray(shape, stored, payload, at) for shape, stored, at in self.places]
        for i, count in () if self.shards is None else self.shards.smaller:
            values[i] = values[i][count]
        for i, dtype in self.shown_otherwise:
            values[i] = values[i].astype(dtype)
            values[i].flags.writeable = False
        return values

    @functools.cached_property
    def places(self) -> list[tuple[tuple[int, ...], np.dtype, int]]:
        """Shape, type and first byte of each argument in a payload."""
        offsets = self.offsets[len(self.operands) - len(self.arrays) :]
        return [(operand.shape, operand.stored, at) for operand, at in zip(self.arrays, offsets, strict=True)]

    @functools.cached_property
    def shown_otherwise(self) -> list[tuple[int, np.dtype]]:
        """The arguments whose type differs from the type in which they travel."""
        return [(i, operand.dtype) for i, operand in enumerate(self.arrays) if operand.stored != operand.dtype]

    @functools.cached_property
    def payload_size(self) -> int:
        """Bytes of a record's payload."""
        return self.offsets[-1] + _padded(self.operands[-1].size) if self.operands else 0


SIZE = np.dtype(np.int32)
"""The type of the sizes in a record."""


def _padded(size: int) -> int:
    """The bytes that a value of this size takes in a record."""
    return -(-size // 8) * 8


def size_operands(site: Site) -> list[Any]:
    """The values ahead of the operands in a record: the sizes that are known only when the program runs."""
    return [jnp.stack([jnp.asarray(size).astype(SIZE) for size in site.symbols])] if site.symbols else []


_jax.hold_weakly_in_caches(Site)  # a site may hold a user function


def site_from(text: str, content_of: ReadContent = content_from) -> Site:
    """The site that has this description. `content_of` reads the content's description."""
    site = Site(**read_site(json.loads(text), content_of))
    site.__dict__["description"] = text  # a user class is read back as a list, with another description
    return site
