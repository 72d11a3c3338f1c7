"""`fx.watch` finds the fault that is planted in a program, and computes what the program does without."""

from __future__ import annotations

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

import effects as fx

MESH = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
A, B = [1, -2, 3], [1, -2, 0.5, 4]
NOWHERE = {"index": (), "iteration": (), "lane": (), "backward": False}
THROUGH = {  # what becomes of a function that is watched: the program that is run
    "itself": lambda f, watch: watch(f),
    "lane": lambda f, watch: jax.vmap(watch(f)),
    "lanes": lambda f, watch: watch(jax.vmap(f)),
    "lane_of_lane": lambda f, watch: jax.vmap(jax.vmap(watch(f))),
    "grad": lambda f, watch: jax.grad(watch(f)),
    "grad_inside": lambda f, watch: watch(jax.grad(f)),
    "lane_of_grad": lambda f, watch: jax.vmap(jax.grad(watch(f))),
    "jacrev": lambda f, watch: jax.jacrev(watch(f)),
    "region": lambda f, watch: watch(jax.shard_map(f, mesh=MESH, in_specs=jax.P("d"), out_specs=jax.P("d"))),
}
ROWS, LIMIT = np.float32([[1, 2], [3, 4], [5, -6]]), jnp.float32(2.4)


def _fault(f, operation, *args, through="itself", **given):
    """The fault in a function's only line, or in the one that ends with `# here`. `given`: what is said of it, and
    options of `fx.watch`. Lists and numbers of Python are of float32."""
    args = [np.float32(x) if isinstance(x, float | list) else x for x in args]
    line = f.__code__.co_firstlineno
    if f.__name__ != "<lambda>":
        [at] = [i for i, text in enumerate(inspect.getsourcelines(f)[0]) if text.rstrip().endswith("# here")]
        line += at
    options = {name: given.pop(name) for name in ("inf", "when", "results") if name in given}
    said = {"operation": operation, "where": f"{__file__}:{line}", **NOWHERE, **given}
    return f, args, THROUGH[through], options, said


def _in_jit(x):
    @jax.jit
    def inner(y):
        return jnp.log(y)  # here

    return inner(x + 9) + inner(x)


def _no_iterations(x, y):
    return lax.while_loop(lambda at: at[0] < 0, lambda at: (at[0] + 1, lax.max(at[1], at[2]), 0.0), (0, x, y))


def _in_a_condition_with_a_reference(x):
    def test(x):
        reference = jax.new_ref(x)
        reference[...] = jnp.log(x)  # here
        return ~(jax.freeze(reference) > 5)

    return lax.while_loop(test, lambda x: jnp.where(x < 0, 1e9, x - 1), x)


def _given_to_what_makes_none(x):
    y = jax.jit(jnp.negative)(jnp.log(x))  # here
    y = lax.cond(x < 0, lambda y: -y, lambda y: y, lax.fori_loop(0, 3, lambda i, y: -y, y))
    return lax.scan(lambda y, _: (-y, None), y, None, 3)[0]


@jax.custom_vjp
def _squared(x):
    return x * x


_squared.defvjp(lambda x: (x * x, x), lambda x, cotangent: (cotangent * jnp.log(x),))


def _in_a_custom_jvp(x):
    @jax.custom_jvp
    def inner(x):
        return jnp.log(x)  # here

    inner.defjvps(lambda t, out, x: t)
    return inner(x)


def _in_a_kernel(x):
    def kernel(x_ref, o_ref):
        o_ref[...] = jnp.log(x_ref[...] * 2)

    row = pl.BlockSpec((1, x.shape[1]), lambda i: (i, 0))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(kernel, shape, grid=len(x), in_specs=[row], out_specs=row, interpret=True)(x)  # here


def _in_a_run_state(x):
    def body(ref):
        ref[...] = jnp.log(ref[...])  # here

    return pl.run_state(body)(x)


def _asks(x):
    return lax.while_loop(lambda x: ~(jnp.log(x) > 5), lambda x: jnp.where(x < 0, 1e9, x - 1), x)  # here


def _root(x):
    return jnp.where(x > 0, jnp.sqrt(x), 0.0)  # here


def _logs(xs):
    return lax.scan(lambda total, x: (total + jnp.log(x), x), 0.0, xs)[0]  # here


def _roots(xs):
    return lax.scan(lambda total, x: (total + jnp.where(x > 0, jnp.sqrt(x), 1), None), 0.0, xs)[0]  # here


FAULTS = {
    "forward": _fault(lambda x: jnp.log(x) + jnp.sin(x), "log", -1.0),
    "zero_by_zero": _fault(lambda x, y: x / y, "div", 0.0, 0.0),
    "masked_away": _fault(_root, "sqrt", A, index=(1,)),
    "infinity_minus_infinity": _fault(lambda x: jnp.exp(x) - jnp.exp(x), "sub", 100.0),
    "overflow": _fault(lambda x: jnp.exp(x).sum(), "exp", [40, 80, 120], index=(2,), inf=True),
    "overflow_of_float16": _fault(lambda x: (x + 1) * x, "mul", np.float16([1, 300]), index=(1,), inf=True),
    "overflow_of_a_cast": _fault(
        lambda x: x.astype(jnp.float16), "convert_element_type", [1, 1e6], index=(1,), inf=True
    ),
    "overflow_of_a_type_without_infinity": _fault(
        lambda x: x.astype(jnp.float8_e4m3fn).astype(x.dtype), "convert_element_type", [1, 1e6], index=(1,)
    ),
    "without_arguments": _fault(lambda: jnp.log(-jnp.ones(())), "log"),
    "power": _fault(lambda x: x**-2, "integer_pow", [1, 0], index=(1,), inf=True),
    "root_of_negative": _fault(lambda x, y: x**y, "pow", A, 0.5, index=(1,)),
    "product_overflows": _fault(lambda a, x: a @ x, "dot_general", [[1e38, -1e38], [0, 1]], [9e9, 9e9], index=(0,)),
    "sum_of_infinities": _fault(lambda x: x.sum(), "reduce_sum", [np.inf, 1, -np.inf]),
    "normalized": _fault(lambda x: x / x.sum(1, keepdims=True), "div", [[1, 2], [0, 0]], index=(1, 0)),
    "fused_softmax": _fault(lambda x: jax.nn.softmax(x), "sub", [-np.inf, -np.inf], index=(0,)),
    "of_complex_numbers": _fault(lambda x: jnp.log(x), "log", np.complex64(0), inf=True),
    "not_positive": _fault(
        lambda a: jnp.linalg.cholesky(a, symmetrize_input=False), "cholesky", [[1, 2], [2, 1]], index=(0, 0)
    ),
    "outside_of_an_array": _fault(lambda x, i: x.at[i].get(mode="fill"), "gather", A, np.int32(7)),
    "in_a_tree": _fault(lambda x, i, y: {"a": x[i], "b": [jnp.log(y), None]}, "log", A, np.int32([1]), -1.0),
    "in_jit": _fault(_in_jit, "log", -1.0),
    "in_a_checkpoint": _fault(lambda x: jax.checkpoint(lambda y: jnp.log(y) * y)(x), "log", -1.0),
    "in_a_custom_jvp": _fault(_in_a_custom_jvp, "log", -1.0),
    "in_a_run_state": _fault(_in_a_run_state, "log", -1.0),
    # loops and branches
    "masked_away_in_a_scan": _fault(_roots, "sqrt", A, iteration=(1,)),
    "in_a_scan_backward": _fault(
        lambda xs: lax.scan(lambda t, x: (t + jnp.log(x), t), 0.0, xs, reverse=True), "log", A, iteration=(1,)
    ),
    "in_a_scan_in_a_scan": _fault(
        lambda xs: lax.scan(lambda t, x: lax.scan(lambda t, x: (t + (x - x) / x, None), t, x), 0.0, xs)[0],
        "div", [[1, 1, 1], [1, 1, 0]],
        iteration=(1, 2),
    ),
    "in_a_while_loop": _fault(
        lambda x: lax.while_loop(lambda x: x > -2, lambda x: x - 1 + 0 * jnp.sqrt(x), x), "sqrt", 3.0, iteration=(4,)
    ),
    "in_the_condition_of_a_loop": _fault(_asks, "log", 2.0, iteration=(3,)),
    "in_a_condition_with_a_reference": _fault(_in_a_condition_with_a_reference, "log", 2.0, iteration=(3,)),
    "masked_away_in_the_next_scan": _fault(
        lambda xs: lax.scan(lambda t, y: (t + jnp.where(y > 0, y, 0), y > 0), 0.0, jnp.log(xs)), "log", A, index=(1,)
    ),
    "dropped_by_the_next_iteration": _fault(
        lambda xs: lax.scan(lambda last, x: (jnp.log(x), x), 0.0, xs)[0], "log", A, iteration=(1,)
    ),
    "that_a_loop_alone_compares": _fault(
        lambda x: lax.fori_loop(0, 3, lambda i, at: (at[0] + (at[1] > 0), jnp.log(at[1] - 1)), (0, x))[0],
        "log", 1.5,
        iteration=(1,),
    ),
    "that_a_loop_alone_shows": _fault(
        lambda x: lax.fori_loop(0, 3, lambda i, at: (fx.log("turn", x=at), jnp.log(at - 1))[1], x) * 0 == 0,
        "log", 1.5,
        iteration=(1,),
    ),
    "given_to_what_makes_none": _fault(_given_to_what_makes_none, "log", -1.0),
    "lost_by_a_loop_without_iterations": _fault(lambda x: _no_iterations(x, jnp.log(x))[1], "log", -1.0),
    "kept_by_a_loop_without_iterations": _fault(lambda x: _no_iterations(x, jnp.log(x))[1:], "log", -1.0),
    "lost_by_a_branch": _fault(
        lambda x: lax.cond(x > 0, lambda y: y + 1, lambda y: jnp.where(y > 0, y, 0.0), jnp.log(x)), "log", -1.0
    ),
    "in_a_branch": _fault(
        lambda x, i: lax.switch(i, [lambda x: x, lambda x: jnp.log(x), lambda x: -x], x), "log", -1.0, np.int32(1)
    ),
    "in_a_branch_in_a_loop": _fault(
        lambda xs: lax.scan(lambda t, x: (lax.cond(x < 0, lambda: jnp.log(x), lambda: t), x), 0.0, xs),
        "log", A,
        iteration=(1,),
    ),
    # lanes
    "in_a_map": _fault(lambda xs: jax.vmap(lambda x: jnp.log(x) + 1)(xs), "log", A, index=(1,)),
    "in_a_lane": _fault(lambda x: jnp.log(x) * 2, "log", A, lane=(1,), through="lane"),
    "in_a_lane_of_a_lane": _fault(
        lambda x: jnp.where(x > 0, jnp.log(x), 0), "log", [[1, 2], [3, -4]], lane=(1, 1), through="lane_of_lane"
    ),
    "in_a_loop_in_a_lane": _fault(_logs, "log", [[1, 2, 3], [4, -5, 6]], lane=(1,), iteration=(1,), through="lane"),
    "in_a_condition_in_a_lane": _fault(_asks, "log", [200, 2, 4], iteration=(3,), lane=(1,), through="lane"),
    "in_a_condition_of_lanes": _fault(_asks, "log", [200, 2, 4], iteration=(3,), index=(1,), through="lanes"),
    # derivatives
    "forward_of_a_gradient": _fault(lambda x: jnp.log(x) * x, "log", -1.0, through="grad"),
    "forward_in_a_lane_of_a_gradient": _fault(
        lambda x: jnp.log(x) * x, "log", [4, -1], lane=(1,), through="lane_of_grad"
    ),
    "backward": _fault(_root, "mul", 0.0, backward=True, through="grad"),
    "backward_inside": _fault(_root, "mul", 0.0, backward=True, through="grad_inside"),
    "backward_in_a_scan": _fault(_roots, "mul", [1, 0, 2], iteration=(1,), backward=True, through="grad"),
    "backward_in_a_lane": _fault(_root, "mul", [1, 0], lane=(1,), backward=True, through="lane_of_grad"),
    "backward_in_a_checkpoint": _fault(
        lambda x: jax.checkpoint(lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0))(x).sum(),
        "mul", [0, 1],
        index=(0,), backward=True, through="grad",
    ),
    "backward_of_a_jacobian": _fault(
        _root, "mul", 0.0, lane=(0,), backward=True, through="jacrev"
    ),
    "in_the_rule_of_a_custom_vjp": _fault(lambda x: _squared(x), "log", -1.0, backward=True, through="grad"),
    # devices and kernels
    "on_a_device": _fault(
        lambda x: jnp.log(x) + 1, "log", [1, 2, 3, -4], index=(1,), device=1, through="region"
    ),
    "masked_away_on_a_device": _fault(
        lambda x: jnp.where(x > 0, jnp.sqrt(x), 0) + lax.psum(x, "d"),
        "sqrt", [1, 2, 3, -4],
        index=(1,), device=1, through="region",
    ),
    "in_a_loop_on_a_device": _fault(
        lambda x: lax.scan(lambda t, x: (t + jnp.log(x), x), lax.pcast(jnp.zeros(2), "d", to="varying"), x)[0],
        "log", [[1, 2], [3, 4], [-5, 6], [7, 8]],
        iteration=(0,), index=(0,), device=1, through="region",
    ),
    "in_a_kernel": _fault(_in_a_kernel, "pallas_call", ROWS, index=(2, 1)),
    "kernel_that_writes_nothing": _fault(
        lambda x: pl.pallas_call(lambda x_ref, o_ref: None, jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x),
        "pallas_call", ROWS,
        index=(0, 0),
    ),
    # predicates, of which one closes over an array, and what comes to a result
    "division_of_integers": _fault(
        lambda x: lax.div(np.int32([8, 8]), x), "div", np.int32([4, 0]), index=(1,), when=lambda x: x == -1
    ),
    "large": _fault(lambda x: x * x, "mul", [1, 2, 3], index=(2,), when=lambda x: abs(x) > 8),
    "large_in_a_loop": _fault(
        lambda x: lax.fori_loop(0, 5, lambda _, x: x * 2, x), "mul", 5.0, iteration=(2,), when=lambda x: x > 30
    ),
    "large_in_a_while_loop": _fault(
        lambda x: lax.while_loop(lambda x: x < 99, lambda x: 2 * x, x),
        "mul", 5.0, iteration=(2,), when=lambda x: x > 30,
    ),
    "of_a_kernel_to_a_predicate": _fault(
        _in_a_kernel, "pallas_call", abs(ROWS), index=(2, 1), when=lambda x: (x > LIMIT) & (x < 2.5)
    ),
    "that_ends_a_loop": _fault(
        lambda x: jnp.log(lax.while_loop(lambda x: ~jnp.isnan(jnp.sqrt(x)), lambda x: x - 1, x)),
        "log", 2.0,
        results=True,
    ),
    "of_the_result": _fault(lambda x: jnp.where(x > 0, jnp.log(x - 2), 0), "log", B, index=(0,), results=True),
    "of_the_result_behind_one_that_is_masked": _fault(
        lambda x: jnp.where(x > 0, jnp.sqrt(jnp.log(x)), 0), "sqrt", B, index=(2,), results=True
    ),
    "of_the_result_in_the_last_element": _fault(
        lambda x: jnp.where(x > 2, jnp.log(2 - x), 0), "log", B, index=(3,), results=True
    ),
    "of_the_result_in_a_scan": _fault(
        lambda x: lax.scan(lambda c, x: (c + jnp.where(x > 2, jnp.log(2 - x), 0), x), 0.0, x)[0],
        "log", B,
        iteration=(3,), results=True,
    ),
}  # fmt: skip

EMPTY = {
    "operation": lambda x, y: (jnp.log(x), jnp.log(y)),
    "operand": lambda x, y: jnp.concatenate([x, jnp.log(y)]),
    "product": lambda x, y: x[None] @ x[:, None] + jnp.log(y),
    "loop": lambda x, y: lax.scan(lambda c, x: (c + jnp.log(x), jnp.log(x)), jnp.log(y), x),
    "lanes": lambda x, y: (jax.vmap(jnp.log)(x), jnp.log(y)),
}
for _name, _f in EMPTY.items():  # an array without elements has no bad one, and hides none
    FAULTS[f"beside_an_empty_{_name}"] = _fault(_f, "log", [], [-1], index=(0,))
    FAULTS[f"beside_an_empty_{_name}_to_a_predicate"] = _fault(_f, "log", [], [-1], index=(0,), when=jnp.isnan)


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found(name):
    """The one error says the operation, the line, and in which iteration, lane and device, and results are right."""
    f, args, through, options, said = FAULTS[name]
    program, outs = fx.jit(through(f, functools.partial(fx.watch, **options))), []
    with pytest.raises(fx.CheckError) as caught:
        outs.append(jax.block_until_ready(program(*args)))
        fx.effects_barrier()
    [error] = caught.value.failures
    assert isinstance(error, fx.NonFinite)
    assert {each: getattr(error, each) for each in said} == said, str(error)
    assert "went on" in str(error) and error.count >= 1 and (error.operands or not args)
    jax.tree.map(np.testing.assert_array_equal, outs[0], jax.jit(through(f, lambda f: f))(*args))
