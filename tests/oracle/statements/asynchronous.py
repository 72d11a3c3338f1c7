"""Asynchronous operations: what is started here and done later, with statements in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax

from tests.oracle.jax_ import Scope, assign, fold, register, run_body, wrap
from tests.oracle.language import MODULUS, Block_, Expression, State
from tests.oracle.source import Source

I32 = jax.ShapeDtypeStruct((), np.int32)


@dataclass(frozen=True)
class InFlight:
    """An operation, with a block between its start and its done.

    A function of the host's prints its operands; that line is in the place of the done. A native handler that answers
    later does not, nor does what is computed at the start. All come to one number, which is folded into `target`; but
    of "async_x" it is `x` times the factor, with its derivative, and is added to `x`. With `turns` a loop carries the
    future: each turn runs the block, ends the operation, and starts it again.
    """

    label: str
    kind: str  # "async_host", "async_native", "async_values", or "async_x"
    operands: tuple[Expression, ...]
    turns: int | None  # None: no loop
    variable: str  # of the loop
    updates: int  # how many updates there are before each done
    body: Block_
    target: str
    factor: int = 1  # of "async_x"

    def kinds(self) -> tuple[str, ...]:
        found = [self.kind, "async_straight" if self.turns is None else "async_carried"]
        return (*found, *["async_update"] * (self.updates > 0))

    def python(self, out: Source) -> None:
        future = out.fresh("future")

        def start() -> None:
            if self.kind == "async_x":
                out.line(f"{future} = set_off(x, {self.factor})")
                return
            out.line(f"{future} = [{', '.join(operand.python() for operand in self.operands)}]")

        def done() -> None:
            if self.kind == "async_x":
                out.line(f"x = come_back({future}, x)")
                return
            if self.kind == "async_host":
                out.line(f"async_host({self.label!r}, *{future})")
            out.line(f"{self.target} = fold([fold({future}, 0)], {self.target})")

        start()
        if self.turns is None:
            out.body(self.body)
        else:
            with out.block(f"for {self.variable} in turns(range({self.turns})):  # carries a future"):
                out.body(self.body)
                done()
                start()
        done()

    def jax(self, scope: Scope, state: State) -> State:
        fx: Any = scope.runner.asynchronous

        def function(*values: Any) -> Any:
            scope.runner.emit["ordered"](self.label, values)
            return np.int32(sum((j + 1) * int(value) for j, value in enumerate(values)) % MODULUS)

        function.__qualname__ = function.__name__ = self.label

        def start(state: State, scope: Scope) -> Any:
            if self.kind == "async_x":
                return fx.async_start(lambda x: lax.mul(x, np.float32(self.factor)), state[-1])
            values = [lax.convert_element_type(operand.jax(scope, state), np.int32) for operand in self.operands]
            if self.kind == "async_host":
                return fx.async_callback(function, I32, *values)
            if self.kind == "async_native":
                return fx.async_start(fold_natively, jax.numpy.stack(values))
            return fx.async_start(lambda *values: fold(jax.numpy.stack([*values, np.int32(0)]), np.int32(0)), *values)

        def fold_natively(values: Any) -> Any:
            return fx.custom_call("oracle.fold", I32, values, modulus=np.int64(MODULUS), vmap_method="broadcast_all")

        def done(future: Any, state: State) -> State:
            for _ in range(self.updates):
                future = fx.async_update(future)
            number = fx.async_done(future)
            if self.kind == "async_x":
                return (*state[:-1], wrap(lax.add(state[-1], number)))
            return assign(state, self.target, fold(jax.numpy.stack([number]), register(state, self.target)))

        future = start(state, scope)
        if self.turns is None:
            return done(future, run_body(self.body, scope, state))

        def turn(i: Any, carry: tuple[Any, State]) -> tuple[Any, State]:
            future, state = carry
            here = scope.bind(**{self.variable: i})
            state = done(future, run_body(self.body, here, state))
            return start(state, here), state

        future, state = lax.fori_loop(0, self.turns, turn, (future, state))
        return done(future, state)
