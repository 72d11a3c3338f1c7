"""Effects in Pallas kernels that JAX simulates: what kernels are made of, and kinds of effect."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import effects as fx
from effects._model.line import Line
from tests.extensions.kernels.simulation import (
    INT,
    X,
    blocks,
    copy_kernel,
    dynamic,
    run,
    seen_of,
    texts,
)
from tests.helpers import run_python

# What a kernel is made of


def test_loops_and_branches_know_their_program():
    """`pl.program_id` and `pl.num_programs` stand in loops, branches and functions, which JAX's simulation refuses."""

    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(0) > 0)
        def _():
            def body(i, total):
                fx.print("{} {} of {}", i, pl.program_id(0), pl.num_programs(0))
                return total + x_ref[i]

            o_ref[...] = x_ref[...] + jax.lax.fori_loop(0, 2, body, 0)

        @jax.jit
        def inner(x):
            fx.print("inner {} {}", x[0], pl.program_id(0))
            return x + 1

        inner(inner(x_ref[...]))

    assert texts(kernel, **blocks(4)) == [
        *("inner 0 0", "inner 1 0"),
        *("0 1 of 2", "1 1 of 2", "inner 4 1", "inner 5 1"),
    ]


def test_run_scoped():
    """References that a kernel has for a while, in loops whose condition reads them too."""

    def kernel(x_ref, o_ref):
        def body(scratch):
            scratch[...] = x_ref[...]

            def goes_on(i):
                fx.print("{} {}", pl.program_id(0), scratch[i])
                return scratch[i] < 3

            def step(i):
                scratch[i + 1] = scratch[i + 1] + 1
                return i + 1

            return jax.lax.while_loop(goes_on, step, 0)

        o_ref[...] = x_ref[...] + pl.run_scoped(body, pltpu.VMEM((4,), jnp.int32))

    result, seen = run(kernel, **blocks(4))
    assert seen == [("0 0", (0,), ()), ("0 2", (0,), ()), ("0 3", (0,), ()), ("1 4", (1,), ())]
    assert result.tolist() == [2, 3, 4, 5, 4, 5, 6, 7]


def test_dynamic_grid():
    assert seen_of(fx.jit(dynamic), jnp.int32(4), X)[1] == [("0 of 4", (0,), ()), ("2 of 4", (2,), ())]


def test_masked_loads_and_stores():
    from jax.experimental.pallas import triton

    def kernel(x_ref, o_ref):
        at = jnp.arange(8)
        o_ref[...] = jnp.full(8, 5, jnp.int32)
        loaded = triton.load(x_ref.at[at], mask=at < 3, other=-1)
        triton.store(o_ref.at[at], loaded, mask=at < 2)
        fx.print("{} {}", loaded, o_ref)

    assert texts(kernel) == ["[ 0  1  2 -1 -1 -1 -1 -1] [0 1 5 5 5 5 5 5]"]


def test_references_of_the_enclosing_function():
    """A kernel may close over references; what becomes of them is as without effects."""

    def f(x, with_effects):
        ref = jax.new_ref(x)

        def kernel(o_ref):
            if with_effects:
                fx.print("{}", ref[0])
            ref[0] = 7
            o_ref[...] = ref[...]

        return pl.pallas_call(kernel, out_shape=INT, interpret=True)(), ref[...]

    result, seen = seen_of(fx.jit(functools.partial(f, with_effects=True)), X)
    plain = jax.jit(functools.partial(f, with_effects=False))(X)
    assert seen == [("0", (), ())]
    assert [x.tolist() for x in result] == [x.tolist() for x in plain]


# Kinds of effect


def test_jax_effects():
    """JAX's own prints and callbacks are effects as any other."""
    called = []

    def kernel(x_ref, o_ref):
        jax.debug.print("debug {}", x_ref[0])
        pl.debug_print("kernel {}", x_ref[1])

        def body(i, carry):
            io_callback(lambda i: called.append(int(i)), None, i, ordered=True)
            jax.debug.print("loop {}", i)
            return carry

        jax.lax.fori_loop(0, 2, body, 0)
        o_ref[...] = io_callback(lambda x: np.asarray(x) * 2, jax.ShapeDtypeStruct((4,), jnp.int32), x_ref[...])

    result, seen = run(kernel, **blocks(4))
    prints = [(text, grid) for text, grid, _ in seen if "(" not in text]
    assert prints == [
        (text, (i,)) for i in range(2) for text in (f"debug {4 * i}", f"kernel {4 * i + 1}", "loop 0", "loop 1")
    ]
    assert called == [0, 1, 0, 1] and result.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


# What is refused, and what is left alone


def test_effects_in_index_maps():
    """An index map with an effect is refused at its line, one of JAX's own too."""
    for show in (fx.print, jax.debug.print):

        def index_map(i, show=show):
            show("{}", i)
            return (i,)

        options = {**blocks(4), "in_specs": [pl.BlockSpec((4,), index_map)], "out_shape": INT, "interpret": True}
        with pytest.raises(
            ValueError, match=r"index map.*effect.*test_simulated.py:\d+.*Move the effect into the kernel"
        ):
            fx.jit(lambda x, options=options: pl.pallas_call(copy_kernel, **options)(x))(X)


def test_field_of_the_grid_outside_of_kernels():
    with pytest.raises(fx.FormatError, match="there is no argument 'grid'"):
        fx.jit(lambda: fx.print("{grid}"))()


WITHOUT_EFFECTS = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl

def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2

shape, spec = jax.ShapeDtypeStruct((8,), jnp.float32), pl.BlockSpec((4,), lambda i: (i,))
call = pl.pallas_call(kernel, out_shape=shape, grid=(2,), in_specs=[spec], out_specs=spec, interpret=True)
x = jnp.ones((2, 8))
print(jax.make_jaxpr(jax.vmap(call))(x))
print(jax.make_jaxpr(lambda x: jax.jvp(jax.vmap(call), (x,), (x,)))(x))
print(jax.jit(jax.vmap(call)).lower(x).as_text())
"""


@pytest.mark.slow
def test_kernels_without_effects_are_untouched():
    """What becomes of kernels with no effects of ours is the same, with this library and without."""
    plain, ours = run_python(WITHOUT_EFFECTS), run_python(f"import effects\n{WITHOUT_EFFECTS}")
    assert plain.returncode == ours.returncode == 0, plain.stderr + ours.stderr
    assert "pallas_call" in plain.stdout and "stablehlo" in plain.stdout
    assert plain.stdout == ours.stdout


@pytest.mark.parametrize("grid", [(), (3,), (2, 3), (2, 1, 2)])
def test_native_code_shows_the_place_in_the_grid(grid, lines, monkeypatch):
    """Lines with `{grid}` need no Python, and are the same to the byte as those that Python makes."""

    def kernel(x_ref, o_ref):
        fx.print("{grid!s}: {}{grid}", x_ref[0])
        o_ref[...] = x_ref[...]

    def program(of_a_new_site):
        return fx.jit(lambda x: pl.pallas_call(kernel, out_shape=INT, grid=grid, interpret=True)(x) + of_a_new_site)

    with fx.capture(suppress=True) as records:
        program(0)(X)
        fx.effects_barrier()
    expected = [f"{index}: 0{index}" for index in np.ndindex(*grid)]
    assert [record.text for record in records] == expected
    monkeypatch.setattr(Line, "text", None)
    assert lines(program(1), X) == expected
