"""Programs with one planted fault each, in the line that ends with `# here`."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec

import effects as fx

MESH = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


class Fault(NamedTuple):
    program: Callable[..., Any]
    plain: Callable[..., Any]  # the same without `fx.watch`
    args: tuple[Any, ...]
    operation: str
    line: int
    iteration: tuple[int, ...] = ()
    lane: tuple[int, ...] = ()
    index: tuple[int, ...] = ()
    device: int | None = None  # None: where the whole program ran
    backward: bool = False


FAULTS: dict[str, Fault] = {}
X, V, A = np.float32(0.5), np.float32([1, 2, 3]), np.float32([1, -2, 3])


def _only(f, watch):
    return watch(f)


def fault(operation, *args, through=_only, options=types.MappingProxyType({}), **known):
    """Registers a function. `through(f, watch)` makes the program of it that is run."""

    def register(f):
        source, first = inspect.getsourcelines(f)
        [at] = [i for i, text in enumerate(source) if text.rstrip().endswith("# here")]
        program = through(f, functools.partial(fx.watch, **options))
        FAULTS[f.__name__.strip("_")] = Fault(program, through(f, lambda f: f), args, operation, first + at, **known)
        return f

    return register


@fault("log", np.float32(-1))
def _forward(x):
    y = jnp.sin(x)
    return jnp.log(x) + y  # here


@fault("div", np.float32(0), np.float32(0))
def _zero_by_zero(x, y):
    return x / y  # here


@fault("sqrt", A, index=(1,))
def _masked_away(x):
    return jnp.where(x > 0, jnp.sqrt(x), 0.0)  # here


@fault("sub", np.float32(100))
def _infinity_minus_infinity(x):
    y = jnp.exp(x)
    return y - y  # here


@fault("exp", V * 40, index=(2,), options={"inf": True})
def _overflow(x):
    return jnp.exp(x).sum()  # here


@fault("mul", np.float16([1, 300]), index=(1,), options={"inf": True})
def _overflow_of_float16(x):
    y = x + 1
    return y * x  # here


@fault("convert_element_type", np.float32([1, 1e6]), index=(1,), options={"inf": True})
def _overflow_of_a_cast(x):
    return x.astype(jnp.float16)  # here


@fault("convert_element_type", np.float32([1, 1e6]), index=(1,))
def _overflow_of_a_type_without_infinity(x):
    return x.astype(jnp.float8_e4m3fn).astype(x.dtype)  # here


@fault("log")
def _without_arguments():
    return jnp.log(-jnp.ones(()))  # here


@fault("integer_pow", np.float32([1, 0]), index=(1,), options={"inf": True})
def _power(x):
    return x**-2  # here


@fault("pow", A, np.float32(0.5), index=(1,))
def _root_of_negative(x, y):
    return x**y  # here


@fault("dot_general", np.float32([[1e38, -1e38], [0, 1]]), np.float32([9e9, 9e9]), index=(0,))
def _product_overflows(a, x):
    return a @ x  # here


@fault("reduce_sum", np.float32([np.inf, 1, -np.inf]))
def _sum_of_infinities(x):
    return x.sum()  # here


@fault("div", np.float32([[1, 2], [0, 0]]), index=(1, 0))
def _normalized(x):
    return x / x.sum(1, keepdims=True)  # here


@fault("sub", np.float32([-np.inf, -np.inf]), index=(0,))
def _fused_softmax(x):
    return jax.nn.softmax(x)  # here


@fault("log", np.float32(-1))
def _in_jit(x):
    @jax.jit
    def inner(y):
        return jnp.log(y)  # here

    return inner(x + 9) + inner(x)


@fault("log", np.float32(-1))
def _in_a_checkpoint(x):
    @jax.checkpoint
    def inner(y):
        return jnp.log(y) * y  # here

    return inner(x)


@fault("log", A, iteration=(1,))
def _in_a_scan(xs):
    def step(total, x):
        y = jnp.log(x)  # here
        return total + y, y

    return lax.scan(step, jnp.float32(0), xs)


@fault("sqrt", A, iteration=(1,))
def _masked_away_in_a_scan(xs):
    def step(total, x):
        return total + jnp.where(x > 0, jnp.sqrt(x), 1), None  # here

    return lax.scan(step, jnp.float32(0), xs)[0]


@fault("log", A, iteration=(1,))
def _in_a_scan_backward(xs):
    def step(total, x):
        return total + jnp.log(x), total  # here

    return lax.scan(step, jnp.float32(0), xs, reverse=True)


@fault("div", np.float32([[1, 1, 1], [1, 1, 0]]), iteration=(1, 2))
def _in_a_scan_in_a_scan(xs):
    def inner(total, x):
        return total + (x - x) / x, None  # here

    return lax.scan(lambda total, x: lax.scan(inner, total, x), jnp.float32(0), xs)[0]


@fault("sqrt", np.float32(3), iteration=(4,))
def _in_a_while_loop(x):
    def body(at):
        i, x = at
        return i + 1, x - 1 + 0 * jnp.sqrt(x)  # here

    return lax.while_loop(lambda at: at[0] < 8, body, (0, x))


@fault("log", np.float32(2), iteration=(3,))
def _in_the_condition_of_a_loop(x):
    return lax.while_loop(lambda x: ~(jnp.log(x) > 5), lambda x: jnp.where(x < 0, 1e9, x - 1), x)  # here


@fault("log", np.float32(2), iteration=(3,))
def _in_a_condition_with_a_reference(x):
    def test(x):
        reference = jax.new_ref(x)
        reference[...] = jnp.log(x)  # here
        return ~(jax.freeze(reference) > 5)

    return lax.while_loop(test, lambda x: jnp.where(x < 0, 1e9, x - 1), x)


@fault("log", A, index=(1,))
def _masked_away_in_the_next_scan(xs):
    ys = jnp.log(xs)  # here
    return lax.scan(lambda total, y: (total + jnp.where(y > 0, y, 0), y > 0), jnp.float32(0), ys)


@fault("log", np.float32(-1))
def _given_to_what_makes_none(x):
    y = jax.jit(jnp.negative)(jnp.log(x))  # here
    y = lax.cond(x < 0, lambda y: -y, lambda y: y, lax.fori_loop(0, 3, lambda i, y: -y, y))
    return lax.scan(lambda y, _: (-y, None), y, None, 3)[0]


@fault("log", np.float32(-1), np.int32(0))
def _lost_by_a_loop_without_iterations(x, n):
    y = jnp.log(x)  # here
    return lax.while_loop(lambda at: at[0] < n, lambda at: (at[0] + 1, lax.max(at[1], at[2]), 0.0), (0, x, y))[1]


@fault("log", np.float32(-1), np.int32(0))
def _kept_by_a_loop_without_iterations(x, n):
    y = jnp.log(x)  # here
    return lax.while_loop(lambda at: at[0] < n, lambda at: (at[0] + 1, lax.max(at[1], at[2]), 0.0), (0, x, y))[1:]


@fault("log", np.float32(-1))
def _lost_by_a_branch(x):
    y = jnp.log(x)  # here
    return lax.cond(x > 0, lambda y: y + 1, lambda y: jnp.where(y > 0, y, 0.0), y)


@fault("log", np.float32(-1), np.int32(1))
def _in_a_branch(x, i):
    return lax.switch(i, [lambda x: x, lambda x: jnp.log(x), lambda x: -x], x)  # here


@fault("log", A, iteration=(1,))
def _in_a_branch_in_a_loop(xs):
    def step(total, x):
        return lax.cond(x < 0, lambda: jnp.log(x), lambda: total), x  # here

    return lax.scan(step, jnp.float32(0), xs)


@fault("log", A, index=(1,))
def _in_a_map(xs):
    return jax.vmap(lambda x: jnp.log(x) + 1)(xs)  # here


@fault("log", A, lane=(1,), through=lambda f, watch: jax.vmap(watch(f)))
def _in_a_lane(x):
    return jnp.log(x) * 2  # here


@fault("log", np.float32([[1, 2], [3, -4]]), lane=(1, 1), through=lambda f, watch: jax.vmap(jax.vmap(watch(f))))
def _in_a_lane_of_a_lane(x):
    return jnp.where(x > 0, jnp.log(x), 0)  # here


@fault(
    "log", np.float32([[1, 2, 3], [4, -5, 6]]), lane=(1,), iteration=(1,), through=lambda f, watch: jax.vmap(watch(f))
)
def _in_a_loop_in_a_lane(xs):
    return lax.scan(lambda total, x: (total + jnp.log(x), x), jnp.float32(0), xs)[0]  # here


@fault("log", np.float32(-1), through=lambda f, watch: jax.grad(watch(f)))
def _forward_of_a_gradient(x):
    return jnp.log(x) * x  # here


@fault("mul", np.float32(0), through=lambda f, watch: jax.grad(watch(f)), backward=True)
def _backward(x):
    return jnp.where(x > 0, jnp.sqrt(x), 0.0)  # here


@fault("mul", np.float32(0), through=lambda f, watch: watch(jax.grad(f)), backward=True)
def _backward_inside(x):
    return jnp.where(x > 0, jnp.sqrt(x), 0.0)  # here


@fault("mul", np.float32([1, 0, 2]), iteration=(1,), through=lambda f, watch: jax.grad(watch(f)), backward=True)
def _backward_in_a_scan(xs):
    def step(total, x):
        return total + jnp.where(x > 0, jnp.sqrt(x), 0.0), None  # here

    return lax.scan(step, jnp.float32(0), xs)[0]


@fault("mul", np.float32([1, 0]), lane=(1,), through=lambda f, watch: jax.vmap(jax.grad(watch(f))), backward=True)
def _backward_in_a_lane(x):
    return jnp.where(x > 0, jnp.sqrt(x), 0.0)  # here


@jax.custom_vjp
def _squared(x):
    return x * x


def _squared_backward(x, cotangent):
    return (cotangent * jnp.log(x),)


_squared.defvjp(lambda x: (x * x, x), _squared_backward)


@fault("log", np.float32(-1), through=lambda f, watch: jax.grad(watch(f)), backward=True)
def _in_the_rule_of_a_custom_vjp(x):
    return _squared(x)  # here


@fault("log", np.float32(-1))
def _in_a_custom_jvp(x):
    @jax.custom_jvp
    def inner(x):
        return jnp.log(x)  # here

    inner.defjvps(lambda t, out, x: t)
    return inner(x)


def _in_region(f, watch):
    return watch(jax.shard_map(f, mesh=MESH, in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d")))


@fault("log", np.float32([1, 2, 3, -4]), index=(1,), device=1, through=_in_region)
def _on_a_device(x):
    return jnp.log(x) + 1  # here


@fault("sqrt", np.float32([1, 2, 3, -4]), index=(1,), device=1, through=_in_region)
def _masked_away_on_a_device(x):
    total = lax.psum(x, "d")
    return jnp.where(x > 0, jnp.sqrt(x), 0) + total  # here


@fault("log", np.float32([[1, 2], [3, 4], [-5, 6], [7, 8]]), iteration=(0,), index=(0,), device=1, through=_in_region)
def _in_a_loop_on_a_device(x):
    return lax.scan(lambda total, x: (total + jnp.log(x), x), lax.pcast(jnp.zeros(2), "d", to="varying"), x)[0]  # here


@fault("div", np.int32([4, 0]), index=(1,), options={"when": lambda x: x == -1})
def _division_of_integers(x):
    return lax.div(np.int32([8, 8]), x)  # here


@fault("mul", V, index=(2,), options={"when": lambda x: abs(x) > 8})
def _large(x):
    return x * x  # here


@fault("log", np.complex64(0), options={"inf": True})
def _of_complex_numbers(x):
    return jnp.log(x)  # here


@fault("cholesky", np.float32([[1, 2], [2, 1]]), index=(0, 0))
def _not_positive(a):
    return jnp.linalg.cholesky(a, symmetrize_input=False)  # here


@fault("gather", V, np.int32(7))
def _outside_of_an_array(x, i):
    return x.at[i].get(mode="fill")  # here


@fault("log", V, np.int32([1]), np.float32(-1))
def _in_a_tree(x, i, y):
    return {"a": x[i], "b": [jnp.log(y), None]}  # here


@fault("mul", np.float32([0, 1]), index=(0,), through=lambda f, watch: jax.grad(watch(f)), backward=True)
def _backward_in_a_checkpoint(x):
    @jax.checkpoint
    def inner(x):
        return jnp.where(x > 0, jnp.sqrt(x), 0.0)  # here

    return inner(x).sum()


@fault("mul", np.float32(0), lane=(0,), through=lambda f, watch: jax.jacrev(watch(f)), backward=True)
def _backward_of_a_jacobian(x):
    return jnp.where(x > 0, jnp.sqrt(x), 0.0)  # here


@fault("log", np.float32([4, -1]), lane=(1,), through=lambda f, watch: jax.vmap(jax.grad(watch(f))))
def _forward_in_a_lane_of_a_gradient(x):
    return jnp.log(x) * x  # here


ROWS = np.float32([[1, 2], [3, 4], [5, -6]])


@fault("pallas_call", ROWS, index=(2, 1))
def _in_a_kernel(x):
    def kernel(x_ref, o_ref):
        o_ref[...] = jnp.log(x_ref[...] * 2)

    row = pl.BlockSpec((1, x.shape[1]), lambda i: (i, 0))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(kernel, shape, grid=len(x), in_specs=[row], out_specs=row, interpret=True)(x)  # here


@fault("pallas_call", ROWS, index=(0, 0))
def _kernel_that_writes_nothing(x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(lambda x_ref, o_ref: None, shape, interpret=True)(x)  # here


@fault("log", np.float32(-1))
def _in_a_run_state(x):
    def body(ref):
        ref[...] = jnp.log(ref[...])  # here

    return pl.run_state(body)(x)
