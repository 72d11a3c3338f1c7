"""Programs of which each has a row of its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import checkify

import effects as fx
from tests.transformations.constructs import while_test
from tests.transformations.language import ONE, TWO


def _print(place: str, x: Any) -> Any:
    fx.print(place + "{:.0f}", x)
    return x


def _in_branch(x: Any) -> Any:
    return jax.lax.cond(x > 1, lambda x: _print("t", x), lambda x: x, x)


def _doubled(place: str, x: Any) -> Any:
    """Shows what a callback returned."""
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    return _print(place, fx.callback(lambda x: 2 * x, shape, jax.lax.stop_gradient(x)))


def _loss(x: Any) -> Any:
    return (fx.print_grad("g{:.0f}", _print("p", x)) * 2).sum()


def _scan_of_gradients(x: Any) -> Any:
    return jax.lax.scan(lambda c, _: (fx.print_grad("g{:.0f}", _print("p", c)) * 2, None), x, None, length=2)[0]


def _cond_of_gradients(x: Any) -> Any:
    return jax.lax.cond(x > 1, lambda x: fx.print_grad("g{:.0f}", x) * 3, lambda x: x, x)


def _vjp_twice(x: Any) -> Any:
    _, backward = jax.vjp(lambda x: _loss(x), x)
    return backward(1.0)[0] + backward(2.0)[0]


def _failing_check(x: Any) -> Any:
    def checked(x: Any) -> None:
        _print("a", x)
        checkify.check(x < 0, "not negative")
        _print("b", x)

    return jax.tree.leaves(checkify.checkify(checked)(x)[0])


def _checked_vmap(x: Any) -> Any:
    return checkify.checkify(jax.vmap(lambda x: while_test(_print, x)))(x)[1]


def _shared_jit(x: Any) -> Any:
    """One jitted function along an axis of lanes and along one of tangents."""
    inner = jax.jit(lambda c: _print("c", c))
    mapped = jax.vmap(lambda x: inner(jnp.float32(5)) * x)(x)
    return mapped, jax.jacfwd(lambda x: inner(jnp.float32(5)) * x.sum())(x)


def _sum_in_branch(x: Any) -> Any:
    return jax.lax.cond(x > 1, lambda x: _print("t", jax.lax.psum(x, "i")), lambda x: x, x)


def _keys(x: Any) -> Any:
    keys = jax.random.split(jax.random.key(0), 2)

    def loop(x: Any, key: Any) -> Any:
        return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (_print("b", c[0]) + 1, c[1]), (x, key))[0]

    return jax.vmap(loop)(x, keys)


def _platforms(x: Any) -> Any:
    return jax.lax.platform_dependent(x, cpu=lambda x: _print("c", x), default=lambda x: _print("d", x))


def _nan_elsewhere(x: Any) -> Any:
    return jax.lax.cond(x > 1, lambda x: jnp.log(_print("t", x - 1)), lambda x: x, x)


_FOUR = jnp.arange(4.0).reshape(2, 2)

PROGRAMS = {  # name -> program, argument, effects
    "nested `vmap`: the outer lanes go first": (jax.vmap(jax.vmap(lambda x: _print("p", x))), _FOUR, "p0 p1 p2 p3"),
    "nested `vmap`, lanes differ": (jax.vmap(jax.vmap(_in_branch)), _FOUR, "t2 t3"),
    "nested `vmap`, the outer lanes differ": (
        jax.vmap(lambda x: jax.lax.cond(x.sum() > 1, lambda x: jax.vmap(lambda x: _print("t", x))(x), lambda x: x, x)),
        _FOUR,
        "t2 t3",
    ),
    "`vmap`, `in_axes=1`, `out_axes=1`": (
        jax.vmap(lambda x: _print("p", x.sum()) * x, in_axes=1, out_axes=1),
        _FOUR,
        "p2 p4",
    ),
    "`vmap`, `axis_name`, a collective in a branch": (jax.vmap(_sum_in_branch, axis_name="i"), TWO, "t3"),
    "`vmap`, `axis_index`": (
        jax.vmap(lambda x: _print("i", jax.lax.axis_index("i") * x), axis_name="i"),
        TWO,
        "i0 i2",
    ),
    "`vmap`, random keys in the loop": (_keys, TWO, "b1 b2 b2"),
    "`jnp.vectorize`": (jnp.vectorize(lambda x: _print("v", x)), _FOUR, "v0 v1 v2 v3"),
    "`jnp.vectorize`, signature": (
        jnp.vectorize(lambda x: _print("v", x.sum()), signature="(n)->()"),
        _FOUR,
        "v1 v5",
    ),
    "`value_and_grad`": (jax.value_and_grad(_loss), ONE, "p1 g2"),
    "`grad` of `grad`": (jax.grad(jax.grad(lambda x: _print("p", x) ** 3)), ONE, "p1"),
    "`vjp`, called twice": (_vjp_twice, ONE, "p1 g2 g4"),
    "`jacfwd`, two tangents": (jax.jacfwd(lambda x: _print("p", x.sum()) * x), TWO, "p3"),
    "`jacrev`, two cotangents": (
        jax.jacrev(lambda x: fx.print_grad("g{:.0f}", _print("p", x.sum())) * x),
        TWO,
        "p3 g1 g2",
    ),
    "`vmap` of `hessian`": (jax.vmap(jax.hessian(lambda x: (_print("p", x.sum()) * x).sum())), _FOUR, "p1 p5"),
    "`vmap`, then `jacfwd`, of one `jit`": (_shared_jit, TWO, "c5 c5 c5"),
    "`print_grad` without a backward pass": (_loss, ONE, "p1"),
    "`print_grad` under `jvp`": (lambda x: jax.jvp(_loss, (x,), (x,)), ONE, "p1"),
    "`print_grad` in `scan`: the last iteration first": (jax.grad(_scan_of_gradients), ONE, "p1 p2 g2 g4"),
    "`print_grad` in `scan` in `checkpoint`": (jax.grad(jax.checkpoint(_scan_of_gradients)), ONE, "p1 p2 g2 g4"),
    "`print_grad`, `vmap` of `grad`": (jax.vmap(jax.grad(_loss)), TWO, "p1 p2 g2 g2"),
    "`print_grad` in `cond`, lanes differ": (jax.vmap(jax.grad(_cond_of_gradients)), TWO, "g3"),
    "`grad` of `vmap`, a NaN in the other lane": (
        lambda x: jax.grad(lambda x: jax.vmap(_nan_elsewhere)(x).sum())(x),
        TWO,
        "t1",
    ),
    "callback with results, lanes differ": (
        jax.vmap(lambda x: jax.lax.cond(x > 1, lambda x: _doubled("v", x), lambda x: x, x)),
        TWO,
        "v4",
    ),
    "callback with results of `stop_gradient` under `grad`": (
        jax.grad(lambda x: _doubled("v", x) * x),
        ONE,
        "v2",
    ),
    "`checkify`, a check that fails": (_failing_check, ONE, "a1 b1"),
    "`checkify` of `vmap` of `while_loop`": (_checked_vmap, TWO, "t1 t2 b1 b2 t2 t3 b2 t3"),
    "`vmap` of `checkify`": (jax.vmap(lambda x: checkify.checkify(_in_branch)(x)[1]), TWO, "t2"),
    "`linear_transpose`": (
        lambda x: jax.linear_transpose(lambda y: fx.print_grad("g{:.0f}", y) * _print("p", x), x)(x),
        ONE,
        "p1 g1",
    ),
    "`platform_dependent`": (_platforms, ONE, "c1"),
    "`vmap` of `platform_dependent`": (jax.vmap(_platforms), TWO, "c1 c2"),
    "`fx.jit` in `vmap` of `grad`": (jax.vmap(jax.grad(fx.jit(_loss))), TWO, "p1 p2 g2 g2"),
}
"""Name -> program, its argument, what it shows."""
