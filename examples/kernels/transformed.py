"""Pallas kernels that print, under JAX's transformations.

Each function is one example. What it prints stands in its docstring. `python examples/kernels/transformed.py` runs all
of them.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

import effects as fx


def _scaled(x, factor, *, name="kernel"):
    """`factor * x`, in blocks of two."""

    def kernel(x_ref, out_ref):
        fx.print(f"{name} {{grid}}: {factor} * {{}}", x_ref)
        out_ref[...] = factor * x_ref[...]

    block = pl.BlockSpec((2,), lambda i: (i,))
    return pl.pallas_call(
        kernel,
        grid=(x.size // 2,),
        in_specs=[block],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        interpret=True,
    )(x)


def lanes():
    """Under `vmap` the lane is an axis of the grid, ahead of the others: a lane goes through its whole grid before the
    next one does.

    kernel (0, 0): 3 * [0. 1.]
    kernel (0, 1): 3 * [2. 3.]
    kernel (1, 0): 3 * [4. 5.]
    kernel (1, 1): 3 * [6. 7.]
    """
    fx.jit(jax.vmap(lambda x: _scaled(x, 3)))(jnp.arange(8.0).reshape(2, 4))


def some_lanes():
    """Under a predicate that differs between lanes, the kernel has its effects only in the lanes that are there.

    small, left as it is: [0. 1.]
    kernel (1, 0): 3 * [2. 3.]
    kernel (2, 0): 3 * [4. 5.]
    """

    def f(x):
        def unchanged(x):
            fx.print("small, left as it is: {}", x)
            return x

        return jax.lax.cond(x[0] > 1, lambda x: _scaled(x, 3), unchanged, x)

    fx.jit(jax.vmap(f))(jnp.arange(6.0).reshape(3, 2))


def derivative():
    """JAX does not transpose kernels. A rule gives the derivative, which may be a kernel itself.

    value (0,): 3 * [1. 2.]
    loss 9.0
    gradient (0,): 3 * [1. 1.]
    [3. 3.]
    """

    @jax.custom_vjp
    def scaled(x):
        return _scaled(x, 3, name="value")

    scaled.defvjp(lambda x: (scaled(x), None), lambda _, slope: (_scaled(slope, 3, name="gradient"),))

    def loss(x):
        loss = scaled(x).sum()
        fx.print("loss {}", loss)
        return loss

    slope = fx.jit(jax.grad(loss))(jnp.array([1.0, 2.0]))
    fx.effects_barrier()
    print(slope)


def steps():
    """Kernels in a loop, with prints between them: all are in one order.

    step 0
    kernel (0,): 2 * [1. 1.]
    step 1
    kernel (0,): 2 * [2. 2.]
    done: [4. 4.]
    """

    @fx.jit
    def doubled_twice(x):
        def step(x, number):
            fx.print("step {}", number)
            return _scaled(x, 2), None

        x, _ = jax.lax.scan(step, x, jnp.arange(2))
        fx.print("done: {}", x)
        return x

    doubled_twice(jnp.ones(2))


EXAMPLES = [lanes, some_lanes, derivative, steps]

if __name__ == "__main__":
    for example in EXAMPLES:
        print(f"-- {example.__name__}")
        example()
        fx.effects_barrier()
