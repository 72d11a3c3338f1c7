"""Printing in Pallas kernels: which program of the grid sees what.

Each function is one example. What it prints stands in its docstring. JAX simulates the kernels (`interpret=True`), on
any platform; programs of the grid come one after the other, the last axis fastest. `python examples/kernels/grids.py`
runs all of them.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as pltriton

import effects as fx


def vector_add():
    """A block of each vector for each program. `{grid}` in a format is the index of the program.

    (0,): [0. 1.] + [10. 10.]
    (1,): [2. 3.] + [10. 10.]
    (2,): [4. 5.] + [10. 10.]
    the sum: [10. 11. 12. 13. 14. 15.]
    """

    def kernel(x_ref, y_ref, out_ref):
        fx.print("{grid}: {} + {}", x_ref, y_ref)  # a reference shows what is in it at this point
        out_ref[...] = x_ref[...] + y_ref[...]

    @fx.jit
    def add(x, y):
        block = pl.BlockSpec((2,), lambda i: (i,))
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        total = pl.pallas_call(
            kernel, grid=(3,), in_specs=[block, block], out_specs=block, out_shape=out, interpret=True
        )(x, y)
        fx.print("the sum: {}", total)
        return total

    add(jnp.arange(6.0), jnp.full(6, 10.0))


def program_ids():
    """A table of which program writes which block, and a branch that only some programs take.

    program 0 0 of 2 x 3
    program 0 1 of 2 x 3
    program 0 2 of 2 x 3: the last of its row
    program 1 0 of 2 x 3
    program 1 1 of 2 x 3
    program 1 2 of 2 x 3: the last of its row
    [[ 0  1  2]
     [10 11 12]]
    """

    def kernel(out_ref):
        i, j = pl.program_id(0), pl.program_id(1)
        rows, columns = pl.num_programs(0), pl.num_programs(1)
        is_last = j == columns - 1

        @pl.when(is_last)
        def _():
            fx.print("program {} {} of {} x {}: the last of its row", i, j, rows, columns)

        @pl.when(~is_last)
        def _():
            fx.print("program {} {} of {} x {}", i, j, rows, columns)

        out_ref[0, 0] = 10 * i + j

    @fx.jit
    def table():
        return pl.pallas_call(
            kernel,
            grid=(2, 3),
            out_specs=pl.BlockSpec((1, 1), lambda i, j: (i, j)),
            out_shape=jax.ShapeDtypeStruct((2, 3), jnp.int32),
            interpret=True,
        )()

    ids = table()
    fx.effects_barrier()
    print(ids)


def masked_load():
    """Five values in blocks of four: the last block reaches beyond them, and a mask keeps that out of the sum.

    block 0: [3. 1. 4. 1.], mask [ True  True  True  True]
    block 1: [5. 0. 0. 0.], mask [ True False False False]
    [9. 5.]
    """
    size = 5

    def kernel(x_ref, sum_ref):
        i = pl.program_id(0)
        mask = 4 * i + jnp.arange(4) < size
        values = pltriton.load(x_ref, mask=mask, other=0.0)
        fx.print("block {}: {}, mask {}", i, values, mask)
        sum_ref[0] = values.sum()

    @fx.jit
    def sums(x):
        return pl.pallas_call(
            kernel,
            grid=(2,),
            in_specs=[pl.BlockSpec((4,), lambda i: (i,))],
            out_specs=pl.BlockSpec((1,), lambda i: (i,)),
            out_shape=jax.ShapeDtypeStruct((2,), x.dtype),
            interpret=True,
        )(x)

    out = sums(jnp.array([3.0, 1.0, 4.0, 1.0, 5.0]))
    fx.effects_barrier()
    print(out)


def records():
    """What a kernel has done can be taken apart by the index of the program.

    (0,) at most 2.0
    (1,) at most 9.0
    the program with the largest: (1,)
    """

    def kernel(x_ref, out_ref):
        largest = x_ref[...].max()
        fx.print("at most {}", largest)
        out_ref[0] = largest

    @fx.jit
    def largest(x):
        return pl.pallas_call(
            kernel,
            grid=(2,),
            in_specs=[pl.BlockSpec((2,), lambda i: (i,))],
            out_specs=pl.BlockSpec((1,), lambda i: (i,)),
            out_shape=jax.ShapeDtypeStruct((2,), x.dtype),
            interpret=True,
        )(x)

    with fx.capture(suppress=True) as records:
        largest(jnp.array([1.0, 2.0, 9.0, 3.0]))
    for record in records:
        print(record.grid, record.text)
    print("the program with the largest:", max(records, key=lambda record: record.args[0]).grid)


EXAMPLES = [vector_add, program_ids, masked_load, records]

if __name__ == "__main__":
    for example in EXAMPLES:
        print(f"-- {example.__name__}")
        example()
        fx.effects_barrier()
