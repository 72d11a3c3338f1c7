"""Collectives inside of regions, and prints of arrays that are sharded over the devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jax import lax

from tests.oracle.devices.placing import P
from tests.oracle.jax_ import Scope, assign, fold, register, shifted
from tests.oracle.language import MODULUS, Expression, State

if TYPE_CHECKING:
    from tests.oracle.source import Source


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
    by_jax: bool = False  # whether it is a print of JAX's own, which shows shards without device and index
    kind: ClassVar[str] = "ordered"

    def kinds(self) -> tuple[str, ...]:
        kind = "shards" if self.per_shard else "whole_sharded" if self.sharded else "whole"
        return (f"jax_{kind}" if self.by_jax else kind,)

    def python(self, out: Source) -> None:
        ys = out.fresh("ys")
        out.line(f"{ys} = [(y + {self.base.python()}) % {MODULUS} for y in {self.xs}]")
        if self.per_shard:
            out.line(f"for shard in shards({ys}, {self.sharded}):")
            out.line(f"    ordered({self.label!r}, *shard{'[-1:]' * self.by_jax})")
        else:
            out.line(f"ordered({self.label!r}, array({ys}))  # sharded: {self.sharded}")
        out.line(f"{self.target} = fold({ys}, {self.target})")

    def jax(self, scope: Scope, state: State) -> State:
        placing = scope.names["@placing"]
        array = shifted(self.xs, self.base.jax(scope, state))
        array = placing.constrain(array, self.two_axes, None if self.sharded else P())
        forms = ("jax_per_shard", "jax_print") if self.by_jax else ("per_shard", "ordered")
        scope.runner.emit[forms[0] if self.per_shard else forms[1]](self.label, (array,))
        if placing.explicit:
            array = placing.constrain(array, self.two_axes, P())
        return assign(state, self.target, fold(array, register(state, self.target)))
