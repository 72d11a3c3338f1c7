"""A matrix product as a Pallas kernel, with an activation that is fused into it and can be any function.

Each function is one example. What it prints stands in its docstring. `python examples/kernels/matmul.py` runs all of
them.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import effects as fx


def _matmul(x, y, *, block=2, activation=lambda x: x):
    """`activation(x @ y)`, in blocks. The last axis of the grid adds up products of blocks."""

    def kernel(x_ref, y_ref, out_ref, total_ref):
        k = pl.program_id(2)

        @pl.when(k == 0)
        def _():
            total_ref[...] = jnp.zeros_like(total_ref)

        total_ref[...] += x_ref[...] @ y_ref[...]
        fx.print("{grid} total {}", total_ref[0, 0])

        @pl.when(k == pl.num_programs(2) - 1)
        def _():
            out_ref[...] = activation(total_ref[...])
            fx.print("{grid} out   {}", out_ref[0, 0])

    (rows, inner), columns = x.shape, y.shape[1]
    return pl.pallas_call(
        kernel,
        grid=(rows // block, columns // block, inner // block),
        in_specs=[
            pl.BlockSpec((block, block), lambda i, j, k: (i, k)),
            pl.BlockSpec((block, block), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((block, block), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((rows, columns), x.dtype),
        scratch_shapes=[pltpu.VMEM((block, block), x.dtype)],
        interpret=True,
    )(x, y)


def fused_activation():
    """The total of a block grows over two steps, and then goes through the activation.

    (0, 0, 0) total 1.0
    (0, 0, 1) total 2.0
    (0, 0, 1) out   2.0
    (1, 0, 0) total -5.0
    (1, 0, 1) total -2.0
    (1, 0, 1) out   0.0
    [[2. 2.]
     [0. 0.]
     [0. 0.]
     [2. 2.]]
    """
    x = jnp.array([[1.0, 0, 1, 0], [0, -1, 0, 0], [-4, -1, 3, 0], [0, 1, 0, 1]])
    out = fx.jit(lambda x, y: _matmul(x, y, activation=jax.nn.relu))(x, jnp.ones((4, 2)))
    fx.effects_barrier()
    print(out)


def activation_with_effects():
    """The activation is traced into the kernel, and what it prints comes where the kernel calls it.

    (0, 0, 0) total 2.0
    (0, 0, 0) 1 of 4 are cut off
    (0, 0, 0) out   2.0
    """

    def relu(x):
        fx.print("{grid} {} of {} are cut off", (x < 0).sum(), x.size)
        return jnp.maximum(x, 0)

    fx.jit(lambda x, y: _matmul(x, y, activation=relu))(jnp.array([[2.0, 1], [1, -3]]), jnp.eye(2))


EXAMPLES = [fused_activation, activation_with_effects]

if __name__ == "__main__":
    for example in EXAMPLES:
        print(f"-- {example.__name__}")
        example()
        fx.effects_barrier()
