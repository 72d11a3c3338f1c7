"""A bug in a kernel, and three ways to find it.

Each function is one example. What it prints stands in its docstring. `python examples/kernels/hunt.py` runs all of
them.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

import effects as fx
from effects.testing import check_grid_races


def _doubled(x):
    """Meant as `2 * x`, in blocks of two. The index map of the result is wrong: it should be `i`."""

    def kernel(x_ref, out_ref):
        out_ref[...] = 2 * x_ref[...]

    return pl.pallas_call(
        kernel,
        grid=(x.size // 2,),
        in_specs=[pl.BlockSpec((2,), lambda i: (i,))],
        out_specs=pl.BlockSpec((2,), lambda i: (i + 1,)),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        interpret=True,
    )(x)


def without_a_word():
    """JAX's simulation moves the last block to where it fits, over the block before it. The result is wrong, and looks
    as if the third block had been lost.

    [12 14]
    """
    fx.print("{}", fx.jit(_doubled)(jnp.arange(8))[-2:])


def bounds():
    """With bounds checks, the kernel says which program has a block outside, and of what.

    grid index (3,): out of bounds: start of the block of `outputs` at 8 along axis 0, which goes from 0 to 7
    """
    with fx.config.override(bounds_checks=True):
        fx.jit(_doubled)(jnp.arange(8))
    try:
        fx.effects_barrier()
    except fx.CheckError as error:
        fx.print(f"grid index {error.grid}: {error.message}")


def races():
    """Two programs write the last block: which of them is the last depends on the order of the grid. On a device, on
    chance.

    - result 0 at (6,) is 8 in the order reverse, and 12 in that of the grid
    """
    try:
        check_grid_races(_doubled, jnp.arange(8), orders=2)
    except AssertionError as report:
        fx.print("{}", str(report).splitlines()[-1])


EXAMPLES = [without_a_word, bounds, races]

if __name__ == "__main__":
    for example in EXAMPLES:
        print(f"-- {example.__name__}")
        example()
        fx.effects_barrier()
