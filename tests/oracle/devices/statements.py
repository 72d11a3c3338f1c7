"""Collectives inside of regions, and prints of arrays that are sharded over the devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jax import lax

from tests.oracle.devices.placing import P
from tests.oracle.jax_ import Scope, assign, fold, register, run_body, shifted
from tests.oracle.language import MODULUS, Block_, Expression, State

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
        self.add(out, f"talk({self.value.python()})")

    def add(self, out: Source, values: str) -> None:
        """Adds what becomes of the values of all devices."""
        what = {"psum": f"sum({values})", "ppermute": f"{values}[neighbour()]", "all_gather": f"fold({values}, 0)"}
        out.line(f"{self.target} = ({self.target} + {what[self.form]}) % {MODULUS}")

    def jax(self, scope: Scope, state: State) -> State:
        return self.added(self.call(lax, "", scope, state), state)

    def call(self, collectives: Any, suffix: str, scope: Scope, state: State) -> Any:
        """Calls the collective, or starts it."""
        axes, count = scope.names["@axes"], scope.names["@count"]
        value = self.value.jax(scope, state) + lax.axis_index(axes) * 0
        to_the_next = ([(device, (device + 1) % count) for device in range(count)],) * (self.form == "ppermute")
        return getattr(collectives, f"{self.form}{suffix}")(value, axes, *to_the_next)

    def added(self, got: Any, state: State) -> State:
        got = fold(got, np.int32(0)) if self.form == "all_gather" else got
        return assign(state, self.target, lax.rem(lax.add(register(state, self.target), got), np.int32(MODULUS)))


TALKS = ("psum", "ppermute", "all_gather")


@dataclass(frozen=True)
class TalkInFlight(Talk):
    """A collective in two parts, with a block between its start and its done."""

    body: Block_
    updated: bool

    def kinds(self) -> tuple[str, ...]:
        return (f"{self.form}_start", *["talk_update"] * self.updated)

    def python(self, out: Source) -> None:
        values = out.fresh("values")
        out.line(f"{values} = talk({self.value.python()})  # is under way")
        out.body(self.body)
        self.add(out, values)

    def jax(self, scope: Scope, state: State) -> State:
        fx: Any = scope.runner.asynchronous
        future = self.call(fx, "_start", scope, state)
        state = run_body(self.body, scope, state)
        if self.updated:
            future = fx.async_update(future)
        return self.added(fx.async_done(future), state)


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
