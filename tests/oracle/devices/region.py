"""Regions: `shard_map`, or what JAX makes one of. Every device runs a region's block by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.oracle.devices.placing import P, Placing
from tests.oracle.jax_ import Scope, assign, fold, hold, register, run_body, shifted, wrap
from tests.oracle.language import MODULUS, REGISTERS, STATE, Block_, Expression, State

if TYPE_CHECKING:
    from tests.oracle.source import Source


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
        two_axes = self.form in ("two_axes", *PARTS)
        mesh = placing.mesh(two_axes)
        axes = mesh.axis_names
        if self.form in PARTS:
            axes = (axes[PARTS.index(self.form)],)
        count = math.prod(mesh.shape[axis] for axis in axes)
        around = {name: scope.names[name] for name in self.closes}
        entered = hold(state) if self.turns > 1 else state

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
        if placing.explicit:
            values = placing.constrain(values, two_axes, P(axes))
        if self.turns == 1:
            ys, xs = run(around, values, *entered)
        else:
            ys, xs = self._turns(run, around, values, entered)
        if placing.explicit:
            ys, xs = (placing.constrain(each, two_axes, P()) for each in (ys, xs))
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


def _part(region: Region, placing: Placing, mesh: Any, body: Callable[..., Any]) -> Callable[..., Any]:
    axis = mesh.axis_names[PARTS.index(region.form)]
    specs: dict[str, Any] = {"in_specs": (P(), P(axis), *[P()] * (len(REGISTERS) + 1)), "out_specs": (P(axis), P(axis))}
    return jax.shard_map(body, mesh=mesh, axis_names={axis}, check_vma=region.check_vma, **specs)


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
    "pmap": _pmap,
    "rows": _part,
    "columns": _part,
}

PARTS = ("rows", "columns")
"""Those over the first or second axis of two only."""

MODES = ("wide", "talk_calls", "talk_ways", "both")
"""What a region may have: everything but collectives; collectives and callbacks that are waited for; collectives, and
branches and loops of each device's own; or all of it."""
