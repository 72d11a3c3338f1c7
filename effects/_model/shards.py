"""Shards of the operands of one record, with `per_shard=True` where arrays are sharded automatically."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple, Self

from effects._model.operand import Operand


class Shards(NamedTuple):
    """The shards of a record.

    Attributes:
        index: The slice that this shard is of the first sharded array; if none is sharded, all of the first array.
        smaller: The arguments whose shard is smaller here than elsewhere, with the slice of the padded shard.
    """

    index: tuple[slice, ...]
    smaller: list[tuple[int, tuple[slice, ...]]]

    @classmethod
    def from_sizes(cls, operands: Sequence[Operand], num_arguments: int, sizes: Sequence[int]) -> Self:
        """The shards whose sizes a record has: see `Site.in_shards`.

        Args:
            operands: The operands of the record, the last of which are arguments.
            num_arguments: The number of arguments.
            sizes: The sizes of the shards, where they begin, where they end, and the whole sizes, of all operands.
        """
        count = len(sizes) // 4
        axes = zip(sizes[count : 2 * count], sizes[2 * count : 3 * count], sizes[3 * count :], strict=True)
        each = [list(itertools.islice(axes, len(operand.shape))) for operand in operands]
        bounds = [tuple(slice(start, stop) for start, stop, _ in one) for one in each]
        first_argument = len(operands) - num_arguments
        sharded = (i for i, one in enumerate(each) if any(stop - start != whole for start, stop, whole in one))
        first = next(sharded, first_argument)
        smaller = []
        for i, (operand, own) in enumerate(zip(operands[first_argument:], bounds[first_argument:], strict=True)):
            counts = tuple(slice(bound.stop - bound.start) for bound in own)
            if any(part.stop < size for part, size in zip(counts, operand.shape, strict=True)):
                smaller.append((i, counts))
        index = bounds[first][sum(operands[first].lanes) :] if operands else ()
        return cls(index, smaller)
