"""The rows of the table: a program for each place where an effect can be."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl

from tests.transformations.language import NOT_MAPPED, TRANSFORMATIONS, Construct, Show


def _straight(show: Show, x: Any) -> Any:
    return show("b", show("a", x) * 2)


def _scan(show: Show, x: Any, **options: Any) -> Any:
    return jax.lax.scan(lambda c, y: (c * 1.0, show("s", c + y)), x, jnp.arange(3.0), **options)[1].sum()


def _while(show: Show, x: Any) -> Any:
    return jax.lax.while_loop(lambda x: x < 3, lambda x: show("b", x) + 1, x)


def while_test(show: Show, x: Any) -> Any:
    return jax.lax.while_loop(lambda x: show("t", x) < 3, lambda x: show("b", x) + 1, x)


def _while_fixed(show: Show, x: Any) -> Any:
    return jax.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, show("b", c[1]) + 1), (0, x))[1]


def _fori(show: Show, x: Any) -> Any:
    return jax.lax.fori_loop(0, 2, lambda i, x: show("f", x) + 1, x)


def _fori_dynamic(show: Show, x: Any) -> Any:
    return jax.lax.fori_loop(0, x.astype(int), lambda i, y: show("f", y) + 1, x * 0)


def _cond(show: Show, x: Any) -> Any:
    return jax.lax.cond(x > 1, lambda x: show("t", x) * 2, lambda x: show("f", x) * 3, x)


def _cond_one(show: Show, x: Any) -> Any:
    return jax.lax.cond(x > 1, lambda x: show("t", x) * 2, lambda x: x, x)


def _cond_all(show: Show, x: Any) -> Any:
    return jax.lax.cond(jnp.arange(2)[1] > 0, lambda x: show("t", x) * 2, lambda x: show("f", x), x)


def _switch(show: Show, x: Any) -> Any:
    branches = [lambda x: show("a", x), lambda x: show("b", x) * 2, lambda x: show("d", show("c", x) + 1)]
    return jax.lax.switch(x.astype(int), branches, x)


def _nested(show: Show, x: Any) -> Any:
    def turn(c: Any, y: Any) -> Any:
        inner = jax.jit(lambda c: jax.lax.cond(c > y, lambda c: show("n", c), lambda c: c, c))
        return jax.checkpoint(inner)(c) * 1.0, None

    return jax.lax.scan(turn, x, jnp.arange(3.0))[0]


def _loops(show: Show, x: Any) -> Any:
    """The outer loop runs twice, the inner one as often as a lane's own number says."""

    def outer(i: Any, x: Any) -> Any:
        count, _ = jax.lax.while_loop(lambda c: c[0] < c[1], lambda c: (show("i", c[0]) + 1, c[1]), (x * 0, x))
        return show("o", count)

    return jax.lax.fori_loop(0, 2, outer, x)


def _custom_jvp(show: Show, x: Any) -> Any:
    f = jax.custom_jvp(lambda x: show("p", x) * 2)
    f.defjvp(lambda primals, tangents: (show("r", primals[0]) * 2, tangents[0] * 2))
    return f(x)


def _custom_vjp(show: Show, x: Any) -> Any:
    f = jax.custom_vjp(lambda x: show("p", x) * 2)
    f.defvjp(lambda x: (show("f", x) * 2, None), lambda _, g: (show("b", g) * 2,))
    return f(x)


def _custom_vjp_in_cond(show: Show, x: Any) -> Any:
    return jax.lax.cond(x > 1, functools.partial(_custom_vjp, show), lambda x: x, x)


def _custom_vjp_in_scan(show: Show, x: Any) -> Any:
    def turn(c: Any, _: Any) -> Any:
        return _custom_vjp(show, c), None

    return jax.lax.scan(turn, x, None, length=2)[0]


def _custom_vmap(show: Show, x: Any) -> Any:
    f = jax.custom_batching.custom_vmap(lambda x: show("i", x) * 2)
    f.def_vmap(lambda size, batched, x: (show("r", x.sum()) * 0 + x * 2, batched[0]))
    return f(x)


def _linear_solve(show: Show, x: Any) -> Any:
    return jax.lax.custom_linear_solve(lambda v: v * 2, x, lambda _, b: show("s", b) / 2, symmetric=True)


def _map(show: Show, x: Any, **options: Any) -> Any:
    return jax.lax.map(lambda y: show("m", y), x + jnp.arange(3.0), **options).sum()


def _checkpoint(show: Show, x: Any, **options: Any) -> Any:
    def inside(x: Any) -> Any:
        return jnp.sin(checkpoint_name(show("c", jnp.sin(x) * 0 + x), "r"))

    return jax.checkpoint(inside, **options)(x)


def _references(show: Show, x: Any) -> Any:
    ref = jax.new_ref(x)

    def body(i: Any, _: Any) -> None:
        ref[...] += 1
        show("r", ref[...])

    jax.lax.fori_loop(0, 2, body, None)
    return jax.freeze(ref)


def _run_state(show: Show, x: Any) -> Any:
    def body(ref: Any) -> None:
        show("r", ref[...])
        ref[...] += 1
        show("r", ref[...])

    return pl.run_state(body)(x)


_policies = jax.checkpoint_policies
CHECKPOINT_POLICIES = {
    "`nothing_saveable`": _policies.nothing_saveable,
    "`everything_saveable`": _policies.everything_saveable,
    "`dots_saveable`": _policies.dots_saveable,
    "`save_only_these_names`": _policies.save_only_these_names("r"),
    "`save_any_names_but_these`": _policies.save_any_names_but_these("r"),
    "`offload`": _policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["r"],
        offload_src="device",
        offload_dst="pinned_host",
    ),
}

_REVERSE = [t.name for t in TRANSFORMATIONS if t.passes == "both"] + ["`linearize`"]
_FORWARD = ["`jvp`", "`linearize`", "`jacfwd`", "`vmap` of `jvp`, in a loop of one lane"]
_BASIC = ["`jit`", "`vmap`", "`grad`", "`hessian`", "`vmap` of `grad`"]

_RULE_FOR_ALL = {"`jacfwd`": "r1"}
"""The rule of a `custom_vmap` is for all lanes together, also those of tangents, but where only some lanes come."""

_TANGENTS_TOO = {
    "`jvp`": "s1 s1",
    "`linearize`": "s1 s1",
    "`jacfwd`": "s1 s1 s1",
    "`hessian`": "s1 s1 s1 s1",
    "`vmap` of `jvp`, in a loop of one lane": "s1 s2",
}
"""A linear solve's derivative solves for the tangents, with the same function."""

CONSTRUCTS = [
    Construct("straight line", _straight, "a1 b2", "a1 a2 b2 b4"),
    Construct("nested `jit`", lambda show, x: jax.jit(functools.partial(_straight, show))(x), "a1 b2", "a1 a2 b2 b4"),
    Construct(
        "`named_call`",
        lambda show, x: jax.named_call(functools.partial(_straight, show), name="mine")(x),
        "a1 b2",
        "a1 a2 b2 b4",
        only=_BASIC,
    ),
    Construct("`scan`", _scan, "s1 s2 s3", "s1 s2 s2 s3 s3 s4"),
    Construct("`scan`, `reverse`", functools.partial(_scan, reverse=True), "s3 s2 s1", "s3 s4 s2 s3 s1 s2"),
    Construct("`scan`, `unroll`", functools.partial(_scan, unroll=2), "s1 s2 s3", "s1 s2 s2 s3 s3 s4", only=_BASIC),
    Construct("`lax.map`", _map, "m1 m2 m3", "m1 m2 m2 m3 m3 m4"),
    Construct(
        "`lax.map`, `batch_size=2`",
        functools.partial(_map, batch_size=2),
        "m1 m2 m3",
        "m1 m2 m2 m3 m3 m4",
        others={NOT_MAPPED: "m1 m2 m1 m2 m3 m3"},
    ),
    Construct("`while_loop`, lanes differ", _while, "b1 b2", "b1 b2 b2", refused=_REVERSE),
    Construct(
        "`while_loop`, in its condition too",
        while_test,
        "t1 b1 t2 b2 t3",
        "t1 t2 b1 b2 t2 t3 b2 t3",
        refused=_REVERSE,
        others={"`checkify`": "t1 t1 b1 t2 t2 b2 t3 t3"},  # as JAX's own
    ),
    Construct("`while_loop`, lanes agree", _while_fixed, "b1 b2", "b1 b2 b2 b3", refused=_REVERSE),
    Construct("`fori_loop`", _fori, "f1 f2", "f1 f2 f2 f3"),
    Construct("`fori_loop`, lanes differ", _fori_dynamic, "f0", "f0 f0 f1", refused=_REVERSE),
    Construct("loops in loops, lanes differ", _loops, "i0 o1 i0 o1", "i0 i0 i1 o1 o2 i0 i0 i1 o1 o2", refused=_REVERSE),
    Construct("`cond`, lanes differ", _cond, "f1", "f1 t2"),
    Construct("`cond`, one branch only", _cond_one, "", "t2", only=_BASIC),
    Construct("`cond`, lanes agree", _cond_all, "t1", "t1 t2"),
    Construct("`switch`, lanes differ", _switch, "b1", "b1 c2 d3"),
    Construct("`cond` in `jit` in `checkpoint` in `scan`", _nested, "n1", "n1 n2 n2"),
    Construct("`checkpoint`", _checkpoint, "c1", "c1 c2"),
    *(
        Construct(f"`checkpoint`, {name}", functools.partial(_checkpoint, policy=policy), "c1", "c1 c2", only=_BASIC)
        for name, policy in CHECKPOINT_POLICIES.items()
    ),
    Construct("`custom_jvp`", _custom_jvp, "p1", "p1 p2", forward=("r1", "r1 r2")),
    Construct(
        "`custom_vjp`",
        _custom_vjp,
        "p1",
        "p1 p2",
        forward=("f1", "f1 f2"),
        backward=("b1", "b1 b1"),
        refused=_FORWARD,
    ),
    Construct(
        "`custom_vjp` in `cond`, lanes differ",
        _custom_vjp_in_cond,
        "",
        "p2",
        forward=("", "f2"),
        backward=("", "b1"),
        refused=_FORWARD,
    ),
    Construct(
        "`custom_vjp` in `scan`",
        _custom_vjp_in_scan,
        "p1 p2",
        "p1 p2 p2 p4",
        forward=("f1 f2", "f1 f2 f2 f4"),
        backward=("b1 b2", "b1 b1 b2 b2"),
        refused=_FORWARD,
    ),
    Construct("`custom_vmap`", _custom_vmap, "i1", "r3", others=_RULE_FOR_ALL, refused=_REVERSE),
    Construct("`custom_linear_solve`", _linear_solve, "s1", "s1 s2", backward=("s1", "s1 s1"), others=_TANGENTS_TOO),
    Construct("mutable references", _references, "r2 r3", "r2 r3 r3 r4", refused=["`jacfwd`", "`hessian`"]),
    Construct("`run_state`", _run_state, "r1 r2", "r1 r2 r2 r3", refused=_REVERSE),
]
"""The rows of the table."""
