"""Asynchronous operations: what is started, and done later.

An operation is what a start, its updates and its done have in common. What is in flight lies on the host, under a
number that the program has as a *ticket*: `float32[3]`, the one array of a future. It says the number, and which lane
it is for. Floats, since the derivative by an integer would vanish without a word.
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
    """What an operation does, as its start, its updates and its done have it."""

    kind: str
    results: tuple[str, ...]
    attributes: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        said = [f"{name}={value}" for name, value in self.attributes]
        return f"{self.kind} of {', '.join(self.results) or 'nothing'} ({', '.join(said)})"


@dataclasses.dataclass(frozen=True, repr=False)
class Operation:
    """What is started and done.

    A future has no more of it than a done must know, `end`, so that one may stand in place of another: in a loop's
    carry, or at the end of a branch.

    Attributes:
        name: What messages call it; of a done, only what kind it is of.
        where: The line of the user's that starts it, or where it is done.
        results: Types of the results, of one lane.
        schedule: Whether what stands between start and done stays between them.
        lanes: Sizes of the `vmap`s around, the outermost first.
        into_reference: Whether its done writes the results to references.
        of_derivative: Whether JAX starts it for a derivative, in which nothing need ask for what it comes to.
        same_along: For each result the axes of the region along which it is the same on all devices, where JAX checks
            that; none if empty.
        is_local: Whether it is started and done in one jaxpr, so that a program may keep its values itself. The token
            pass says so.
        site: That of the records that it publishes, if it does.
        user_types: Of a start, the types of the operands of the user's line, in each lane, if others are kept or sent.
        finish: Of a done, what makes a result of each value that it comes to, if something does.
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
    """What an operation whose start is not known is called."""

    is_linear = True
    """Whether it hands on values as they are, so that it has a derivative."""

    in_common: ClassVar[tuple[str, ...]] = ("schedule", "into_reference", "same_along")
    """What its start, its updates and its done have in common; not the lanes, which may be turns of a loop there."""

    @property
    def computation(self) -> Computation:
        """What is the same from its start to its done."""
        shapes = tuple(str(result) for result in self.results)
        return Computation(self.kind, shapes, tuple((name, getattr(self, name)) for name in self.in_common))

    def __repr__(self) -> str:  # what JAX says where a branch or a loop has futures of different operations
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
        """Results in the types in which they are asked for."""
        return results

    @property
    def end(self) -> Operation:
        """What a future has of it."""
        return dataclasses.replace(self, name=self.kind, where=None, user_types=None)

    def at(self, where: Where) -> Operation:
        """The operation of a done in this line."""
        return dataclasses.replace(self, where=where)

    def in_lanes(self, size: int, differs: Sequence[bool]) -> Operation:
        """The operation under one more `vmap`, in whose lanes these of the operands differ."""
        return dataclasses.replace(self, lanes=(size, *self.lanes))

    @property
    def differentiable(self) -> list[int]:
        """Which of the results have tangents."""
        return [at for at, result in enumerate(self.results) if jnp.issubdtype(result.dtype, np.inexact)]

    def tangent(self) -> Operation:
        """The operation of the tangents."""
        results, same_along = (
            tuple(of_each[at] for at in self.differentiable) for of_each in (self.results, self._same_along)
        )
        return dataclasses.replace(self, results=results, same_along=same_along, of_derivative=True)

    def transposed(self) -> Operation:
        """The operation of the cotangents, which go the other way, and to no reference of the program's: its start is
        where this one is done."""
        return dataclasses.replace(self, into_reference=False, of_derivative=True)

    def of_cotangents(self, cotangents: Sequence[Any]) -> list[Any]:
        """What `transposed` is started with, of the cotangents of all results."""
        return [*cotangents]


@dataclasses.dataclass(frozen=True, repr=False)
class Kept(Operation):
    """Values that are computed at the start, and kept until it is done.

    Attributes:
        placements: Where each of them is then: in which memory, and how it is sharded if its type says that.
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
        axes: The axes of the mesh along which it is sent.
        size: How many devices there are along these.
        receivers: For each device the one that gets its values, or -1; None if each value has a part for each device,
            in its leading axis, and what is received has one from each.
        has_replicas: Whether several devices would send as one, in a region over some of the axes of its mesh.
    """

    axes: tuple[str, ...] = ()
    size: int = 0
    receivers: tuple[int, ...] | None = None
    has_replicas: bool = False

    kind: ClassVar[str] = "collective"
    in_common: ClassVar[tuple[str, ...]] = (*Operation.in_common, "axes", "size", "receivers", "has_replicas")

    @property
    def senders(self) -> tuple[int, ...] | None:
        """For each device the one whose values it gets, or -1."""
        if self.receivers is None:
            return None
        senders = [-1] * self.size
        for sender, receiver in enumerate(self.receivers):
            if receiver >= 0:
                senders[receiver] = sender
        return tuple(senders)

    @property
    def key(self) -> int:
        """A number that the devices have in common which exchange something. Those along the same axes come to their
        exchanges in the same order."""
        digest = hashlib.blake2b(repr(self.axes).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def transposed(self) -> Exchanged:
        return dataclasses.replace(
            self, into_reference=False, of_derivative=True, same_along=(), receivers=self.senders
        )

    def of_cotangents(self, cotangents: Sequence[Any]) -> list[Any]:
        # Of a result that is the same on all devices they have one cotangent between them, which is sent back once.
        return [_jax.as_of_first(x, axes) for x, axes in zip(cotangents, self._same_along, strict=True)]


@dataclasses.dataclass(frozen=True, repr=False)
class HostStartOp(Operation):
    """A function of the user's that runs on the host while the program goes on: its start.

    Attributes:
        site: That of the records from which it begins.
        ends: How it is done.
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
        # The number of the operation, which is the same in all lanes, is the last operand.
        site = self.site.with_lanes(size, [*differs, False])
        return dataclasses.replace(self, lanes=(size, *self.lanes), site=site)


@dataclasses.dataclass(frozen=True, repr=False)
class HostEnd(Operation):
    """The end of such a function: what a future knows of it."""

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
