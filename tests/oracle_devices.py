"""The order oracle with devices: random programs with `shard_map`, and random sequences of programs on random devices.

The language is that of `tests.oracle`, with three statements more. A `Region` is a `shard_map`, or what JAX makes one
of: every device runs its block by itself and has effects of its own, which come by (their number in the device's own
order, device). If it is over one axis of two, devices that differ along the other are a part, which runs the block as
one device would, and its first device speaks for it; in there, a region over the other axis may be. A `Talk` is a
collective inside a region. A `Whole` prints an array that is sharded over the devices, as one or shard by shard.

The reading in Python runs a region's block once for each device, in a thread for each so that they can talk, and notes
what is to happen; then it happens in that order. Some regions are *loose*: of these only each device's own order is
compared, with records that were captured. See `is_loose`.

A case is a sequence of dispatches by one thread, or several such sequences by as many threads. A dispatch is of a
program on one device, or on several: a list of them in any order, with meshes of one or two axes. Between dispatches
there may be effects outside of programs, and barriers.

    python -m tests.oracle_devices --programs 2000 --seed 0 --jobs 2
    python -m tests.oracle_devices --seed 0 --only 123          # one case again, with its source
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import faulthandler
import functools
import io
import math
import os
import pickle
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AxisType, NamedSharding

from effects import _jax as compat
from tests import oracle
from tests.oracle import (
    EFFECTS,
    FEATURES,
    MODULUS,
    REGISTERS,
    STATE,
    Block_,
    Callback,
    Case,
    Cond,
    CustomRule,
    Derivative,
    Draw,
    Effect,
    Expression,
    Failure,
    Fori,
    Host,
    HypothesisDraw,
    Outcome,
    Place,
    Program,
    RandomDraw,
    Reading,
    Run,
    Runner,
    Scope,
    Source,
    State,
    Statement,
    Switch,
    Tally,
    Vmap,
    While,
    assign,
    fold,
    register,
    render,
    run_body,
    shifted,
    statements,
    wrap,
)

P = jax.P
DEVICES = 8

# ---------------------------------------------------------------------------------------------------------------------
# Where a program runs


@dataclass(frozen=True)
class Placing:
    """Several devices, in an order of their own, and how a program comes to them."""

    devices: tuple[int, ...]
    rows: int = 1  # of a mesh with two axes
    explicit: bool = False  # whether the types of arrays say how they are sharded
    entry: str = "replicated"  # see ENTRIES

    def mesh(self, two_axes: bool) -> Any:
        sizes = (self.rows, len(self.devices) // self.rows) if two_axes or self.explicit else (len(self.devices),)
        kind = AxisType.Explicit if self.explicit else AxisType.Auto
        devices = np.array([jax.devices()[number] for number in self.devices]).reshape(sizes)
        return jax.sharding.Mesh(devices, ("i", "j")[: len(sizes)], axis_types=(kind,) * len(sizes))

    def shard(self, two_axes: bool, spec: Any = None) -> Any:
        """A sharding of an array's first dimension over all devices, or of whatever `spec` says."""
        mesh = self.mesh(two_axes)
        return NamedSharding(mesh, P(mesh.axis_names) if spec is None else spec)

    def constrain(self, x: Any, two_axes: bool, spec: Any = None) -> Any:
        """The array, sharded like that, inside of a program."""
        sharding = self.shard(two_axes, spec)
        return jax.sharding.reshard(x, sharding) if self.explicit else lax.with_sharding_constraint(x, sharding)


ENTRIES = ("replicated", "sharded", "in_shardings", "uncommitted")
"""How a program gets its registers: on all of its devices, as one array that is sharded over them by its own sharding
or by the program's, or as numbers."""


# ---------------------------------------------------------------------------------------------------------------------
# Statements


@dataclass(frozen=True)
class Region:
    """A block that each device runs by itself, with a value of its own; what comes of it is folded into `target`.

    It sees the registers as they were before. If it is made `turns` times, `x` stays as it is.
    """

    label: str
    form: str  # see REGIONS
    check_vma: bool
    turns: int
    device: str  # the name of the device's place in the mesh,
    variable: str  # and of its value
    xs: tuple[int, ...]
    base: Expression
    closes: tuple[str, ...]  # the names of values that it sees
    body: Block_
    result: Expression
    target: str
    mode: str  # see MODES
    kind: ClassVar[str] = "ordered"

    def kinds(self) -> tuple[str, ...]:
        checked = "check_vma" if self.check_vma else "no_check_vma"
        return ("region", self.form, f"region_{self.mode}", checked, *["region_turns"] * (self.turns > 1))

    def python(self, out: Source) -> None:
        name, ys = out.fresh("device"), out.fresh("ys")
        note = f"  # check_vma={self.check_vma}, {self.mode}"
        out.function(name, self.body, f"{self.device}, {self.variable}, {STATE}", f"{self.result.python()}, x")
        values = f"[(y + {self.base.python()}) % {MODULUS} for y in {self.xs}]"
        out.line(f"{ys}, x = region({self.label!r}, {self.form!r}, {name}, {self.turns}, {values}, {STATE}){note}")
        out.line(f"{self.target} = fold({ys}, {self.target})")

    def jax(self, scope: Scope, state: State) -> State:
        placing = scope.names["@placing"]
        two_axes = self.form in ("two_axes", "nested", "inner", *PARTS)
        mesh = placing.mesh(two_axes)
        axes = mesh.axis_names
        if self.form in PARTS:
            axes = (axes[PARTS.index(self.form)],)
        elif self.form == "inner":
            axes = tuple(axis for axis in axes if axis not in scope.names["@axes"])
        count = math.prod(mesh.shape[axis] for axis in axes)
        around = {name: scope.names[name] for name in self.closes}
        entered = oracle.hold(state) if self.turns > 1 else state

        def body(around: Mapping[str, Any], values: Any, *state: Any) -> Any:
            device = lax.axis_index(axes)

            def settle(state: State) -> State:
                """Whatever it is, each device has its own."""
                nothing = lax.axis_index(axes) * 0
                return (*(value + nothing for value in state[:-1]), state[-1] + nothing.astype(np.float32))

            names = {**around, self.device: device, self.variable: values[0]}
            names |= {"@axes": axes, "@count": count, "@placing": placing}
            here = Scope(scope.runner, scope.host, scope.functions, names, settle)
            after = run_body(self.body, here, settle(state))
            return lax.reshape(self.result.jax(here, after) + device * 0, (1,)), lax.reshape(after[-1], (1,))

        run = REGIONS[self.form](self, placing, mesh, body)
        values = shifted(self.xs[:count], self.base.jax(scope, state))
        outermost = self.form != "inner"
        if placing.explicit:
            values = (
                placing.constrain(values, two_axes, P(axes)) if outermost else jax.sharding.reshard(values, P(axes))
            )
        if self.turns == 1 or self.form == "nested":
            ys, xs = run(around, values, *entered)
        else:
            ys, xs = self._turns(run, around, values, entered)
        if placing.explicit and outermost:
            ys, xs = (placing.constrain(each, two_axes, P()) for each in (ys, xs))
        elif placing.explicit:
            ys, xs = (jax.sharding.reshard(each, P()) for each in (ys, xs))
        x = state[-1] if self.turns > 1 else wrap(jnp.sum(xs))
        return assign((*state[:-1], x), self.target, fold(ys, register(state, self.target)))

    def _turns(self, run: Callable[..., Any], around: Mapping[str, Any], values: Any, state: State) -> Any:
        """The region again and again, each time with values greater by one; the results are added."""

        def turn(number: Any, carry: Any) -> Any:
            ys, xs = run(around, lax.rem(values + number, np.int32(MODULUS)), *state)
            return carry[0] + ys, xs

        return lax.fori_loop(0, self.turns, turn, (values * 0, values.astype(np.float32)))


def _shard_map(region: Region, placing: Placing, mesh: Any, body: Callable[..., Any]) -> Callable[..., Any]:
    spec = P(mesh.axis_names)
    specs: dict[str, Any] = {"in_specs": (P(), spec, *[P()] * (len(REGISTERS) + 1)), "out_specs": (spec, spec)}
    return jax.shard_map(body, mesh=mesh, check_vma=region.check_vma, **specs)


def _nested(region: Region, placing: Placing, mesh: Any, body: Callable[..., Any]) -> Callable[..., Any]:
    """A region over one axis inside of one over the other. The turns are inside of the outer one."""
    outer, inner = mesh.axis_names
    state = [P()] * (len(REGISTERS) + 1)

    def specs(axis: str) -> dict[str, Any]:
        return {
            "in_specs": (P(), P(axis), *state),
            "out_specs": (P(axis), P(axis)),
            "axis_names": {axis},
            "check_vma": region.check_vma,
        }

    def rows(around: Mapping[str, Any], values: Any, *state: Any) -> Any:
        run = jax.shard_map(body, **specs(inner))
        if region.turns == 1:
            return run(around, values, *state)
        return region._turns(run, around, values, state)

    return jax.shard_map(rows, mesh=mesh, **specs(outer))


def _part(region: Region, placing: Placing, mesh: Any, body: Callable[..., Any]) -> Callable[..., Any]:
    axis = mesh.axis_names[PARTS.index(region.form)]
    specs: dict[str, Any] = {"in_specs": (P(), P(axis), *[P()] * (len(REGISTERS) + 1)), "out_specs": (P(axis), P(axis))}
    return jax.shard_map(body, mesh=mesh, axis_names={axis}, check_vma=region.check_vma, **specs)


def _inner(region: Region, placing: Placing, mesh: Any, body: Callable[..., Any]) -> Callable[..., Any]:
    """In a region over one axis, one over the other."""

    def run(around: Mapping[str, Any], values: Any, *state: Any) -> Any:
        outer = jax.sharding.get_abstract_mesh().manual_axes
        [axis] = (axis for axis in mesh.axis_names if axis not in outer)
        specs: dict[str, Any] = {"in_specs": (P(), P(axis), *[P()] * len(state)), "out_specs": (P(axis), P(axis))}
        return jax.shard_map(body, axis_names={axis}, check_vma=region.check_vma, **specs)(around, values, *state)

    return run


def _pmap(region: Region, placing: Placing, mesh: Any, body: Callable[..., Any]) -> Callable[..., Any]:
    def run(around: Mapping[str, Any], values: Any, *state: Any) -> Any:
        def one(values: Any, around: Mapping[str, Any], *state: Any) -> Any:
            return tuple(out[0] for out in body(around, values[None], *state))

        in_axes = (0, None, *[None] * len(state))
        devices = [jax.devices()[number] for number in placing.devices]
        return jax.pmap(one, axis_name=mesh.axis_names[0], in_axes=in_axes, devices=devices)(values, around, *state)

    return run


# How a region is written: name -> what makes a function of (names, values, *state) of the block.
REGIONS: Mapping[str, Callable[[Region, Placing, Any, Callable[..., Any]], Callable[..., Any]]] = {
    "one_axis": _shard_map,
    "two_axes": _shard_map,
    "nested": _nested,
    "pmap": _pmap,
    "rows": _part,
    "columns": _part,
    "inner": _inner,
}

PARTS = ("rows", "columns")
"""Those over the first or second axis of two only."""

MODES = ("wide", "talk_calls", "talk_ways", "both")
"""What a region may have: everything but collectives; collectives and callbacks that are waited for; collectives, and
branches and loops of each device's own; or all of it."""


@dataclass(frozen=True)
class Talk:
    """A collective: every device gets something of all others."""

    form: str
    value: Expression
    target: str

    def kinds(self) -> tuple[str, ...]:
        return (self.form,)

    def python(self, out: Source) -> None:
        all_of_them = f"talk({self.value.python()})"
        what = {
            "psum": f"sum({all_of_them})",
            "ppermute": f"{all_of_them}[neighbour()]",
            "all_gather": f"fold({all_of_them}, 0)",
        }[self.form]
        out.line(f"{self.target} = ({self.target} + {what}) % {MODULUS}")

    def jax(self, scope: Scope, state: State) -> State:
        axes, count = scope.names["@axes"], scope.names["@count"]
        value = self.value.jax(scope, state) + lax.axis_index(axes) * 0
        if self.form == "psum":
            got = lax.psum(value, axes)
        elif self.form == "ppermute":  # to the next one
            got = lax.ppermute(value, axes, [(device, (device + 1) % count) for device in range(count)])
        else:
            got = fold(lax.all_gather(value, axes), np.int32(0))
        return assign(state, self.target, lax.rem(lax.add(register(state, self.target), got), np.int32(MODULUS)))


TALKS = ("psum", "ppermute", "all_gather")


@dataclass(frozen=True)
class Whole:
    """A print of an array that is sharded over the devices."""

    label: str
    xs: tuple[int, ...]
    base: Expression
    sharded: bool
    two_axes: bool
    per_shard: bool
    target: str
    kind: ClassVar[str] = "ordered"

    def kinds(self) -> tuple[str, ...]:
        return ("shards" if self.per_shard else "whole_sharded" if self.sharded else "whole",)

    def python(self, out: Source) -> None:
        ys = out.fresh("ys")
        out.line(f"{ys} = [(y + {self.base.python()}) % {MODULUS} for y in {self.xs}]")
        if self.per_shard:
            out.line(f"for shard in shards({ys}, {self.sharded}):")
            out.line(f"    ordered({self.label!r}, *shard)")
        else:
            out.line(f"ordered({self.label!r}, array({ys}))  # sharded: {self.sharded}")
        out.line(f"{self.target} = fold({ys}, {self.target})")

    def jax(self, scope: Scope, state: State) -> State:
        placing = scope.names["@placing"]
        array = shifted(self.xs, self.base.jax(scope, state))
        array = placing.constrain(array, self.two_axes, None if self.sharded else P())
        scope.runner.emit["per_shard" if self.per_shard else "ordered"](self.label, (array,))
        if placing.explicit:
            array = placing.constrain(array, self.two_axes, P())
        return assign(state, self.target, fold(array, register(state, self.target)))


# ---------------------------------------------------------------------------------------------------------------------
# The reading in Python


class _Exchange:
    """Where the devices of a region talk to each other."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count)
        self.values = [0] * count

    def talk(self, rank: int, value: int) -> list[int]:
        self.values[rank] = value
        self.barrier.wait()
        values = list(self.values)
        self.barrier.wait()
        return values


class DeviceReading(threading.local, Reading):
    """The reading of programs over several devices. In a region each device has a thread, and so a reading, of its own,
    in which nothing happens yet."""

    def __init__(self) -> None:
        Reading.__init__(self)
        self.devices: tuple[int, ...] = (0,)
        self._rows = 1  # of a mesh with two axes
        self.places: list[tuple[str, int] | None] = []  # of each line: of which loose region and device it is, if so
        self._loose: frozenset[str] = frozenset()
        self._kinds: dict[str, str] = {}
        self._exchange = _Exchange(1)
        self._rank = 0
        self._parts: Sequence[tuple[int, ...]] = ()  # of `devices`, in a region
        self._part: tuple[int, ...] = ()  # in a region over one axis: the devices that we are

    def run(self, program: Program, state: Sequence[int], number: int, placing: Placing | None) -> tuple[int, ...]:
        self.devices = (0,) if placing is None else placing.devices
        self._rows = 1 if placing is None else placing.rows
        self._kinds = oracle.kinds_of_labels(program)
        self._loose = loose_regions(program)
        return self.interpret(program, state, number)

    def note_places(self) -> None:
        """Whatever was written since is of no loose region."""
        self.places += [None] * (len(self.lines) - len(self.places))

    def more_names(self, program: Program) -> dict[str, Any]:
        return {
            "array": np.array,
            "region": self._region,
            "shards": self._shards,
            "talk": lambda value: self._exchange.talk(self._rank, value),
            "neighbour": lambda: (self._rank - 1) % len(self.devices),
        }

    def _region(
        self,
        label: str,
        form: str,
        device: Callable[..., tuple[int, int]],
        turns: int,
        values: Sequence[int],
        *state: int,
    ) -> tuple[list[int], int]:
        with self._only(self._parts_of(form)), self._held() if turns > 1 else contextlib.nullcontext():
            if form == "nested" and self._rows == len(self.devices):  # the outer region is over all devices: one turn

                def again(rank: int, value: int, *state: int) -> tuple[int, int]:
                    results = [device(rank, (value + turn) % MODULUS, *state) for turn in range(turns)]
                    return sum(result for result, _ in results), sum(x for _, x in results)

                ys, x = self._turn(label, again, values, *state)
                return ys, x if turns == 1 else state[-1]
            results = [
                self._turn(label, device, [(value + turn) % MODULUS for value in values], *state)
                for turn in range(turns)
            ]
        return [sum(each) for each in zip(*(ys for ys, _ in results), strict=True)], (
            results[0][1] if turns == 1 else state[-1]
        )

    def _parts_of(self, form: str) -> list[tuple[int, ...]]:
        """The devices of each part of a region; mostly there is one."""
        columns = len(self.devices) // self._rows
        if form == "inner":
            return [(device,) for device in self._part]
        if form == "rows":
            return [self.devices[start : start + columns] for start in range(0, len(self.devices), columns)]
        if form == "columns":
            return [self.devices[start::columns] for start in range(columns)]
        return [(device,) for device in self.devices]

    @contextlib.contextmanager
    def _only(self, parts: Sequence[tuple[int, ...]]) -> Iterator[None]:
        """These are all, each a part; its first device speaks."""
        before = self.devices, self._parts
        self.devices, self._parts = tuple(part[0] for part in parts), parts
        try:
            yield
        finally:
            self.devices, self._parts = before

    def _shards(self, values: Sequence[int], sharded: bool) -> list[tuple[int, str, np.ndarray]]:
        """What each device has of an array, by device; if all have the same, the first of them shows it."""
        if not sharded:
            return [(self.devices[0], f"[0:{len(values)}]", np.array(values))]
        each = len(values) // len(self.devices)
        starts = [(device, each * rank) for rank, device in enumerate(self.devices)]
        return [
            (device, f"[{start}:{start + each}]", np.array(values[start : start + each]))
            for device, start in sorted(starts)
        ]

    def _turn(
        self, label: str, device: Callable[..., tuple[int, int]], values: Sequence[int], *state: int
    ) -> tuple[list[int], int]:
        """The devices' results, and the sum of their `x`."""
        around, parts = self._steps, self._parts
        of_devices: list[list[oracle.Step]] = [[] for _ in parts]

        def run(rank: int) -> tuple[int, int]:
            self._steps = None if around is None else of_devices[rank]
            return device(rank, values[rank], *state)

        results = self._on_devices(label, run)
        if around is not None:

            def back(slope: int) -> int:
                with self._only(parts):
                    return sum(self._on_devices(label, lambda rank: self._back(of_devices[rank], slope)))

            around.append(back)
        return [result for result, _ in results], sum(x for _, x in results) % MODULUS

    def _on_devices(self, label: str, run: Callable[[int], oracle.T]) -> list[oracle.T]:
        """What the devices do happens when all have run: by its number in the device's own order, then by device."""
        self._position[-1] += 1
        devices, parts, part = self.devices, self._parts, self._part
        lane, goes_back, kinds, loose = self._lane, self._goes_back, self._kinds, self._loose
        exchange, errors = _Exchange(len(devices)), []
        results: dict[int, oracle.T] = {}
        points: dict[int, list[oracle.Point]] = {}

        def on_device(rank: int) -> None:
            self._lane, self._goes_back, self._defers, self._kinds, self._loose = lane, goes_back, True, kinds, loose
            self._exchange, self._rank, self.devices, self._part = exchange, rank, devices, parts[rank]
            try:
                results[rank] = run(rank)
                points[rank] = self._points
            except threading.BrokenBarrierError:
                pass
            except BaseException as error:
                errors.append(error)
                exchange.barrier.abort()

        threads = [threading.Thread(target=on_device, args=(rank,)) for rank in range(len(devices))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        for rank, of_part in points.items():
            for device in parts[rank]:
                for place, lane, label_of_effect, happens in self._numbered(of_part, device, device == devices[rank]):
                    noted = functools.partial(self._on_device, label, device, happens)
                    at = (*self._position, place, device)
                    self._points.append((at, lane, label_of_effect, _OfOne(device, noted) if part else noted))
        if not self._lane and not self._defers:
            self._let_happen()
        return [results[rank] for rank in range(len(devices))]

    def _numbered(
        self, points: list[oracle.Point], device: int, speaks: bool
    ) -> Iterator[tuple[int, tuple[int, ...], str, Callable[[], object]]]:
        """What a device of a part does, each with its number. Lanes share one, but for those of a native call. What the
        part does has a number on each, and one speaks."""
        number, before = 0, None
        for position, lane, label, happens in sorted(points, key=lambda point: point[:2]):
            if isinstance(happens, _OfOne) and happens.device != device:
                continue
            kind = self._kinds.get(label.split(".", 1)[0], "unordered")
            if EFFECTS[kind] and (position != before or kind == "native"):
                number += 1
            before = position
            if speaks or isinstance(happens, _OfOne):
                yield number, lane, label, happens

    def _on_device(self, label: str, device: int, happens: Callable[[], object]) -> None:
        self.note_places()
        happens()
        place = (label, device) if label in self._loose else None
        self.places += [place] * (len(self.lines) - len(self.places))


@dataclass(frozen=True)
class _OfOne:
    """What one device of a part does, in a region inside."""

    device: int
    happens: Callable[[], object]

    def __call__(self) -> None:
        self.happens()


BRANCHES = (Cond, Switch, While)


def _branches(tree: object) -> bool:
    """Whether there are branches or loops whose predicate may differ between devices, or lanes."""
    return any(
        isinstance(s, BRANCHES) or (isinstance(s, Fori) and not isinstance(s.trips, int)) for s in statements(tree)
    )


def is_loose(region: Region, calls: Mapping[str, object], inside: Sequence[Statement]) -> bool:
    """Whether only the order of each device's own effects in this region is known, by what may be in functions too.

    A device counts what lanes skip, in branches and loops that are made for others' sake. And where devices take ways
    of their own and also talk to each other, what is waited for may come before its turn. JAX talks by itself where
    something is differentiated that all devices have the same of.
    """
    whole = (region.body, tuple(body for name, body in calls.items() if _is_called(name, region)))
    waits = any(isinstance(s, Callback) and s.awaited for s in statements(whole))
    talks = any(isinstance(s, Talk | CustomRule) for s in statements(whole))
    if any(isinstance(s, Vmap) and _branches((s, whole[1])) for s in statements(whole)):
        return True
    if any(isinstance(s, Vmap) for s in inside) and (_branches(whole) or _has_native(whole)):
        return True
    return (talks or any(isinstance(s, Derivative) for s in inside)) and waits and _branches(whole)


def _has_native(tree: object) -> bool:
    return any(isinstance(s, Effect) and s.kind.startswith("native") for s in statements(tree))


def _is_called(name: str, tree: object) -> bool:
    return any(isinstance(s, oracle.Call) for s in statements(tree))


@functools.lru_cache(maxsize=256)
def loose_regions(program: Program) -> frozenset[str]:
    calls = {function.name: function.body for function in program.functions}
    found = set()

    def look(tree: object, inside: tuple[Statement, ...]) -> None:
        if isinstance(tree, tuple):
            for item in tree:
                look(item, inside)
        elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
            if isinstance(tree, Region) and is_loose(tree, calls, inside):  # and so are those around and inside
                nested = (tree, *statements(tree.body), *inside)
                found.update(region.label for region in nested if isinstance(region, Region))
            below = (*inside, tree) if hasattr(tree, "kinds") else inside
            for part in dataclasses.fields(tree):
                look(getattr(tree, part.name), below)  # type: ignore[arg-type]

    look(program.body, ())
    return frozenset(found)


# ---------------------------------------------------------------------------------------------------------------------
# Cases


@dataclass(frozen=True)
class MeshRun(Run):
    """One dispatch of a program on several devices."""

    placing: Placing = Placing((0,))


@dataclass(frozen=True)
class Outside:
    """An effect outside of any program, or a barrier."""

    label: str  # none: a barrier
    value: int = 0


Item = Run | Outside


@dataclass(frozen=True)
class DeviceCase:
    """Sequences, each by a thread of its own if there are several."""

    sequences: tuple[tuple[Item, ...], ...]
    capture: bool = False
    order: str = "thread"

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(item for sequence in self.sequences for item in sequence if isinstance(item, Run))

    def kinds(self) -> tuple[str, ...]:
        placings = [run.placing for run in self.runs if isinstance(run, MeshRun)]
        found = ["capture"] * self.capture + [f"order_{self.order}"] * (self.order != "thread")
        found += [f"threads_{len(self.sequences)}"] * (len(self.sequences) > 1)
        found += ["explicit"] * any(p.explicit for p in placings)
        found += ["permuted"] * any(list(p.devices) != sorted(p.devices) for p in placings)
        found += ["changing_devices"] * (len({p.devices for p in placings}) > 1)
        found += ["mixed"] * (bool(placings) and len(placings) < len(self.runs))
        found += ["loose"] * any(loose_regions(run.program) for run in self.runs)
        items = [item for sequence in self.sequences for item in sequence]
        found += ["outside"] * any(isinstance(item, Outside) and bool(item.label) for item in items)
        found += ["barriers"] * any(isinstance(item, Outside) and not item.label for item in items)
        found += [f"devices_{size}" for size in sorted({len(p.devices) for p in placings})]
        return (*found, *(f"entry_{entry}" for entry in sorted({p.entry for p in placings})))


def expect(sequence: Sequence[Item]) -> tuple[Outcome, list[tuple[str, int] | None]]:
    """What one thread's sequence should do, and of which loose region and device each line is."""
    outcome, reading = Outcome(), DeviceReading()
    state: tuple[int, ...] = ()
    number = 0
    for item in sequence:
        if isinstance(item, Outside):
            if item.label:
                reading.lines.append(f"{item.label} {item.value}")
            continue
        state = state if item.state is None else item.state
        try:
            placing = item.placing if isinstance(item, MeshRun) else None
            state = reading.run(item.program, state, number, placing)
            outcome.states.append(state)
        except Failure as failure:
            outcome.states.append(str(failure))
        number += 1
    reading.note_places()
    outcome.lines, outcome.errors = reading.lines, reading.failures
    return outcome, reading.places


def _jitted(item: Run, runner: Runner, host: Host) -> Callable[..., State]:
    """A function of the dispatch number and the registers, which puts them where they belong."""
    if not isinstance(item, MeshRun):
        jitted = runner.jit(oracle.to_jax(item.program, runner, host))
        device = None if item.device is None else jax.devices()[item.device]

        def run(number: Any, *state: Any) -> State:
            if device is None:
                return jitted(number, *state)
            if item.by_default:
                with jax.default_device(device):
                    return jitted(number, *(np.asarray(value) for value in state))
            return jitted(*jax.device_put((number, *state), device))

        return run

    placing = item.placing
    fun = oracle.to_jax(item.program, runner, host, {"@placing": placing})
    everywhere, rows = placing.shard(False, P()), placing.shard(False)

    def packed(number: Any, registers: Any) -> State:
        if placing.explicit:
            registers = placing.constrain(registers, False, P())
        return fun(number, *(registers[j] for j in range(len(REGISTERS))))

    def pack(state: State) -> Any:
        """The registers and zeros, one for each device at least."""
        size = DEVICES * math.ceil(len(REGISTERS) / DEVICES)
        return np.array([*map(int, state), *[0] * (size - len(REGISTERS))], np.int32)

    options = {"in_shardings": (everywhere, rows)} if placing.entry == "in_shardings" else {}
    jitted = runner.jit(fun if placing.entry in ("replicated", "uncommitted") else packed, **options)

    def run_there(number: Any, *state: Any) -> State:
        with jax.set_mesh(placing.mesh(False)) if placing.explicit else contextlib.nullcontext():
            if placing.entry == "replicated":
                return jitted(*jax.device_put((number, *state), everywhere))
            if placing.entry == "uncommitted":
                return jitted(number, *(np.asarray(value) for value in state))
            if placing.entry == "sharded":
                return jitted(jax.device_put(number, everywhere), jax.device_put(pack(state), rows))
            return jitted(number, pack(state))

    return run_there


def _dispatch(sequence: Sequence[Item], runner: Runner, outcome: Outcome) -> None:
    """Does what the sequence says, without waiting but where it says so, and at the end."""
    host = Host(oracle.write_line, runner.actions)
    jitted: dict[Any, Callable[..., State]] = {}
    results: list[State | str] = []
    state: State = ()

    def barrier() -> None:
        try:
            runner.barrier()
        except* runner.error as group:
            outcome.errors += [oracle._label_of(error, host) for error in group.exceptions]

    for item in sequence:
        if isinstance(item, Outside):
            if item.label:
                runner.emit["ordered"](item.label, (np.int32(item.value),))
            else:
                barrier()
            continue
        state = state if item.state is None else tuple(map(np.int32, item.state))
        key = dataclasses.replace(item, state=None)
        if key not in jitted:
            jitted[key] = _jitted(item, runner, host)
        number = len(results)
        try:
            state = tuple(jitted[key](np.int32(number), *state))
            if isinstance(item, MeshRun) and item.placing.explicit:  # elsewhere JAX does not take what has such a type
                state = tuple(map(np.asarray, state))
            results.append(state)
        except runner.error as error:
            results.append(oracle._label_of(error, host))
    barrier()
    outcome.states = [state if isinstance(state, str) else tuple(int(value) for value in state) for state in results]


def observe(case: DeviceCase, runner: Runner) -> tuple[list[Outcome], list[str], list[tuple[str, int]]]:
    """Runs the case. Returns what each thread has, all lines, and the records that were captured: text and device."""
    outcomes = [Outcome() for _ in case.sequences]
    failed: list[BaseException] = []
    records: Any = []

    def run(number: int) -> None:
        try:
            _dispatch(case.sequences[number], runner, outcomes[number])
        except BaseException as error:
            failed.append(error)

    with contextlib.redirect_stdout(io.StringIO()) as written, oracle._logging(), contextlib.ExitStack() as stack:
        import effects as fx

        stack.enter_context(fx.config.override(order=case.order))
        if len(case.sequences) > 1:
            threads = [threading.Thread(target=run, args=(number,)) for number in range(len(case.sequences))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        elif case.capture:
            with fx.capture() as captured:
                run(0)
            records = captured
        else:
            run(0)
    if failed:
        raise failed[0]
    found = [(record.text.split("(", 1)[0], record.device) for record in records]
    return outcomes, written.getvalue().splitlines(), found


class NotInJax(Exception):
    """JAX refuses the case without its effects too."""


def _jax_refuses(case: DeviceCase, runner: Runner, error: Exception) -> bool:
    """Whether JAX raises the same if nothing in the case has an effect, since types in regions are its own affair."""

    def nothing(*args: Any, **kwargs: Any) -> None: ...

    def callback(fn: Any, results: Any, *args: Any, **kwargs: Any) -> Any:
        zeros = lambda shape: compat.as_per_device(jnp.zeros(shape.shape, shape.dtype))  # noqa: E731
        return None if results is None else jax.tree.map(zeros, results)

    silent = dataclasses.replace(
        runner,
        jit=jax.jit,
        emit=dict.fromkeys(runner.emit, nothing),
        log=nothing,
        print_grad=lambda label, x: x,
        callback=callback,
        barrier=nothing,
    )
    try:
        observe(case, silent)
    except Exception as other:
        return type(other) is type(error) and str(other).split("\n", 1)[0] == str(error).split("\n", 1)[0]
    return False


def check(case: DeviceCase, runner: Runner | None = None) -> list[Outcome]:
    """Runs the case and raises an AssertionError that shows it and the difference, if there is one.

    Returns:
      What was expected of each thread, and seen.

    Raises:
      NotInJax: if JAX raises what the case does, without its effects too.
    """
    runner = oracle.library() if runner is None else runner
    expected = [expect(sequence) for sequence in case.sequences]
    try:
        outcomes, lines, records = observe(case, runner)
    except Exception as error:
        with contextlib.suppress(Exception):
            runner.barrier()
        if _jax_refuses(case, runner, error):
            raise NotInJax(str(error)) from error
        raise AssertionError(f"the case failed\n\n{traceback.format_exc()}\n{describe(case)}") from error
    complaints = []
    for number, ((want, places), seen) in enumerate(zip(expected, outcomes, strict=True)):
        several = len(outcomes) > 1
        seen.lines = [line for line in lines if not several or line.startswith(f"t{number}")]
        complaints += _compare(case.sequences[number], want, places, seen, records if case.capture else None)
    if complaints:
        raise AssertionError("\n".join([*complaints, "", describe(case)]))
    return [outcome for outcome, _ in expected]


def _compare(
    sequence: Sequence[Item],
    want: Outcome,
    places: Sequence[tuple[str, int] | None],
    seen: Outcome,
    records: list[tuple[str, int]] | None,
) -> list[str]:
    """What is wrong with `seen`: its lines, and in loose regions each device's records."""
    runs = Case(tuple(item for item in sequence if isinstance(item, Run)))
    unordered = {label for label, kind in oracle.kinds_of_labels(runs).items() if not EFFECTS[kind]} | {"u"}

    def split(lines: Sequence[str]) -> tuple[list[str], list[str]]:
        known = [line for line in lines if oracle.label_of(line) not in unordered]
        return known, [line for line in lines if oracle.label_of(line) in unordered]

    (want_ordered, want_rest), (seen_ordered, seen_rest) = split(want.lines), split(seen.lines)
    kept = [place for line, place in zip(want.lines, places, strict=True) if oracle.label_of(line) not in unordered]
    start = 0
    while start < len(kept):  # in a loose region lines may have any order
        end = start + 1
        if kept[start] is not None:
            while end < len(kept) and kept[end] is not None:
                end += 1
            want_ordered[start:end] = sorted(want_ordered[start:end])
            seen_ordered[start:end] = sorted(seen_ordered[start:end])
        start = end
    complaints = oracle.compare(
        runs,
        dataclasses.replace(want, lines=want_ordered + want_rest),
        dataclasses.replace(seen, lines=seen_ordered + seen_rest),
    )
    if records is not None:
        complaints += _compare_devices(runs, want, places, records, unordered)
    return complaints


def _compare_devices(
    runs: Case,
    want: Outcome,
    places: Sequence[tuple[str, int] | None],
    records: list[tuple[str, int]],
    unordered: set[str],
) -> list[str]:
    """In loose regions, each device's effects must have their order."""
    callbacks = {s.label for s in statements(tuple(run.program for run in runs.runs)) if isinstance(s, Callback)}
    of_regions = {
        s.label
        for run in runs.runs
        for region in statements(run.program)
        if isinstance(region, Region) and region.label in loose_regions(run.program)
        for s in (*statements(region.body), *statements(run.program.functions))
        if getattr(s, "kind", "") in ("ordered", "native", "queued", "sync")
    } - unordered
    complaints = []
    for device in sorted({place[1] for place in places if place is not None}):
        wanted = [
            line.split(" ", 1)[0] if oracle.label_of(line) in callbacks else line
            for line, place in zip(want.lines, places, strict=True)
            if place is not None and place[1] == device and line.split(" ", 1)[0] in of_regions
        ]
        inside = set(map(oracle.label_of, wanted))
        got = [text for text, at in records if at == device and text.split(" ", 1)[0] in inside]
        if any(
            place is None and oracle.label_of(line) in inside for line, place in zip(want.lines, places, strict=True)
        ):
            continue  # some are also from elsewhere: a function that is called in there too
        if wanted != got:
            complaints.append(f"device {device}: expected {wanted}\n        seen {got}")
    return complaints


def describe(case: DeviceCase) -> str:
    """The case as Python source: each program once, then what each thread does."""
    numbers = {program: number for number, program in enumerate(dict.fromkeys(run.program for run in case.runs))}
    texts = [f"# program {number}\n{render(program)}" for program, number in numbers.items()]
    for thread, sequence in enumerate(case.sequences):
        for item in sequence:
            if isinstance(item, Outside):
                text = f"print {item.label} {item.value}" if item.label else "barrier"
            else:
                where = f" on {item.placing}" if isinstance(item, MeshRun) else oracle._where(item)
                text = f"program {numbers[item.program]} from {item.state or 'the state before'}{where}"
            texts.append(f"# thread {thread}: {text}")
    return "\n".join([*texts, f"# {', '.join(case.kinds())}"])


# ---------------------------------------------------------------------------------------------------------------------
# Generating


@dataclass(frozen=True)
class DevicePlace(Place):
    """Where a statement of a program over several devices is generated."""

    regions: bool = True  # whether regions may be
    mode: str = ""  # of the region around, if there is one; or of a function
    together: bool = False  # whether all devices of the region come here
    checked: bool = False  # whether JAX may check which values differ between its devices
    part: bool = False  # whether the region around is over one axis of two

    def inside_predicate(self, *values: str) -> DevicePlace:
        inner: Any = super().inside_predicate(*values)
        return dataclasses.replace(inner, together=False)

    def inside_derivative(self, form: str) -> DevicePlace:
        inner: Any = super().inside_derivative(form)
        return dataclasses.replace(inner, together=False, part=False)

    def inside_rule(self) -> DevicePlace:
        inner: Any = super().inside_rule()
        return dataclasses.replace(inner, together=False, regions=False)

    def inside_vmap(self, lane: str) -> DevicePlace:
        inner: Any = super().inside_vmap(lane)
        return dataclasses.replace(inner, together=False)


class DeviceGenerator(oracle.Generator):
    """One program over several devices."""

    place = DevicePlace

    def __init__(self, draw: Draw, prefix: str, features: frozenset[str], failure: str, pmap: bool):
        super().__init__(draw, prefix, features, failure)
        self.forms = tuple(form for form in REGIONS if form != "inner" and (pmap or form != "pmap"))
        without = (self.sync_unordered,)  # what JAX leaves open on several devices
        self.leaves = [leaf for leaf in self.leaves if leaf not in without]
        self.no_region_yet = True

    def leaves_at(self, place: Any) -> Sequence[Callable[[Any], Statement]]:
        leaves = self.leaves
        if not place.mode:
            return [*leaves, *[self.whole] * 2] if place.regions else leaves
        if place.mode == "talk_ways":
            leaves = [leaf for leaf in leaves if leaf != self.sync]
        if place.together and place.mode in ("talk_calls", "talk_ways", "both"):
            leaves = [*leaves, *[self.talk] * 5]
        return leaves

    def first_leaves_at(self, place: Any) -> Sequence[Callable[[Any], Statement]]:
        leaves = super().first_leaves_at(place)
        return [leaf for leaf in leaves if leaf != self.sync] if place.mode == "talk_ways" else leaves

    def nests_at(self, place: Any) -> Sequence[Callable[[Any], Statement]]:
        if place.part and place.together:
            return [*self.nests, *[self.inner] * 12] if place.mode != "talk_calls" else [self.scan, self.inner]
        if place.mode == "talk_calls":  # no ways of each device's own
            return [self.scan, self.scan, self.map, self.wrapped, self.wrapped, self.ref_block]
        if place.regions:
            more = [self.region] * (40 if self.no_region_yet else 12)
            return [*self.nests, *more]
        return self.nests

    def callable_from(self, place: Any) -> list[str]:
        if place.mode in MODES and (place.mode != "wide" or place.checked):
            return []  # they may have what the mode has not, or types that JAX would refuse
        return super().callable_from(place)

    def anywhere(self) -> Place:
        return dataclasses.replace(super().anywhere(), regions=False, mode="function", checked=True)  # type: ignore[call-arg]

    def program(self, size: int) -> Program:
        made = super().program(size)
        if self.no_region_yet:  # it has one at least
            self.left = 4
            made = dataclasses.replace(made, body=(self.region(self.place(depth=3)), *made.body))
        return made

    def callback(self, place: Any, kind: str, **parameters: Any) -> Callback:
        fails = self.fails
        made = super().callback(place, kind, **parameters)
        if kind != "sync" or not (place.mode or place.lanes):
            return made
        self.fails = fails  # where devices may wait for each other, and where nobody knows whose turn it is, none does
        return dataclasses.replace(made, remembers=False, fails_at=0)

    def while_(self, place: Any) -> Statement:
        return super().while_(dataclasses.replace(place, together=False))

    def solve(self, place: Any) -> Statement:
        if place.checked:
            return self.wrapped(place)  # JAX's types of the solver and of the operator do not match
        return super().solve(dataclasses.replace(place, together=False, regions=False))

    def ref_block(self, place: Any) -> Statement:
        return super().ref_block(dataclasses.replace(place, regions=False))

    def talk(self, place: Any) -> Statement:
        return Talk(self.draw.choice(TALKS), self.expression(place), self.register())

    def whole(self, place: Any) -> Statement:
        xs = tuple(self.draw.integer(0, 9) for _ in range(DEVICES))
        sharded, two_axes = bool(self.draw.integer(0, 2)), bool(self.draw.integer(0, 1))
        per_shard = not place.lanes and bool(self.draw.integer(0, 1))  # lanes stay together
        return Whole(self.label(), xs, self.atom(place), sharded, two_axes, per_shard, self.register())

    def region(self, place: Any) -> Statement:
        self.no_region_yet = False
        mode = self.draw.choice((*["wide"] * 3, *["talk_calls"] * 2, *["talk_ways"] * 2, *["both"] * self.rarely()))
        # JAX has no derivative of a region inside a region.
        differentiated = place.forward or place.backward
        form = self.draw.choice([form for form in self.forms if not (differentiated and form == "nested")])
        return self.region_of(place, form, mode, bool(self.draw.integer(0, 1)), form in PARTS and not differentiated)

    def inner(self, place: Any) -> Statement:
        return self.region_of(place, "inner", place.mode, place.checked, False)

    def region_of(self, place: Any, form: str, mode: str, check_vma: bool, part: bool) -> Statement:
        device, variable, label = self.variable("d"), self.variable("y"), f"r{self.variable('')}"
        inner = place.inside(device, variable)
        # JAX checks a ref against what it was made of.
        inner = inner.without_refs(may_make=() if check_vma else place.may_make)
        inner = dataclasses.replace(inner, regions=False, mode=mode, together=True, checked=check_vma, part=part)
        inner = dataclasses.replace(inner, depth=max(1, inner.depth))
        xs = tuple(self.draw.integer(0, 9) for _ in range(DEVICES))
        turns = self.draw.choice((1, 1, 1, 2))
        base = self.atom(place)
        self.left = max(self.left, 2)
        body = self.block(inner, 4, effect=True)
        result, target = self.expression(inner), self.register()
        return Region(
            label, form, check_vma, turns, device, variable, xs, base, place.values, body, result, target, mode
        )

    def rarely(self) -> bool:
        return self.draw.integer(0, 3) == 3


def _placing(draw: Draw, pmap: bool) -> Placing:
    count = draw.choice((2, 4, 8, 4, 2))
    numbers = list(range(DEVICES))
    chosen = []
    permuted = not pmap and draw.integer(0, 2) > 0
    for _ in range(count):
        chosen.append(numbers.pop(draw.integer(0, len(numbers) - 1) if permuted else 0))
    rows = draw.choice([rows for rows in (2, 1, 4) if count % rows == 0])
    explicit = not pmap and draw.integer(0, 4) == 4
    return Placing(tuple(chosen), rows, explicit, draw.choice(ENTRIES))


THREADED = FEATURES - {"nested"}  # what a callback does has no thread's name


def _sequence(draw: Draw, prefix: str, size: int, features: frozenset[str], most: int) -> tuple[Item, ...]:
    """Dispatches of a few programs, on one device or on several, and what is between them."""
    failure = draw.choice(("none", "none", "exact"))
    programs: list[tuple[Program, bool | None]] = []  # with whether it has a `pmap`, if it is for several devices

    def program() -> tuple[Program, bool | None]:
        name = f"{prefix}{'ABCDEF'[len(programs)]}"
        if draw.integer(0, 3) == 3:
            made = oracle.Generator(draw, name, features, failure).program(max(2, size // 2))
            programs.append((made, None))
        else:
            pmap = draw.integer(0, 5) == 5
            made = DeviceGenerator(draw, name, features, failure, pmap).program(size)
            has_pmap = any(isinstance(s, Region) and s.form == "pmap" for s in statements(made))
            programs.append((made, has_pmap))
        return programs[-1]

    def run(number: int) -> Run:
        made, pmap = draw.choice(programs) if programs and draw.integer(0, 1) else program()
        fresh = number == 0 or draw.integer(0, 1) == 0
        state = tuple(draw.integer(0, MODULUS - 1) for _ in REGISTERS) if fresh else None
        if pmap is None:
            return Run(made, state, draw.integer(0, DEVICES - 1), draw.integer(0, 2) == 2)
        placing = draw.choice(placings) if placings and draw.integer(0, 1) and not pmap else _placing(draw, pmap)
        placings.append(placing)
        return MeshRun(made, state, placing=placing)

    placings: list[Placing] = []
    items: list[Item] = []
    for number in range(draw.choice(range(1, most + 1))):
        items.append(run(number))
        if draw.integer(0, 3) == 3:
            items.append(Outside(f"{prefix}Z{number}", draw.integer(0, 9)))
        if draw.integer(0, 4) == 4:
            items.append(Outside(""))
    return tuple(items)


def _case(draw: Draw, size: int) -> DeviceCase:
    if draw.integer(0, 7) == 7:
        count = draw.choice((2, 3))
        return DeviceCase(tuple(_sequence(draw, f"t{n}", max(3, size // 2), THREADED, 3) for n in range(count)))
    made = DeviceCase((_sequence(draw, "", size, FEATURES - {"context"}, 4),))
    loose = any(loose_regions(run.program) for run in made.runs)
    order = "process" if draw.integer(0, 9) == 9 else "thread"
    return dataclasses.replace(made, capture=loose or draw.integer(0, 4) == 4, order=order)


def case_number(seed: int, number: int) -> DeviceCase:
    """Case `number` of the bulk run with `seed`: the same on every machine."""
    rng = random.Random(f"devices:{seed}:{number}")
    return _case(RandomDraw(rng), rng.randint(3, 9))


@st.composite
def cases(draw: Callable[[st.SearchStrategy[Any]], Any], max_size: int = 6) -> DeviceCase:
    """The hypothesis strategy for `check`."""
    return _case(HypothesisDraw(draw), draw(st.integers(2, max_size)))


# ---------------------------------------------------------------------------------------------------------------------
# In bulk

CHUNK = 40  # cases of one process
STUCK_AFTER = 100.0  # seconds for one case


def _count(tally: Tally, case: DeviceCase, outcomes: Sequence[Outcome]) -> None:
    lines = [line for outcome in outcomes for line in outcome.lines]
    states = [state for outcome in outcomes for state in outcome.states]
    errors = [error for outcome in outcomes for error in outcome.errors]
    whole: Any = case
    tally.count(whole, Outcome(states, lines, errors))


def _run_chunk(seed: int, numbers: range, folder: Path) -> None:
    """Checks some cases, and leaves in the folder the tally after each, and the number of that which runs."""
    tally, runner = Tally(), oracle.library()
    for number in numbers:
        (folder / "running").write_text(str(number))
        faulthandler.dump_traceback_later(STUCK_AFTER, exit=True)
        case = case_number(seed, number)
        outcomes: list[Outcome] = []
        try:
            outcomes = check(case, runner)
        except NotInJax:
            tally.errors["cases that JAX refuses without effects too"] += 1
        except AssertionError as error:
            tally.failures.append((number, str(error)))
        _count(tally, case, outcomes)
        tally.peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        (folder / "partial").write_bytes(pickle.dumps(tally))
        (folder / "partial").replace(folder / "tally")
    faulthandler.cancel_dump_traceback_later()
    (folder / "running").write_text("")


def _chunks(seed: int, programs: int) -> list[range]:
    """The numbers of as many cases as hold that many programs, in chunks."""
    found = number = 0
    while found < programs:
        found += len({run.program for run in case_number(seed, number).runs})
        number += 1
    return [range(start, min(start + CHUNK, number)) for start in range(0, number, CHUNK)]


def _chunk_in_child(seed: int, numbers: range) -> Tally:
    """Checks a chunk in a process of its own. If it dies, what it was at has failed, and another goes on after that."""
    total = Tally()
    while numbers:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            command = [sys.executable, "-m", __spec__.name, "--seed", str(seed)]
            command += ["--chunk", str(numbers.start), str(numbers.stop), name]
            done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
            if (folder / "tally").exists():
                total.add(pickle.loads((folder / "tally").read_bytes()))
            at = (folder / "running").read_text() if (folder / "running").exists() else str(numbers.start)
            if done.returncode == 0 and not at:
                return total
            number = int(at or numbers.stop - 1)
            said = f"the process ended with {done.returncode}\n{done.stderr[-3000:]}"
            total.failures.append((number, f"{said}\n{describe(case_number(seed, number))}"))
            numbers = range(number + 1, numbers.stop)
    return total


def _run_all(seed: int, programs: int, jobs: int) -> Tally:
    total, started, shown = Tally(), time.monotonic(), 0.0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        chunks = [pool.submit(_chunk_in_child, seed, numbers) for numbers in _chunks(seed, programs)]
        for future in concurrent.futures.as_completed(chunks):
            tally = future.result()
            total.add(tally)
            for number, text in tally.failures:
                print(f"\n=== case {number} failed; again: {_again(seed, number)}\n{text}\n", flush=True)
            elapsed = time.monotonic() - started
            if elapsed - shown > 30:
                shown = elapsed
                rate = total.programs / elapsed
                print(f"{elapsed:6.0f} s  {total.programs} of {programs} programs, {rate:.1f}/s", flush=True)
    return total


def _again(seed: int, number: int) -> str:
    return f"python -m tests.oracle_devices --seed {seed} --only {number}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle_devices", description="Programs over devices.")
    parser.add_argument("--programs", type=int, default=200, help="how many programs to run, at least")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", type=int, metavar="K", help="run case K alone and show its source")
    parser.add_argument("--chunk", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={DEVICES}"
    if options.chunk is not None:
        start, stop, folder = options.chunk
        _run_chunk(options.seed, range(int(start), int(stop)), Path(folder))
        return 0
    if options.only is not None:
        case = case_number(options.seed, options.only)
        print(describe(case), flush=True)
        faulthandler.dump_traceback_later(STUCK_AFTER, exit=True)
        try:
            outcomes = check(case)
        except (AssertionError, NotInJax) as error:
            print(f"\n{type(error).__name__}: {error}")
            return int(isinstance(error, AssertionError))
        print(f"\nas promised: {sum(len(outcome.lines) for outcome in outcomes)} lines")
        return 0
    started = time.monotonic()
    total = _run_all(options.seed, options.programs, options.jobs)
    elapsed = time.monotonic() - started
    print(f"\n{total.programs} programs in {total.sequences} cases, {total.dispatches} dispatches")
    print(f"{elapsed:.0f} s, {total.programs / elapsed:.1f} programs/s, at most {total.peak_kib // 1024} MiB a process")
    for name in ("cases", "statements", "fired", "errors"):
        counts = getattr(total, name)
        print(f"{name}:", ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())))
    print(f"failed: {len(total.failures)}")
    for number, _ in sorted(total.failures):
        print("   ", _again(options.seed, number))
    return 0 if not total.failures else 1


if __name__ == "__main__":
    sys.exit(main())
