"""The reading of JAX: a program as a function to be jitted.

A statement is given a `Scope`, which is what it may refer to, and the state, and returns the state after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.oracle.language import MODULUS, REGISTERS, Block_, Expression, Program, State

if TYPE_CHECKING:
    from tests.oracle.host import Host, Runner


@dataclass(frozen=True)
class Scope:
    """What a statement's JAX reading may refer to besides the registers."""

    runner: Runner
    host: Host
    functions: Mapping[str, Callable[..., State]]
    names: Mapping[str, Any]  # read-only values and mutable refs, closed over by whatever is inside
    settle: Callable[[State], State] = lambda state: state  # gives what a statement makes the types that it must have

    def bind(self, **names: Any) -> Scope:
        return dataclasses.replace(self, names={**self.names, **names})


def run_body(body: Block_, scope: Scope, state: State) -> State:
    for statement in body:
        state = scope.settle(statement.jax(scope, state))
    return state


def register(state: State, name: str) -> Any:
    return state[REGISTERS.index(name)]


def assign(state: State, target: str, value: Any) -> State:
    index = REGISTERS.index(target)
    return (*state[:index], value, *state[index + 1 :])


def hold(state: State) -> State:
    """The state, with no derivative through `x`."""
    return (*state[:-1], lax.stop_gradient(state[-1]))


def wrap(x: Any) -> Any:
    """`x % 97` of whole numbers, with the derivative of `x`."""
    rest = lax.rem(lax.convert_element_type(x, np.int32), np.int32(MODULUS))
    rest = lax.rem(lax.add(rest, np.int32(MODULUS)), np.int32(MODULUS))
    return lax.sub(x, lax.stop_gradient(lax.sub(x, lax.convert_element_type(rest, np.float32))))


def fold(values: Any, register: Any) -> Any:
    """`PRELUDE`'s `fold` in JAX: the result depends on where in `values` each value stands."""
    weights = lax.iota(np.int32, len(values)) + 1  # no constant: kernels take none that is an array
    total = lax.reduce(lax.mul(values, weights), np.int32(0), lax.add, (0,))
    return lax.rem(lax.add(total, register), np.int32(MODULUS))


def shifted(xs: tuple[int, ...], base: Any) -> Any:
    if not xs:
        return jnp.zeros(0, np.int32)
    return lax.rem(jnp.stack([lax.add(base, np.int32(x)) for x in xs]), np.int32(MODULUS))


def value_of(operand: Any) -> Any:
    """The value of an operand that may be a mutable ref."""
    return operand if isinstance(operand, np.generic) else operand[...]


def stacked(operands: Sequence[Any]) -> Any:
    return jnp.stack([value_of(operand) for operand in operands])


def remainder(expression: Expression, modulus: int, scope: Scope, state: State) -> Any:
    return lax.rem(expression.jax(scope, state), np.int32(modulus))


def _custom_jvp(scope: Scope, fun: Callable[..., State]) -> Callable[..., State]:
    wrapped = jax.custom_jvp(fun)
    wrapped.defjvp(lambda primals, tangents: (wrapped(*primals), tangents))
    return wrapped


def _custom_vjp(scope: Scope, fun: Callable[..., State]) -> Callable[..., State]:
    wrapped = jax.custom_vjp(fun)
    wrapped.defvjp(lambda *primals: (wrapped(*primals), None), lambda _, cotangents: cotangents)
    return wrapped


def _named_scope(scope: Scope, fun: Callable[..., State]) -> Callable[..., State]:
    def call(*state: Any) -> State:
        with jax.named_scope("scope"):
            return fun(*state)

    return call


# What a block of statements can be wrapped in without changing what it means: name -> the wrapped function.
WRAPPERS: Mapping[str, Callable[[Scope, Callable[..., State]], Callable[..., State]]] = {
    "jit": lambda scope, fun: jax.jit(fun),
    "inline_jit": lambda scope, fun: jax.jit(fun, inline=True),
    "effects_jit": lambda scope, fun: scope.runner.jit(fun),
    "remat": lambda scope, fun: jax.checkpoint(fun),
    "custom_jvp": _custom_jvp,
    "custom_vjp": _custom_vjp,
    "named_call": lambda scope, fun: jax.named_call(fun, name="named"),
    "named_scope": _named_scope,
}

IDENTITIES = ("custom_jvp", "custom_vjp")  # those whose rule says that the derivative is one


def to_jax(
    program: Program, runner: Runner, host: Host, names: Mapping[str, Any] | None = None
) -> Callable[..., State]:
    """The program as a function of `n` and the registers, to be jitted by `runner.jit`."""

    def traced(n: Any, *state: Any) -> State:
        functions: dict[str, Callable[..., State]] = {}

        def inner(body: Block_) -> Callable[..., State]:
            return lambda n, *state: run_body(body, Scope(runner, host, functions, {"n": n}), state)

        for function in program.functions:
            whole = Scope(runner, host, functions, {})
            functions[function.name] = WRAPPERS[function.through](whole, inner(function.body))
        x = lax.convert_element_type(n, np.float32)
        return run_body(program.body, Scope(runner, host, functions, {"n": n, **(names or {})}), (*state, x))[:-1]

    return traced
