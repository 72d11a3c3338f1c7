"""Asynchronous operations, as their starts, updates and dones describe them.

A start, its updates and its done share one operation. Its values in flight are on the host, under a number that the
program carries as a *ticket*: `float32[3]`, the one array of a future. A ticket holds the number and the lane. It is of
floats because the tangent of an integer is of type float0, and the derivative would vanish without a word.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np

from effects import _jax
from effects._api.callback import CALLBACK
from effects._model.callback import HostCall
from effects._model.function import HostFunction
from effects._model.operand import Operand, flat_arguments
from effects._model.primitive import result_avals
from effects._model.site import Site
from effects._model.where import Where
from effects.extensions.asynchronous.primitives import DONE_FUNCTION

TICKET_LENGTH = 3


class Computation(NamedTuple):
    """The part of an operation that its start, its updates and its done must agree on."""

    kind: str
    results: tuple[str, ...]
    attributes: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        said = [f"{name}={value}" for name, value in self.attributes]
        return f"{self.kind} of {', '.join(self.results) or 'nothing'} ({', '.join(said)})"


@dataclasses.dataclass(frozen=True, repr=False)
class Operation:
    """An asynchronous operation, as a parameter of its start, its updates and its done.

    A future keeps only `end`, the part that a done must know, so that one future may take the place of another: in a
    loop's carry, or at the end of a branch.

    Attributes:
        name: Its name in messages; for a done, only its kind.
        where: The user's line that starts it; for a done, the line of the done.
        results: Types of the results in one lane.
        schedule: True if the equations between start and done must stay between them.
        lanes: Sizes of the `vmap`s around, the outermost first.
        into_reference: True if its done writes the results to references.
        of_derivative: True if JAX starts it for a derivative, where nothing need use its results.
        same_along: For each result, the axes of the region along which all devices have the same value, where JAX
            checks that; empty if no result has any.
        is_local: True if one jaxpr starts it and ends it, so that a program may keep its values itself. The token pass
            sets this.
        site: The site of the records that it publishes, if any.
        user_types: For a start, the types in one lane of the operands of the user's call, if the operation keeps or
            sends other values.
        finish: For a done, the function from each value to the user's result, if there is one.
    """

    name: str
    where: Where | None
    results: tuple[Any, ...]
    schedule: bool = True
    lanes: tuple[int, ...] = ()
    into_reference: bool = False
    of_derivative: bool = False
    same_along: tuple[tuple[Any, ...], ...] = dataclasses.field(default=(), kw_only=True)
    is_local: bool = dataclasses.field(default=False, kw_only=True)
    site: Site | None = dataclasses.field(default=None, kw_only=True)
    user_types: str | None = dataclasses.field(default=None, kw_only=True)
    finish: Callable[[Any], Any] | None = dataclasses.field(default=None, kw_only=True)

    kind: ClassVar[str] = "operation"
    """The name of this kind of operation, also where its start is not known."""

    is_linear = True
    """True if its values are passed on unchanged: then start and done are linear, and have a derivative."""

    in_common: ClassVar[tuple[str, ...]] = ("schedule", "into_reference", "same_along")
    """The fields that its start, updates and done share. Not the lanes: one of them may have those as loop
    iterations."""

    @property
    def computation(self) -> Computation:
        """The part that is the same from its start to its done."""
        shapes = tuple(str(result) for result in self.results)
        return Computation(self.kind, shapes, tuple((name, getattr(self, name)) for name in self.in_common))

    def __repr__(self) -> str:  # in JAX's error for a branch or a loop with futures of different operations
        lanes = f" in lanes {self.lanes}" if self.lanes else ""
        return f"{self.computation}{lanes}{' of a derivative' if self.of_derivative else ''}"

    @property
    def ticket(self) -> Any:
        """The type of its ticket: one for each lane."""
        return _jax.per_device(_jax.ShapedArray((*self.lanes, TICKET_LENGTH), np.dtype(np.float32)))

    @property
    def results_of_lanes(self) -> list[Any]:
        """Types of the results, of all lanes together."""
        results = [result.update(shape=(*self.lanes, *result.shape)) for result in self.results]
        return [_jax.per_device(result, axes) for result, axes in zip(results, self._same_along, strict=True)]

    @property
    def _same_along(self) -> tuple[tuple[Any, ...], ...]:
        return self.same_along or ((),) * len(self.results)

    def shown(self, results: Sequence[Any]) -> Sequence[Any]:
        """Converts results to the types or placements that the user asked for."""
        return results

    @property
    def end(self) -> Operation:
        """The part of the operation that a future keeps."""
        return dataclasses.replace(self, name=self.kind, where=None, user_types=None)

    def at(self, where: Where) -> Operation:
        """The operation of a done in this line."""
        return dataclasses.replace(self, where=where)

    def in_lanes(self, size: int, differs: Sequence[bool]) -> Operation:
        """The operation under one more `vmap`. `differs`: for each operand, True if it differs between lanes."""
        return dataclasses.replace(self, lanes=(size, *self.lanes))

    @property
    def differentiable(self) -> list[int]:
        """The positions of the results that have tangents."""
        return [at for at, result in enumerate(self.results) if jnp.issubdtype(result.dtype, np.inexact)]

    def tangent(self) -> Operation:
        """The operation of the tangents."""
        results, same_along = (
            tuple(of_each[at] for at in self.differentiable) for of_each in (self.results, self._same_along)
        )
        return dataclasses.replace(self, results=results, same_along=same_along, of_derivative=True)

    def transposed(self) -> Operation:
        """The operation of the cotangents. It starts where this one is done, and writes to no reference of the
        program's."""
        return dataclasses.replace(self, into_reference=False, of_derivative=True)

    def of_cotangents(self, cotangents: Sequence[Any]) -> list[Any]:
        """The operands for the start of `transposed`, from the cotangents of all results."""
        return [*cotangents]


@dataclasses.dataclass(frozen=True, repr=False)
class Kept(Operation):
    """Values that are computed at the start, and kept until it is done.

    Attributes:
        placements: The memory of each value, and its sharding if the type has one.
    """

    placements: tuple[Any, ...] = dataclasses.field(default=(), kw_only=True)

    kind: ClassVar[str] = "async_start"
    in_common: ClassVar[tuple[str, ...]] = (*Operation.in_common, "placements")

    def shown(self, results: Sequence[Any]) -> Sequence[Any]:
        if not self.placements:
            return results
        return [_jax.place(x, placement) for x, placement in zip(results, self.placements, strict=True)]


@dataclasses.dataclass(frozen=True, repr=False)
class Exchanged(Operation):
    """Values of each device of a region, sent to others.

    Attributes:
        axes: The axes of the mesh along which the values are sent.
        size: The number of devices along these axes.
        receivers: For each device, the one that receives its values, or -1. None if each device sends a part to every
            device: the leading axis of a value has a part for each device, and that of a result one from each.
        has_replicas: True if several devices would send as one, in a region over some of the axes of its mesh.
    """

    axes: tuple[str, ...] = ()
    size: int = 0
    receivers: tuple[int, ...] | None = None
    has_replicas: bool = False

    kind: ClassVar[str] = "collective"
    in_common: ClassVar[tuple[str, ...]] = (*Operation.in_common, "axes", "size", "receivers", "has_replicas")

    @property
    def senders(self) -> tuple[int, ...] | None:
        """The inverse of `receivers`: for each device, the one that sends to it, or -1."""
        if self.receivers is None:
            return None
        senders = [-1] * self.size
        for sender, receiver in enumerate(self.receivers):
            if receiver >= 0:
                senders[receiver] = sender
        return tuple(senders)

    @property
    def key(self) -> int:
        """A number for the axes of the exchange, the same on all devices that take part. Devices along the same axes
        reach their exchanges in the same order."""
        digest = hashlib.blake2b(repr(self.axes).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def transposed(self) -> Exchanged:
        return dataclasses.replace(
            self, into_reference=False, of_derivative=True, same_along=(), receivers=self.senders
        )

    def of_cotangents(self, cotangents: Sequence[Any]) -> list[Any]:
        # A result that is equal on all devices has one cotangent: the first device sends it back, the others send
        # zeros.
        return [_jax.as_of_first(x, axes) for x, axes in zip(cotangents, self._same_along, strict=True)]


@dataclasses.dataclass(frozen=True, repr=False)
class HostStartOp(Operation):
    """The start of a user function that runs on the host beside the program.

    Attributes:
        site: The site of the records from which the function begins.
        ends: The part of it that a future keeps.
    """

    site: Site = dataclasses.field(kw_only=True)
    ends: HostEnd = dataclasses.field(kw_only=True)

    kind: ClassVar[str] = "async_callback"
    in_common: ClassVar[tuple[str, ...]] = ("schedule",)
    is_linear = False

    @property
    def end(self) -> HostEnd:
        return self.ends

    def in_lanes(self, size: int, differs: Sequence[bool]) -> HostStartOp:
        # The last operand is the number of the operation, the same in all lanes.
        site = self.site.with_lanes(size, [*differs, False])
        return dataclasses.replace(self, lanes=(size, *self.lanes), site=site)


@dataclasses.dataclass(frozen=True, repr=False)
class HostEnd(Operation):
    """The end of such a function, as its future knows it."""

    types: tuple[Operand, ...] = dataclasses.field(kw_only=True)  # of the results
    structure: Any = dataclasses.field(kw_only=True)

    kind: ClassVar[str] = HostStartOp.kind
    in_common: ClassVar[tuple[str, ...]] = HostStartOp.in_common
    is_linear = False

    def shown(self, results: Sequence[Any]) -> Sequence[Any]:
        return [result.astype(type_.dtype) for result, type_ in zip(results, self.types, strict=True)]

    def at(self, where: Where) -> HostAwait:
        call = HostCall(
            HostFunction(None, DONE_FUNCTION, self.kind, True), self.types, self.structure, pass_record=True
        )
        ticket = Operand((TICKET_LENGTH,), np.dtype(np.float32), np.dtype(np.float32))
        site = Site(CALLBACK, call, (ticket,), flat_arguments(1), where)
        return HostAwait(self.name, where, self.results, self.schedule, self.lanes, site=site)


@dataclasses.dataclass(frozen=True, repr=False)
class HostAwait(Operation):
    """The done of such a function: a callback whose results the program waits for."""

    site: Site = dataclasses.field(kw_only=True)

    kind: ClassVar[str] = HostStartOp.kind
    in_common: ClassVar[tuple[str, ...]] = HostStartOp.in_common
    is_linear = False

    @property
    def results_of_lanes(self) -> list[Any]:
        return result_avals(self.site)

    def in_lanes(self, size: int, differs: Sequence[bool]) -> HostAwait:
        return dataclasses.replace(self, lanes=(size, *self.lanes), site=self.site.with_lanes(size, differs))
