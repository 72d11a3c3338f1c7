"""Calling Python from compiled programs: the examples with which JAX teaches callbacks, with effects in order.

Each function is one example. What it prints stands in its docstring. `python examples/callbacks.py` runs all of them.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.experimental import io_callback

import effects as fx


def on_the_host(x):
    """A function of NumPy's, as a part of a program."""
    return fx.callback(np.square, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def results():
    """What a function returns goes back into the program, through `vmap` and `scan` too.

    [ 0.  1.  4.  9. 16.]
    [ 0.  1.  4.  9. 16.]
    [ 0.  1.  4.  9. 16.]
    """
    x = jnp.arange(5.0)
    print(fx.jit(on_the_host)(x))
    print(fx.jit(jax.vmap(on_the_host))(x))
    print(fx.jit(lambda x: jax.lax.scan(lambda _, x: (_, on_the_host(x)), None, x)[1])(x))


def not_removed():
    """A function is called whether its result is used or not. JAX's `pure_callback` may be left out, here as there.

    called
    pure, and used
    """

    def say(text):
        print(text)
        return np.int32(0)

    @fx.jit
    def f():
        number = jax.ShapeDtypeStruct((), jnp.int32)
        fx.callback(lambda: say("called"), number)
        jax.pure_callback(lambda: say("pure, and not used"), number)

    f()
    fx.effects_barrier()
    fx.jit(lambda: jax.pure_callback(lambda: say("pure, and used"), jax.ShapeDtypeStruct((), jnp.int32)))()


def state():
    """A random generator on the host. The order of its numbers is that of the program, under `vmap` too, which JAX's
    ordered callbacks refuse.

    generating float32[]
    generating float32[]
    generating float32[]
    the same numbers in the same order: True
    """
    generator = np.random.default_rng(0)

    def random_like(x):
        print(f"generating {x.dtype}{list(x.shape)}")
        return generator.uniform(size=x.shape).astype(x.dtype)

    numbers = fx.jit(jax.vmap(lambda x: fx.callback(random_like, x, x)))(jnp.zeros(3))
    expected = np.random.default_rng(0).uniform(size=3).astype(np.float32)
    print("the same numbers in the same order:", np.array_equal(numbers, expected))


def loops():
    """A queue on the host hands out work to a compiled loop.

    working on 3
    working on 1
    working on 2
    sum 6
    """
    queue = [3, 1, 2]
    number = jax.ShapeDtypeStruct((), jnp.int32)

    @fx.jit
    def work():
        def step(total):
            item = fx.callback(lambda: np.int32(queue.pop(0)), number)
            fx.print("working on {}", item)
            return total + item

        return jax.lax.while_loop(lambda _: fx.callback(lambda: np.int32(len(queue)), number) > 0, step, jnp.int32(0))

    total = work()
    fx.effects_barrier()
    print("sum", total)


def without_derivative():
    """A function of Python's has no derivative, and says so; what does not depend on the input needs none.

    NotDifferentiable
    hello
    1.0
    """
    try:
        jax.grad(lambda x: on_the_host(x))(1.0)
    except fx.NotDifferentiable as error:
        print(type(error).__name__)

    def f(x):
        fx.callback(lambda: print("hello"))
        return x

    slope = fx.jit(jax.grad(f))(1.0)
    fx.effects_barrier()
    print(slope)


def _bessel(order, z):
    order, z = jnp.asarray(order), jnp.asarray(z, jnp.float32)
    shape = jax.ShapeDtypeStruct(jnp.broadcast_shapes(order.shape, z.shape), z.dtype)

    def on_host(order, z):
        return scipy.special.jv(order, z).astype(z.dtype)

    return fx.callback(on_host, shape, order, z, vmap_method="broadcast_all")


bessel = jax.custom_jvp(_bessel)
"""The Bessel function of the first kind, from SciPy, with a derivative that is told."""


@bessel.defjvp
def _bessel_jvp(primals, tangents):
    order, z = primals
    below, above = bessel(order - 1, z), bessel(order + 1, z)
    slope = jnp.where(order == 0, -above, 0.5 * (below - above))
    return bessel(order, z), tangents[1] * slope


def derivative():
    """With a rule it has one, and higher ones, since the rule calls the function itself.

    [0.    0.44  0.577 0.339]
    [0.    0.44  0.577 0.339]
    slope -0.064, curvature -0.400
    """
    j1 = partial(bessel, 1)
    z = jnp.arange(4.0)
    with np.printoptions(precision=3):
        print(np.asarray(fx.jit(j1)(z)))
        print(np.asarray(fx.jit(jax.vmap(j1))(z)))
    print(f"slope {fx.jit(jax.grad(j1))(2.0):.3f}, curvature {fx.jit(jax.hessian(j1))(2.0):.3f}")


def beside_jax():
    """JAX's own callbacks below `fx.jit` are part of the same order.

    first
    second: 2.0
    third
    """

    @fx.jit
    def f(x):
        fx.print("first")
        jax.debug.print("second: {}", x, ordered=True)
        io_callback(lambda: print("third"), None, ordered=True)
        return x

    f(2.0)


EXAMPLES = [results, not_removed, state, loops, without_derivative, derivative, beside_jax]

if __name__ == "__main__":
    for example in EXAMPLES:
        print(f"-- {example.__name__}")
        example()
        fx.effects_barrier()
