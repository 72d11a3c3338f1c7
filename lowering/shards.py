"""Records of automatically sharded arrays, which are not gathered on the devices.

XLA's partitioner decides how an array is sharded, long after lowering. So a program calls a target that the partitioner
knows by name, and the partitioner asks us for the program of one device. With `per_shard=True` each device publishes a
record of its shard and the shard's bounds in the whole; it counts for itself meanwhile, as in a per-device region with
one effect. Otherwise each device copies its shards to their places on the host, and the last one publishes the whole.
If no operand is sharded, every device has the whole value, and the call is that for one device.

XLA folds an empty array to a constant before it partitions, so its sharding is lost, and every device has the whole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from effects import _jax
from effects._model.site import SIZE, Site
from effects._model.wire import (
    AFTER_SHARDS_TARGET,
    AFTER_TARGET,
    RECORD_TARGET,
    SHARDS_TARGET,
    TOKEN_LENGTH,
    Attribute,
    RecordTrait,
    TokenStep,
    step_numbers,
)


def call_shards(
    ctx: Any,
    token: Any,
    operands: Sequence[Any],
    devices: int,
    attributes: dict[str, Any],
    steps: Sequence[TokenStep] | None,
    site: Site | None = None,
) -> Any:
    """Publishes a record of each shard, or one record of all shards.

    Args:
        ctx: The context of the lowering.
        token: The token.
        operands: The sharded arrays.
        devices: How many devices run the program.
        attributes: Those of the call that each device makes; with one record, those for operands that are not cut.
        steps: The steps of the token after the call; None if the handler takes them.
        site: The site, if each shard has a record; None if all shards have one together.
    """
    # Neither the lanes of a `vmap` nor their mask is partitioned.
    together = [0] * len(operands) if site is None else [len(operand.lanes) for operand in site.operands]
    description = {"attributes": attributes, "together": together, "devices": devices, "steps": steps}
    description["whole"] = site is None
    return _jax.call_partitioned(ctx, SHARDS_TARGET, (token, *operands), json.dumps(description))


def _partition(shapes: Sequence[Any], shardings: Sequence[Any], _: Any, of_result: Any, encoded: bytes) -> Any:
    """Answers the partitioner with the program of one device, and the shardings of operands and result."""
    description = json.loads(encoded)
    whole = _jax.replicated_hlo_sharding
    layouts = [
        sharding if _jax.is_tiled(sharding, together) else whole
        for sharding, together in zip(shardings[1:], description["together"], strict=True)
    ]
    tiles = [_Tiles(tuple(shape.dimensions()), layout) for shape, layout in zip(shapes[1:], layouts, strict=True)]
    types = [_jax.element_type(shape) for shape in shapes[1:]]
    attributes, table = description["attributes"], None
    if not description["whole"]:
        table = _table(tiles, description["devices"])
    elif any(tile.is_cut for tile in tiles):
        attributes[Attribute.TRAITS] |= RecordTrait.HAS_SHARDS
        table = _table_of_whole(tiles, description["devices"])
    steps = description["steps"]
    steps = None if steps is None else [step_numbers(TokenStep(*step), TOKEN_LENGTH) for step in steps]
    program = _program_of_one(attributes, table, [tile.size for tile in tiles], types, steps)
    return program, [whole, *layouts], whole


def _partition_after(shapes: Sequence[Any], shardings: Sequence[Any], *_: Any) -> Any:
    whole = _jax.replicated_hlo_sharding
    layouts = [sharding if _jax.is_tiled(sharding, 0) else whole for sharding in shardings[1:]]
    sizes = [_Tiles(tuple(shape.dimensions()), layout).size for shape, layout in zip(shapes[1:], layouts, strict=True)]
    types = [_jax.element_type(shape) for shape in shapes[1:]]
    return _program_of_one({}, None, sizes, types, (), AFTER_TARGET), [whole, *layouts], whole


class _Tiles:
    """The shards of an array on the devices."""

    def __init__(self, shape: tuple[int, ...], sharding: Any):
        self.shape = shape
        self._tiles: dict[int, tuple[int, ...]] = {}  # per device: the index of its shard along each axis
        cuts = (1,) * len(shape)
        if not sharding.is_replicated():
            dims = sharding.tile_assignment_dimensions()
            order = np.reshape(sharding.tile_assignment_devices(), dims)
            self._tiles = {int(order[at]): at[: len(shape)] for at in np.ndindex(*dims)}
            cuts = dims[: len(shape)]
        self.size = tuple(-(-n // shards) for n, shards in zip(shape, cuts, strict=True))  # the last may be shorter
        # True if some device lacks an element. An axis of one element may be partitioned too: then one device has the
        # element, and the others have padding.
        self.is_cut = 0 not in shape and any(shards > 1 for shards in cuts)

    def bounds(self, device: int) -> list[tuple[int, int]]:
        """The begin and the end of a device's shard along each axis."""
        tile = self._tiles.get(device, (0,) * len(self.shape))
        starts = [min(n, at * size) for n, at, size in zip(self.shape, tile, self.size, strict=True)]
        return [(start, min(n, start + size)) for n, start, size in zip(self.shape, starts, self.size, strict=True)]


def _table(tiles: Sequence[_Tiles], devices: int) -> np.ndarray:
    """A row for each device: whether it is the first that has its shards, and what its record begins with."""
    rows, seen = [], set()
    for device in range(devices):
        bounds = [bound for tile in tiles for bound in tile.bounds(device)]
        sizes = [size for tile in tiles for size in tile.size]
        wholes = [size for tile in tiles for size in tile.shape]
        is_empty = any(start == stop and whole for (start, stop), whole in zip(bounds, wholes, strict=True))
        is_primary = tuple(bounds) not in seen and not is_empty
        seen.add(tuple(bounds))
        rows.append([is_primary, *sizes, *(start for start, _ in bounds), *(stop for _, stop in bounds), *wholes])
    return np.array(rows, SIZE)


def _table_of_whole(tiles: Sequence[_Tiles], devices: int) -> np.ndarray:
    """A row for each device: how many devices copy something, and for each operand whether this one does, as the first
    that has these elements, and for each axis where they begin and end, and the size of the whole."""
    rows, seen = [], [set() for _ in tiles]
    num_copying = 0
    for device in range(devices):
        row, copies_any = [], False
        for tile, before in zip(tiles, seen, strict=True):
            bounds = tile.bounds(device)
            copies = tuple(bounds) not in before and all(start != stop for start, stop in bounds)
            before.add(tuple(bounds))
            copies_any |= copies
            row.append(int(copies))
            for (start, stop), whole in zip(bounds, tile.shape, strict=True):
                row += [start, stop, whole]
        num_copying += copies_any
        rows.append(row)
    return np.array([[num_copying, *row] for row in rows], SIZE)


def _program_of_one(
    attributes: dict[str, Any],
    table: np.ndarray | None,
    shapes: Sequence[tuple[int, ...]],
    types: Sequence[str],
    steps: Sequence[tuple[Sequence[int], Sequence[int]]] | None,
    target: str = RECORD_TARGET,
) -> bytes:
    """The text of a program that looks up the device's row, if there is a table, publishes, and takes the steps."""
    operands = [_type(shape, type_) for shape, type_ in zip(shapes, types, strict=True)]
    token = _type((TOKEN_LENGTH,), "ui32")
    arguments = "".join(f", %x{i}: {operand}" for i, operand in enumerate(operands))
    lines = [f"func.func public @main(%token: {token}{arguments}) -> {token} {{"]
    passed = {"%token": ((TOKEN_LENGTH,), "ui32")}
    if table is not None:
        width = table.shape[1]
        lines += [
            f"  %table = stablehlo.constant dense<{table.tolist()}> : {_type(table.shape, 'i32')}",
            "  %at = stablehlo.partition_id : tensor<ui32>",
            "  %zero = stablehlo.constant dense<0> : tensor<ui32>",
            f"  %rows = stablehlo.dynamic_slice %table, %at, %zero, sizes = [1, {width}]"
            f" : ({_type(table.shape, 'i32')}, tensor<ui32>, tensor<ui32>) -> {_type((1, width), 'i32')}",
            f"  %row = stablehlo.reshape %rows : ({_type((1, width), 'i32')}) -> {_type((width,), 'i32')}",
        ]
        passed["%row"] = ((width,), "i32")
    passed |= {f"%x{i}": (shape, type_) for i, (shape, type_) in enumerate(zip(shapes, types, strict=True))}
    layouts = ", ".join(_row_major(len(shape)) for shape, _ in passed.values())
    config = ", ".join(f"{name} = {_attribute(value)}" for name, value in attributes.items())
    lines += [
        f"  %out = stablehlo.custom_call @{target}({', '.join(passed)}) {{api_version = 4 : i32,"
        f" backend_config = {{{config}}},"
        f" operand_layouts = [{layouts}], {'' if steps is None else _IN_PLACE}result_layouts = [{_row_major(1)}]}}"
        f" : ({', '.join(_type(*type_) for type_ in passed.values())}) -> {token}",
    ]
    out = "%out"
    for at, numbers in enumerate(steps or ()):
        for name, operation, operand in zip(("masked", "added"), ("and", "add"), numbers, strict=True):
            lines += [
                f"  %{name}_by{at} = stablehlo.constant dense<{list(operand)}> : {token}",
                f"  %{name}{at} = stablehlo.{operation} {out}, %{name}_by{at} : {token}",
            ]
            out = f"%{name}{at}"
    lines += [f"  return {out} : {token}", "}"]
    return "\n".join(lines).encode()


_IN_PLACE = (
    "output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0,"
    " operand_tuple_indices = []>], "
)
"""The result aliases the token."""


def _type(shape: Sequence[int], element: str) -> str:
    return f"tensor<{'x'.join([*map(str, shape), element])}>"


def _row_major(rank: int) -> str:
    return f"dense<{list(range(rank))[::-1]}> : tensor<{rank}xindex>"


def _attribute(value: Any) -> str:
    if isinstance(value, int):
        return f"{value} : i64"
    return '"' + "".join(f"\\{byte:02X}" for byte in value.encode()) + '"'  # whatever values it has


_jax.register_partitioner(SHARDS_TARGET, _partition)
_jax.register_partitioner(AFTER_SHARDS_TARGET, _partition_after)
