"""What tests of simulated kernels share: kernels, and what is seen of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import effects as fx

X = jnp.arange(8, dtype=jnp.int32)
INT = jax.ShapeDtypeStruct((8,), jnp.int32)


def run(kernel, *args, **options):
    """The results of a simulated kernel, and what its records are: (text, grid, lane)."""
    options = {"out_shape": INT, "interpret": True, **options}
    return seen_of(fx.jit(lambda *args: pl.pallas_call(kernel, **options)(*args)), *(args or (X,)))


def seen_of(program, *args):
    with fx.capture(suppress=True) as records:
        result = jax.tree.map(np.asarray, program(*args))
    return result, [(record.text, record.grid, record.lane) for record in records]


def texts(kernel, *args, **options):
    return [text for text, _, _ in run(kernel, *args, **options)[1]]


def blocks(size):
    spec = pl.BlockSpec((size,), lambda i: (i,))
    return {"grid": (8 // size,), "in_specs": [spec], "out_specs": spec}


def copy_kernel(x_ref, o_ref):
    fx.print("{}", x_ref[0])
    o_ref[...] = x_ref[...]


def copying(x, kernel=copy_kernel):
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


def prefetching(starts, x):
    def kernel(starts_ref, x_ref, o_ref):
        fx.print("{} {}", starts_ref[pl.program_id(0)], x_ref[...])
        o_ref[...] = x_ref[...]

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(2,),
        in_specs=[pl.BlockSpec((4,), lambda i, starts: (starts[i],))],
        out_specs=pl.BlockSpec((4,), lambda i, _: (i,)),
    )
    return pl.pallas_call(kernel, out_shape=INT, grid_spec=spec, interpret=True)(starts, x)


def dynamic(size, x):
    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(0) % 2 == 0)
        def _():
            fx.print("{} of {}", pl.program_id(0), pl.num_programs(0))

        o_ref[...] = x_ref[...]

    return pl.pallas_call(kernel, out_shape=INT, grid=(size,), interpret=True)(x)
