"""A site: one call of an effect in the user's source, described so that anyone can replay its records.

Records carry the site's hash and the bytes of the operands. The description travels with the compiled program, so a
program that was compiled elsewhere is understood too: the hash is of the content, never an address or a counter.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from effects import _jax
from effects._model.arguments import flat_arguments
from effects._model.content import Content
from effects._model.description import describe_site, read_site
from effects._model.effect import Effect
from effects._model.jax_call import JaxCall
from effects._model.operand import Operand, Static
from effects._model.where import Where


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
    origin: JaxCall | None = None  # the callback of JAX's own that it was written as
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
        if (call := self.content.call) is None or call.results is None:
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

        mask = None if self.mask is None else with_lane(self.mask)
        grid = None if self.grid is None else with_lane(self.grid)
        leaves = tuple(with_lane(leaf) if isinstance(leaf, Operand) else leaf for leaf in self.leaves)
        return dataclasses.replace(self, leaves=leaves, lanes=(size, *self.lanes), mask=mask, grid=grid)

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
        results = (call.results or ()) if (call := self.content.call) is not None else ()
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

        mask = None if self.mask is None else of(self.mask)
        grid = None if self.grid is None else of(self.grid)
        leaves = tuple(of(leaf) if isinstance(leaf, Operand) else leaf for leaf in self.leaves)
        return dataclasses.replace(
            self, leaves=leaves, mask=mask, grid=grid, num_dynamic_sizes=4 * (-1 - next(numbers))
        )

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

    def of_record(self, payload: Any) -> Site:
        """The site with the sizes that a record has, and with what it says itself."""
        if not self.num_dynamic_sizes:
            return self
        return self.content.read(self._sized(*np.ndarray((self.num_dynamic_sizes,), SIZE, payload).tolist()), payload)

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

        content = self.content.resized(of)
        leaves = tuple(of(leaf) if isinstance(leaf, Operand) else leaf for leaf in self.leaves)
        lanes = tuple(map(resize, self.lanes))
        mask = None if self.mask is None else of(self.mask)
        grid = None if self.grid is None else of(self.grid)
        return dataclasses.replace(
            self, content=content, leaves=leaves, lanes=lanes, mask=mask, grid=grid, num_dynamic_sizes=num_dynamic_sizes
        )

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
        """If the site is of a function that this process has, which is called once, with what travels in a record as it
        lies there, and for which a program waits: the function, the `places` of its arguments, type and shape of its
        only result, and what makes bytes of a number of Python's, by the number's type. The result's type is None if
        there are several, or native code cannot read them."""
        call: Any = self.content.call
        if call is not self.content or call.results is None or call.pass_record or call.prints or not self._is_plain:
            return None
        if (fn := call.function.fn) is None:
            return None
        if self.lanes or self.mask or self.grid or self.num_dynamic_sizes or self.shard_bounds or self._shown_otherwise:
            return None
        only = call.only_result
        if only is None or only.stored.isbuiltin != 1 or only.stored != only.dtype:
            return fn, tuple(self.places), None, (), {}
        kind, char = only.dtype.kind, only.dtype.char
        layout = f"={char}" if kind == "f" else char  # without "=" no number is too large for a float
        numbers = () if only.shape else _NUMBERS.get(kind, ())
        packs = {number: struct.Struct(layout).pack for number in numbers}
        return fn, tuple(self.places), only.stored, only.shape, packs

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
