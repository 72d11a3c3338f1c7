"""A higher-order primitive of your own: one description, and effects inside it go everywhere.

`repeat(body, times, x)` runs its body several times. All that this library must know of it is how it holds the body,
which `_repeat` below says in one line. `python examples/own_primitive.py` runs all of the examples.
"""

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad

import effects as fx
import lowering

repeat_p = Primitive("repeat")
repeat_p.multiple_results = True


def repeat(fun, times, x):
    """`fun` applied to x several times."""
    return repeat_p.bind(x, body=jax.make_jaxpr(fun)(x), times=times)[0]


# What JAX must know: types and effects, and the derivative.


@repeat_p.def_effectful_abstract_eval
def _abstract_eval(*avals, body, times):
    return body.out_avals, set(body.effects)


def _jvp(primals, tangents, *, body, times):
    def unrolled(*args):
        for _ in range(times):
            args = jaxpr_as_fun(body)(*args)
        return args

    return jax.jvp(unrolled, primals, tuple(map(ad.instantiate_zeros, tangents)))


ad.primitive_jvps[repeat_p] = _jvp

# What this library must know: tokens, masks and lanes come of it.


@lowering.holds(repeat_p)
def _repeat(extra, *args, body, times):
    for _ in range(times):
        args = extra.run(body, args)
    return args


def _double(x):
    fx.print("doubling {}", x)
    return 2 * x


def in_a_loop():
    """Inside `fx.jit` and `lax.scan`.

    doubling 1.0
    doubling 2.0
    then 4.0
    doubling 5.0
    doubling 10.0
    then 20.0
    """

    @fx.jit
    def f(x):
        def step(carry, x):
            y = repeat(_double, 2, carry + x)
            fx.print("then {}", y)
            return y, y

        return jax.lax.scan(step, x, jnp.array([0.0, 1.0]))[0]

    f(1.0)


def derivative():
    """Under `grad` effects happen in the forward pass, once.

    doubling 3.0
    doubling 6.0
    the derivative is 4.0
    """
    fx.print("the derivative is {}", fx.jit(jax.grad(lambda x: repeat(_double, 2, x)))(3.0))


def some_lanes():
    """In a branch whose predicate differs between the lanes of a `vmap`, the lanes that take it have the effects.

    doubling 1.0
    doubling 2.0
    doubling 2.0
    doubling 4.0
    the lanes give [0. 4. 8.]
    """

    def f(x):
        return jax.lax.cond(x > 0, lambda x: repeat(_double, 2, x), lambda x: x, x)

    fx.print("the lanes give {}", fx.jit(jax.vmap(f))(jnp.arange(3.0)))


EXAMPLES = [in_a_loop, derivative, some_lanes]

if __name__ == "__main__":
    for example in EXAMPLES:
        print(f"-- {example.__name__}")
        example()
        fx.effects_barrier()
