"""A user's script, which type checkers read in their strict modes and which runs.

What a checker must make of an expression stands beside it: `assert_type`, and behind `reveal_type` the signature that
it shows. What it must refuse has a `type: ignore`, which strict checkers refuse where nothing is wrong.
"""

import copy
import functools
import logging
from typing import Any, assert_type, reveal_type

import jax
import jax.numpy as jnp
import numpy as np

import effects as fx


@fx.jit
def decorated(x: jax.Array, n: int = 2, *, scale: float = 1.0) -> jax.Array:
    fx.print("{} {scale}", x, scale=scale)
    return x * n * scale


@fx.jit(static_argnames="n", donate_argnums=())
def with_options(x: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    fx.log("step", n=n, level=logging.WARNING)
    fx.log("step", n=n, level="info", ordered=False)
    return x, x * n


@functools.partial(fx.jit, static_argnums=1)
def partially(x: jax.Array, n: int) -> jax.Array:
    return x * n


def plain(x: jax.Array) -> dict[str, jax.Array]:
    seen: list[float] = []

    def note(x: np.ndarray[Any, Any]) -> None:
        seen.append(float(x))

    fx.callback(note, None, x)
    answer = fx.callback(np.sin, x, x)
    fx.check(x < 1000, "{} is large", x)
    assert_type(fx.error_if(x, x < 0, "negative"), jax.Array)
    return {"x": fx.error_if(x, x < 0, "negative"), "answer": fx.print_grad("{}", answer)}


called = fx.jit(plain)
called_with_options = fx.jit(plain, inline=True)


class Model:
    @fx.jit
    def method(self, x: jax.Array) -> jax.Array:
        return x

    @fx.jit(static_argnums=0)
    def method_with_options(self, x: jax.Array) -> jax.Array:
        return x


jax.tree_util.register_pytree_node(Model, lambda model: ((), None), lambda _, children: Model())


@fx.filter_jit
def filtered(x: jax.Array, by: str) -> jax.Array:
    return x


@fx.nnx_jit(static_argnames="by")
def of_nnx(x: jax.Array, by: str) -> jax.Array:
    return x


@fx.register_callback("typed_script.count")
def count(x: np.ndarray[Any, Any]) -> int:
    return x.size


@fx.jit
def with_futures(x: jax.Array) -> jax.Array:
    future = fx.async_start(jnp.sin, x)
    assert_type(future, fx.Future[jax.Array])
    future = fx.async_update(future)
    assert_type(future, fx.Future[jax.Array])
    answer = fx.async_callback(np.cos, x, x)
    y: jax.Array = fx.async_done(future) + fx.async_done(answer)
    return y


X = jnp.float32(3)

reveal_type(decorated)  # JitFunction[[x: Array, n: int =, *, scale: float =], Array]
reveal_type(with_options)  # JitFunction[[x: Array, n: int], tuple[Array, Array]]
reveal_type(called)  # JitFunction[[x: Array], dict[str, Array]]
reveal_type(called_with_options)  # JitFunction[[x: Array], dict[str, Array]]
reveal_type(Model.method)  # JitFunction[[self: Model, x: Array], Array]
reveal_type(Model().method)  # def (x: Array) -> Array
reveal_type(Model().method_with_options)  # def (x: Array) -> Array
reveal_type(filtered)  # def (x: Array, by: str) -> Array
reveal_type(of_nnx)  # def (x: Array, by: str) -> Array
reveal_type(count)  # def (x: ndarray[Any, Any]) -> int
reveal_type(decorated.lower(X))  # Lowered
reveal_type(decorated.lower(X).compile())  # Compiled
reveal_type(decorated.trace(X))  # Traced
reveal_type(decorated.trace(X).lower())  # Lowered
reveal_type(fx.export(decorated)(X))  # Exported

assert_type(decorated(X, 3, scale=2.0), jax.Array)
assert_type(with_options(X, 3), tuple[jax.Array, jax.Array])
assert_type(called(X), dict[str, jax.Array])
assert_type(Model().method(X), jax.Array)
assert_type(filtered(X, "name"), jax.Array)
assert_type(of_nnx(X, by="name"), jax.Array)
assert_type(count(np.ones(3)), int)
assert_type(with_futures(X), jax.Array)
assert_type(copy.deepcopy(decorated)(X), jax.Array)
assert_type(decorated.clear_cache(), None)
same: jax.Array = partially(X, 2)
shape: jax.ShapeDtypeStruct = decorated.eval_shape(X)
outer = jax.jit(jax.vmap(decorated))


def refused() -> None:
    """Is not called."""
    decorated("text")  # type: ignore
    decorated(X, n=2.5)  # type: ignore
    decorated(X, other=1)  # type: ignore
    with_options(X)  # type: ignore
    Model().method()  # type: ignore
    filtered(X, 3)  # type: ignore
    of_nnx(X)  # type: ignore
    fx.jit(plain, static_argnum=1)  # type: ignore
    fx.jit(3)  # type: ignore
    fx.no_such_name()  # type: ignore
    fx.effects_barrier(timeouts=3)  # type: ignore


def note(record: fx.Record) -> None:
    lines.append(record.text)


lines: list[str] = []
with fx.capture(suppress=True) as records:
    decorated(X, 3, scale=2.0)
assert_type(records, list[fx.Record])
assert_type(records[0].token, tuple[int, ...])
assert_type(records[0].text, str)

handler = fx.ListHandler()
with fx.add_handler(handler), fx.add_handler(note, effects=["print"]):
    decorated(X)
    fx.effects_barrier(timeout=60)
added = fx.add_handler(fx.ConsoleHandler())
fx.remove_handler(added)
assert_type(handler.records, list[fx.Record])
assert_type(fx.stats(), dict[str, int])
assert_type(fx.config.sync, bool)
with fx.config.override(sync=True):
    with_options(X, 3)

try:
    fx.effects_barrier()
except fx.CheckError as error:
    assert_type(error.lane, tuple[int, ...])
except fx.EffectError as error:
    assert_type(error.where, str)
print(lines)
