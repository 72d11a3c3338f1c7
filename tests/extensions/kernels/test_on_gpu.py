"""Compiled kernels on a GPU, where there is one: the same records as in the simulation."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

import effects as fx
from tests.extensions.kernels.test_targets import BLOCKS, SCALARS
from tests.helpers import meet_barrier

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(jax.default_backend() != "gpu", reason="no GPU"),
    pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated"),
]


def call(kernel, interpret, x):
    spec = pl.BlockSpec((x.shape[0] // 4,), lambda i: (i,))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    options = {} if interpret else {"compiler_params": plt.CompilerParams()}
    options |= {"grid": (4,), "in_specs": [spec], "out_specs": spec, "interpret": interpret}
    return fx.pallas_call(kernel, shape, log_capacity=1024, **options)(x)


@pytest.mark.parametrize("kernel", SCALARS + BLOCKS)
@pytest.mark.parametrize("jit", [fx.jit, jax.jit], ids=["fx.jit", "jax.jit"])
def test_same_as_simulated(kernel, jit):
    """Values, texts and places are those of the simulation, alone and under `vmap`."""
    x = jnp.arange(512, dtype=jnp.float32)
    seen = []
    for interpret in (True, False):
        once = functools.partial(call, kernel, interpret)
        with fx.capture(suppress=True) as records:
            results = jit(once)(x), jit(jax.vmap(once))(jnp.stack([x, x + 1]))
            jax.block_until_ready(results)
            meet_barrier()
        seen.append((jax.tree.map(np.asarray, results), [(r.text, r.grid, r.effect) for r in records]))
    jax.tree.map(np.testing.assert_array_equal, seen[0][0], seen[1][0])
    assert seen[0][1] == seen[1][1]
