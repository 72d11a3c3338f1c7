"""What works where: programs with effects, the transformations around them, and the effects that must happen.

Each construct is a small program. It is read as a Python interpreter would read it, alone for x = 1 and in two lanes
for x = 1 and x = 2; what it must show stands beside it, in order. `a1` is an effect at the place `a` with the value 1.
The tests run all of it, and the README's tables are printed from it:

    python -m tests.transformations
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import checkify
from jax.experimental import pallas as pl

import effects as fx

Show = Callable[[str, Any], Any]
"""`show(place, x)` has an effect and returns `x`."""


@dataclasses.dataclass(frozen=True)
class Construct:
    """A program with effects, as a function of `show` and a number, and what it shows.

    Attributes:
        name: As it stands in the README.
        program: The program.
        once: The effects for x = 1.
        lanes: The effects under `vmap`, for x = 1 and x = 2.
        forward: The effects of the forward pass of a derivative, if a rule of the user's has others; once and in lanes.
        backward: Those of the backward pass.
        others: Effects under some transformations that are not the same as those under all others of their kind.
        refused: The transformations that JAX has not got for it, with or without effects.
        only: The transformations that are tried, if not all.
    """

    name: str
    program: Callable[[Show, Any], Any]
    once: str
    lanes: str
    _: dataclasses.KW_ONLY
    forward: tuple[str, str] | None = None
    backward: tuple[str, str] = ("", "")
    others: Mapping[str, str] = dataclasses.field(default_factory=dict)
    refused: Collection[str] = ()
    only: Collection[str] = ()


@dataclasses.dataclass(frozen=True)
class Transformation:
    """What is done to a program of one number.

    Attributes:
        name: As it stands in the README.
        apply: Makes a function of one array.
        argument: The array. The number is 1, or the numbers are 1 and 2 in two lanes.
        lanes: Whether there are two lanes.
        passes: Which effects there are: `"none"`, those of the program, of a `"forward"` pass, or of `"both"` passes.
    """

    name: str
    apply: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]
    argument: Any
    _: dataclasses.KW_ONLY
    lanes: bool = False
    passes: str = "program"

    def expected(self, construct: Construct) -> str | None:
        """What the construct must show under it; None if it is not tried."""
        if self.name in construct.refused or (construct.only and self.name not in construct.only):
            return None
        if self.name in construct.others:
            return construct.others[self.name]
        if self.passes == "none":
            return ""
        if self.name == NOT_MAPPED:
            return " ".join(effect for effect in construct.once.split() for _ in range(2))
        shown = [construct.lanes if self.lanes else construct.once]
        if self.passes != "program":
            if construct.forward is not None:
                shown = [construct.forward[self.lanes]]
            if self.passes == "both":
                shown.append(construct.backward[self.lanes])
        return " ".join(filter(None, shown))


def _straight(show: Show, x: Any) -> Any:
    return show("b", show("a", x) * 2)


def _scan(show: Show, x: Any, **options: Any) -> Any:
    return jax.lax.scan(lambda c, y: (c * 1.0, show("s", c + y)), x, jnp.arange(3.0), **options)[1].sum()


def _while(show: Show, x: Any) -> Any:
    return jax.lax.while_loop(lambda x: x < 3, lambda x: show("b", x) + 1, x)


def _while_test(show: Show, x: Any) -> Any:
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

NOT_MAPPED = "`vmap`, x not mapped"
_ONE, _TWO = jnp.float32(1), jnp.array([1.0, 2.0])
_TWO_TANGENTS = jnp.array([1.0, 0.0])


def _in_one_lane(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """For x = 1 and x = 2: only the second lane takes the branch, with the number 1."""
    return lambda x: jax.lax.cond(x > 1, lambda x: f(x - 1), lambda x: x * 3, x)


def _turn_of_one_lane(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """For x = 1 and x = 2: only the second lane runs the loop, once, with the number 1."""
    return lambda x: jax.lax.while_loop(lambda c: c[0] > 1, lambda c: (c[0] - 1, f(c[0] - 1)), (x, x))[1]


TRANSFORMATIONS = [
    Transformation("`jit`", lambda f: f, _ONE),
    Transformation("`vmap`", jax.vmap, _TWO, lanes=True),
    Transformation("`vmap` of `vmap`", lambda f: jax.vmap(jax.vmap(f)), _TWO[None], lanes=True),
    Transformation(NOT_MAPPED, lambda f: lambda x: jax.vmap(f, in_axes=None, axis_size=2)(x), _ONE),
    Transformation("`jvp`", lambda f: lambda x: jax.jvp(f, (x,), (x,)), _ONE, passes="forward"),
    Transformation("`linearize`", lambda f: lambda x: jax.linearize(f, x)[1](x), _ONE, passes="forward"),
    Transformation("`jacfwd`", lambda f: jax.jacfwd(lambda x: f(x.sum())), _TWO_TANGENTS, passes="forward"),
    Transformation("`grad`", jax.grad, _ONE, passes="both"),
    Transformation("`jacrev`", jax.jacrev, _ONE, passes="both"),
    Transformation("`hessian`", lambda f: jax.hessian(lambda x: f(x.sum())), _TWO_TANGENTS, passes="both"),
    Transformation("`grad` of `checkpoint`", lambda f: jax.grad(jax.checkpoint(f)), _ONE, passes="both"),
    Transformation("`vmap` of `grad`", lambda f: jax.vmap(jax.grad(f)), _TWO, lanes=True, passes="both"),
    Transformation(
        "`grad` of `vmap`", lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum()), _TWO, lanes=True, passes="both"
    ),
    Transformation("`vmap`, in a branch of one lane", lambda f: jax.vmap(_in_one_lane(f)), _TWO),
    Transformation("`vmap`, in a loop of one lane", lambda f: jax.vmap(_turn_of_one_lane(f)), _TWO),
    Transformation(
        "`vmap` of `grad`, in a branch of one lane", lambda f: jax.vmap(jax.grad(_in_one_lane(f))), _TWO, passes="both"
    ),
    Transformation(
        "`vmap` of `jvp`, in a loop of one lane",
        lambda f: jax.vmap(lambda x: jax.jvp(_turn_of_one_lane(f), (x,), (x,))),
        _TWO,
        passes="forward",
    ),
    Transformation("`checkify`", lambda f: lambda x: checkify.checkify(f, checkify.all_checks)(x)[1], _ONE),
    Transformation("`eval_shape`", lambda f: lambda x: (jax.eval_shape(f, x), x)[1], _ONE, passes="none"),
]
"""What is done to each construct."""

_REVERSE = [t.name for t in TRANSFORMATIONS if t.passes == "both"] + ["`linearize`"]
_FORWARD = ["`jvp`", "`linearize`", "`jacfwd`", "`vmap` of `jvp`, in a loop of one lane"]
_BASIC = ["`jit`", "`vmap`", "`grad`", "`hessian`", "`vmap` of `grad`"]

_RULE_FOR_ALL = dict.fromkeys([t.name for t in TRANSFORMATIONS if "one lane" in t.name] + ["`jacfwd`"], "r1")
"""The rule of a `custom_vmap` is for all lanes together, also those of tangents."""

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
        "`while_loop`, in its condition too", _while_test, "t1 b1 t2 b2 t3", "t1 t2 b1 b2 t2 t3 b2 t3", refused=_REVERSE
    ),
    Construct("`while_loop`, lanes alike", _while_fixed, "b1 b2", "b1 b2 b2 b3", refused=_REVERSE),
    Construct("`fori_loop`", _fori, "f1 f2", "f1 f2 f2 f3"),
    Construct("`fori_loop`, lanes differ", _fori_dynamic, "f0", "f0 f0 f1", refused=_REVERSE),
    Construct("loops in loops, lanes differ", _loops, "i0 o1 i0 o1", "i0 i0 i1 o1 o2 i0 i0 i1 o1 o2", refused=_REVERSE),
    Construct("`cond`, lanes differ", _cond, "f1", "f1 t2"),
    Construct("`cond`, one branch only", _cond_one, "", "t2", only=_BASIC),
    Construct("`cond`, lanes alike", _cond_all, "t1", "t1 t2"),
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

# Programs of which each has a row of its own.


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
    return checkify.checkify(jax.vmap(lambda x: _while_test(_print, x)))(x)[1]


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
    "`vmap`, `axis_name`, a collective in a branch": (jax.vmap(_sum_in_branch, axis_name="i"), _TWO, "t3"),
    "`vmap`, `axis_index`": (
        jax.vmap(lambda x: _print("i", jax.lax.axis_index("i") * x), axis_name="i"),
        _TWO,
        "i0 i2",
    ),
    "`vmap`, random keys in the loop": (_keys, _TWO, "b1 b2 b2"),
    "`jnp.vectorize`": (jnp.vectorize(lambda x: _print("v", x)), _FOUR, "v0 v1 v2 v3"),
    "`jnp.vectorize`, signature": (
        jnp.vectorize(lambda x: _print("v", x.sum()), signature="(n)->()"),
        _FOUR,
        "v1 v5",
    ),
    "`value_and_grad`": (jax.value_and_grad(_loss), _ONE, "p1 g2"),
    "`grad` of `grad`": (jax.grad(jax.grad(lambda x: _print("p", x) ** 3)), _ONE, "p1"),
    "`vjp`, called twice": (_vjp_twice, _ONE, "p1 g2 g4"),
    "`jacfwd`, two tangents": (jax.jacfwd(lambda x: _print("p", x.sum()) * x), _TWO, "p3"),
    "`jacrev`, two cotangents": (
        jax.jacrev(lambda x: fx.print_grad("g{:.0f}", _print("p", x.sum())) * x),
        _TWO,
        "p3 g1 g2",
    ),
    "`vmap` of `hessian`": (jax.vmap(jax.hessian(lambda x: (_print("p", x.sum()) * x).sum())), _FOUR, "p1 p5"),
    "`vmap`, then `jacfwd`, of one `jit`": (_shared_jit, _TWO, "c5 c5 c5"),
    "`print_grad` without a backward pass": (_loss, _ONE, "p1"),
    "`print_grad` under `jvp`": (lambda x: jax.jvp(_loss, (x,), (x,)), _ONE, "p1"),
    "`print_grad` in `scan`: the last turn first": (jax.grad(_scan_of_gradients), _ONE, "p1 p2 g2 g4"),
    "`print_grad` in `scan` in `checkpoint`": (jax.grad(jax.checkpoint(_scan_of_gradients)), _ONE, "p1 p2 g2 g4"),
    "`print_grad`, `vmap` of `grad`": (jax.vmap(jax.grad(_loss)), _TWO, "p1 p2 g2 g2"),
    "`print_grad` in `cond`, lanes differ": (jax.vmap(jax.grad(_cond_of_gradients)), _TWO, "g3"),
    "`grad` of `vmap`, a NaN in the other lane": (
        lambda x: jax.grad(lambda x: jax.vmap(_nan_elsewhere)(x).sum())(x),
        _TWO,
        "t1",
    ),
    "callback with results, lanes differ": (
        jax.vmap(lambda x: jax.lax.cond(x > 1, lambda x: _doubled("v", x), lambda x: x, x)),
        _TWO,
        "v4",
    ),
    "callback with results of `stop_gradient` under `grad`": (
        jax.grad(lambda x: _doubled("v", x) * x),
        _ONE,
        "v2",
    ),
    "`checkify`, a check that fails": (_failing_check, _ONE, "a1 b1"),
    "`checkify` of `vmap` of `while_loop`": (_checked_vmap, _TWO, "t1 t2 b1 b2 t2 t3 b2 t3"),
    "`vmap` of `checkify`": (jax.vmap(lambda x: checkify.checkify(_in_branch)(x)[1]), _TWO, "t2"),
    "`linear_transpose`": (
        lambda x: jax.linear_transpose(lambda y: fx.print_grad("g{:.0f}", y) * _print("p", x), x)(x),
        _ONE,
        "p1 g1",
    ),
    "`platform_dependent`": (_platforms, _ONE, "c1"),
    "`vmap` of `platform_dependent`": (jax.vmap(_platforms), _TWO, "c1 c2"),
    "`fx.jit` in `vmap` of `grad`": (jax.vmap(jax.grad(fx.jit(_loss))), _TWO, "p1 p2 g2 g2"),
}
"""Name -> program, its argument, what it shows."""


def table() -> str:
    """The README's tables."""
    rows = ["| Where the effect is | x = 1 | `vmap`, x = 1 and 2 | `grad`, x = 1 |", "| --- | --- | --- | --- |"]
    by_name = {transformation.name: transformation for transformation in TRANSFORMATIONS}
    for construct in CONSTRUCTS:
        cells = [_cell(by_name[name].expected(construct)) for name in ("`jit`", "`vmap`", "`grad`")]
        rows.append(f"| {construct.name} | {' | '.join(cells)} |")
    rows += ["", "| Transformation | of `a` at x and `b` at 2x |", "| --- | --- |"]
    rows += [f"| {t.name} | {_cell(t.expected(CONSTRUCTS[0]))} |" for t in TRANSFORMATIONS]
    rows += ["", "<details><summary>More programs</summary>", "", "| Program | Effects |", "| --- | --- |"]
    rows += [f"| {name} | {_cell(expected)} |" for name, (_, _, expected) in PROGRAMS.items()]
    rows += ["", "</details>"]
    return "\n".join(rows) + "\n"


def _cell(expected: str | None) -> str:
    if expected is None:
        return "not in JAX"
    return f"`{expected}`" if expected else "none"


if __name__ == "__main__":
    print(table(), end="")
