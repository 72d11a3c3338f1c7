"""What has to do with the derivative of `x`, the one value that can be differentiated."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.oracle.jax_ import Scope, assign, fold, hold, register, remainder, run_body, wrap
from tests.oracle.language import STATE, Block_, Expression, State

if TYPE_CHECKING:
    from tests.oracle.source import Source

BACKWARD = ("grad", "value_and_grad", "vjp", "jacrev", "hessian")
FORWARD = ("jvp", "linearize", "jacfwd", "hessian")


@dataclass(frozen=True)
class Scale:
    """`x` times one of `factors`, plus something."""

    factors: tuple[int, ...]
    index: Expression
    shift: Expression

    def kinds(self) -> tuple[str, ...]:
        return ("scale",)

    def python(self, out: Source) -> None:
        factor = f"{self.factors}[({self.index.python()}) % {len(self.factors)}]"
        out.line(f"x = scale(x, {factor}, {self.shift.python()})")

    def jax(self, scope: Scope, state: State) -> State:
        index = remainder(self.index, len(self.factors), scope, state)
        factor = jnp.stack([np.float32(factor) for factor in self.factors])[index]  # no constant, see `fold`
        shift = lax.convert_element_type(self.shift.jax(scope, state), np.float32)
        return (*state[:-1], wrap(lax.add(lax.mul(state[-1], factor), shift)))


@dataclass(frozen=True)
class PrintGrad:
    """The identity of `x`, which prints the derivative where it comes by backward."""

    label: str
    kind: ClassVar[str] = "print_grad"

    def kinds(self) -> tuple[str, ...]:
        return (self.kind,)

    def python(self, out: Source) -> None:
        out.line(f"x = print_grad({self.label!r}, x)")

    def jax(self, scope: Scope, state: State) -> State:
        return (*state[:-1], scope.runner.print_grad(self.label, state[-1]))


@dataclass(frozen=True)
class CustomRule:
    """A block with statements of its own for where it is differentiated, forward and backward.

    The backward rule is given the state as it was before, and shows the derivative first.
    """

    label: str
    body: Block_
    forward: Block_
    backward: Block_
    factor: int
    kind: ClassVar[str] = "ordered"

    def kinds(self) -> tuple[str, ...]:
        return ("custom_rule",)

    def python(self, out: Source) -> None:
        body, forward, backward = (out.fresh(name) for name in ("primal", "forward", "backward"))
        out.function(body, self.body)
        out.function(forward, self.forward)
        with out.block(f"def {backward}(slope, {STATE}):"):
            out.line(f"ordered({self.label!r}, slope)")
            out.body(self.backward)
            out.line(f"return {self.factor} * slope")
        out.line(f"{STATE} = custom_rule({body}, {forward}, {backward}, {STATE})")

    def jax(self, scope: Scope, state: State) -> State:
        def backward(state: State, slopes: State) -> State:
            scope.runner.emit["ordered"](self.label, slopes[-1:])
            run_body(self.backward, Scope(scope.runner, scope.host, {}, {}, scope.settle), state)
            return (*slopes[:-1], slopes[-1] * np.float32(self.factor))

        wrapped = jax.custom_vjp(lambda *state: run_body(self.body, scope, state))
        wrapped.defvjp(lambda *state: (run_body(self.forward, scope, state), state), backward)
        return wrapped(*state)


@dataclass(frozen=True)
class Derivative:
    """A block that is differentiated with regard to `x`, and then a print of the derivative; `x` stays as it is."""

    form: str
    label: str
    body: Block_
    target: str
    kind: ClassVar[str] = "ordered"

    def kinds(self) -> tuple[str, ...]:
        return (self.form,)

    def python(self, out: Source) -> None:
        name, y = out.fresh("differentiated"), out.fresh("y")
        out.function(name, self.body)
        out.line(f"a, b, c, {y} = {self.form}({self.label!r}, {name}, {STATE})")
        out.line(f"{self.target} = fold([{y}], {self.target})")

    def jax(self, scope: Scope, state: State) -> State:
        *registers, x = hold(state)

        def fun(x: Any) -> tuple[Any, State]:
            after = run_body(self.body, scope, (*registers, x))
            y = after[-1]
            if self.form == "hessian":  # of something whose second derivative is twice the first one of what it is of
                y = lax.mul(lax.add(x, np.float32(1)), y)
            if self.form == "jacrev":
                y = jnp.stack([y, y * np.float32(2)])
            return y, after

        slope, after = self._slope(scope, fun, x)
        scope.runner.emit["ordered"](self.label, tuple(slope) if self.form == "jacrev" else (slope,))
        y = lax.reshape(lax.convert_element_type(after[-1], np.int32), (1,))
        after = (*after[:-1], state[-1])
        return assign(after, self.target, fold(y, register(after, self.target)))

    def _slope(self, scope: Scope, fun: Callable[[Any], tuple[Any, State]], x: Any) -> tuple[Any, State]:
        between = functools.partial(scope.runner.emit["ordered"], f"{self.label}.between")
        one = lax.add(lax.mul(lax.stop_gradient(x), np.float32(0)), np.float32(1))  # of the type of `x`
        if self.form == "value_and_grad":
            (_, after), slope = jax.value_and_grad(fun, has_aux=True)(x)
        elif self.form == "vjp":
            y, pull, after = jax.vjp(fun, x, has_aux=True)
            between((y,))
            (slope,) = pull(one)
        elif self.form == "jvp":
            _, slope, after = jax.jvp(fun, (x,), (one,), has_aux=True)
        elif self.form == "linearize":
            y, push, after = jax.linearize(fun, x, has_aux=True)
            between((y,))
            slope = push(one)
        else:
            slope, after = getattr(jax, self.form)(fun, has_aux=True)(x)
        return slope, after
