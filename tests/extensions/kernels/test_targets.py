"""Compiled kernels with effects, lowered for devices that are not here: every construct and type, and a matmul.

What the lowered kernels write is what `test_logs.py` reads from the same kernels in the simulation.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plt
from jax.sharding import AbstractDevice, AbstractMesh

import effects as fx
from effects._jax import pallas
from effects.extensions.kernels import log_rules
from effects.extensions.kernels.log_rules import LogOptions, log_kernel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated"),
    pytest.mark.filterwarnings("ignore:Using ``pl.pallas_call`` for Mosaic GPU kernels is deprecated"),
]

DEVICES = {"cuda": ("NVIDIA H100 80GB HBM3", 132, "gpu"), "tpu": ("TPU v5p", 1, "tpu")}

TARGETS = {"triton": ("cuda", plt.CompilerParams()), "tpu": ("tpu", pltpu.CompilerParams())}

BLOCK = 128
X = jax.ShapeDtypeStruct((4 * BLOCK,), jnp.float32)


def platform_of(platform):
    """A context in which JAX takes a device of this platform to be there."""
    return jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=AbstractDevice(*DEVICES[platform])))


def lower(fun, platform, *args, jit=jax.jit):
    """The text of a program for a platform that is not here."""
    with platform_of(platform):
        return jit(fun).trace(*args).lower(lowering_platforms=(platform,)).as_text()


def call(kernel, options, x):
    spec = pl.BlockSpec((x.shape[0] // 4,), lambda i: (i,))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(kernel, out_shape=shape, grid=(4,), in_specs=[spec], out_specs=spec, compiler_params=options)(
        x
    )


def logged(f):
    """The kernel in a program with its log as a result. What publishes the log needs the device."""

    def run(*args):
        (eqn,) = [e for e in jax.make_jaxpr(f)(*args).jaxpr.eqns if e.primitive is pallas.pallas_call_p]
        outs, records = log_kernel(args, eqn.params, LogOptions(capacity=1024))
        return outs, [operands for _, operands in records]

    return run


def say(*args):
    fx.print("{} " * len(args), *args)


def k_scalar(x, o):
    say(pl.program_id(0))
    o[...] = x[...]


def k_sum(x, o):
    total = jnp.sum(x[...])
    say(total)
    o[...] = x[...] + total


def k_loop(x, o):
    def body(i, c):
        say(i, c)
        return c + 1.5

    o[...] = x[...] + jax.lax.fori_loop(0, 4, body, 0.0)


def k_dynamic_loop(x, o):
    def body(i, c):
        say(i)
        return c + 1.5

    o[...] = x[...] + jax.lax.fori_loop(0, pl.program_id(0), body, 0.0)


def k_when(x, o):
    o[...] = x[...]

    @pl.when(pl.program_id(0) == 1)
    def _():
        say(pl.program_id(0))


def k_cond(x, o):
    i = pl.program_id(0)

    def then():
        say(i)
        return i

    # JAX's lowering for Triton takes no branch that returns a literal.
    o[...] = x[...] + jax.lax.cond(i > 1, then, lambda: i * 2).astype(jnp.float32)


def k_while(x, o):
    i = pl.program_id(0)

    def body(c):
        say(c)
        return c + 1

    o[...] = x[...] + jax.lax.while_loop(lambda c: c < 3 + i, body, 0).astype(jnp.float32)


def k_condition(x, o):
    i = pl.program_id(0)

    def condition(c):
        say(c)
        return c < 3 + i

    o[...] = x[...] + jax.lax.while_loop(condition, lambda c: c + 1, 0).astype(jnp.float32)


def k_nested(x, o):
    @jax.jit
    def inner(i):
        say(i)
        return i + 1

    inner(inner(pl.program_id(0)))
    o[...] = x[...]


def k_callback(x, o):
    fx.callback(print, None, pl.program_id(0))
    fx.log("step", program=pl.program_id(0))
    o[...] = x[...]


def k_narrow(x, o):
    i = pl.program_id(0)
    say(i == 1, i.astype(jnp.uint32), i.astype(jnp.int8), jnp.sum(x[...]).astype(jnp.bfloat16))
    o[...] = x[...]


def k_block(x, o):
    say(x[...])
    o[...] = x[...]


def k_reference(x, o):
    o[...] = x[...] * 2
    say(o)


def k_half_block(x, o):
    say(x[...].astype(jnp.float16))
    o[...] = x[...]


SCALARS = [
    *(k_scalar, k_sum, k_loop, k_dynamic_loop, k_when, k_cond, k_while, k_condition, k_nested, k_callback, k_narrow)
]
BLOCKS = [k_block, k_reference, k_half_block]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", SCALARS + BLOCKS)
def test_constructs(target, kernel):
    """Every construct and type is lowered where the target takes it, else refused at the user's line."""
    platform, options = TARGETS[target]
    if target == "tpu" and kernel in BLOCKS:
        with pytest.raises(NotImplementedError, match=r"test_targets\.py:\d+ records an array .*takes scalars"):
            lower(logged(functools.partial(call, kernel, options)), platform, X)
    else:
        text = lower(logged(functools.partial(call, kernel, options)), platform, X)
        assert "custom_call" in text
        assert "tensor<4x" in text  # a row for each program


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64", "int16", "uint8", "bool"])
def test_types_of_blocks_for_triton(dtype):
    """Arrays of other widths travel as words, too."""
    with jax.enable_x64(True):
        x = jax.ShapeDtypeStruct(X.shape, dtype)
        assert "custom_call" in lower(logged(functools.partial(call, k_block, plt.CompilerParams())), "cuda", x)


@pytest.mark.parametrize("target", TARGETS)
def test_matmul(target):
    """512 x 512, with one print in each program."""
    platform, options = TARGETS[target]
    rows, block = 128, 64

    def kernel(x, y, o):
        def body(k, total):
            return total + x[:, pl.ds(k * block, block)] @ y[pl.ds(k * block, block), :]

        total = jax.lax.fori_loop(0, 512 // block, body, jnp.zeros((rows, rows), jnp.float32))
        fx.print("{} {}: {}", pl.program_id(0), pl.program_id(1), total.sum())
        o[...] = jax.nn.gelu(total)

    def f(x, y):
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((512, 512), jnp.float32),
            grid=(512 // rows, 512 // rows),
            in_specs=[pl.BlockSpec((rows, 512), lambda i, j: (i, 0)), pl.BlockSpec((512, rows), lambda i, j: (0, j))],
            out_specs=pl.BlockSpec((rows, rows), lambda i, j: (i, j)),
            compiler_params=options,
        )(x, y)

    x = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    assert "custom_call" in lower(logged(f), platform, x, x)


def _under_vmap(target):
    """Programs with a kernel in blocks that TPUs take, with lanes and masks: (name, function, operand)."""
    options = TARGETS[target][1]

    def kernel(x, o):
        say(pl.program_id(0))
        o[...] = x[...]

    def once(x):
        spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        specs = {"in_specs": [spec], "out_specs": spec}
        return pl.pallas_call(kernel, out_shape=shape, grid=(4,), compiler_params=options, **specs)(x)

    def masked(x):
        return jax.lax.cond(x[0, 0] > 1, once, lambda x: x, x)

    x = jnp.zeros((2, 32, 128), jnp.float32)
    return {
        "lanes": (jax.vmap(once), x),
        "one lane": (jax.vmap(once), x[:1]),
        "lanes of lanes": (jax.vmap(jax.vmap(masked)), jnp.stack([x, x, x])),
        "masks": (jax.vmap(masked), x),
        "nothing mapped": (jax.vmap(lambda y: once(x[0]) + y), jnp.zeros(2)),
    }


@pytest.mark.parametrize("which", ["lanes", "one lane", "lanes of lanes", "masks", "nothing mapped"])
@pytest.mark.parametrize("target", TARGETS)
def test_lanes_and_masks(target, which):
    """The operands that `vmap` and a mask add to a kernel are lowered."""
    f, x = _under_vmap(target)[which]
    (eqn,) = [e for e in jax.make_jaxpr(f)(x).jaxpr.eqns if e.primitive is pallas.pallas_call_p]
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]

    def record(*args):
        return log_kernel(args, eqn.params)[1][0][1]

    programs = {"one lane": 4, "lanes of lanes": 24}.get(which, 8)
    assert f"tensor<{programs}x" in lower(record, TARGETS[target][0], *avals)
    log, *lanes = jax.eval_shape(record, *avals)
    assert log.shape[0] == programs
    assert len(lanes) == (which == "one lane")  # the grid does not have that one


@pytest.mark.skipif(not hasattr(jax.config, "jax_pallas_use_mosaic_gpu"), reason="JAX compiles no pallas_call so")
def test_mosaic_gpu_is_refused():
    def kernel(x, o):
        say(pl.program_id(0))
        o[...] = x[...]

    line = say.__code__.co_firstlineno + 1
    said = rf"^The effect `print` at .*test_targets\.py:{line} is in a kernel that is compiled by Mosaic GPU.*by Triton"
    with pytest.raises(NotImplementedError, match=said) as error:
        lower(logged(functools.partial(call, kernel, plgpu.CompilerParams())), "cuda", X)
    assert str(error.value).partition(" See docs")[0].count(". ") == 2


def test_kernels_over_a_mesh_are_refused():
    """`plgpu.kernel` is another primitive, in which no effect may be."""

    def kernel(x, o):
        say(jax.lax.axis_index("i"))
        o[0] = x[0]

    rows = jax.ShapeDtypeStruct((4, BLOCK), jnp.float32)
    called = plgpu.kernel(kernel, out_type=rows, grid=(4,), grid_names=("i",))
    with pytest.raises(fx.MissingTokenRule, match=r"`plgpu.kernel`, has the effect `print` at .*test_targets\.py:\d+"):
        fx.jit(called).lower(rows)


def test_asynchronous_operations_are_refused():
    """Operations in flight belong to a program, so a kernel may start none, in a branch neither."""

    def start(x):
        return fx.async_done(fx.async_start(jnp.sin, x))

    def kernel(x, o):
        o[...] = jax.lax.cond(x[0] > 0, start, lambda x: x, x[...])

    with pytest.raises(
        NotImplementedError, match=r"operation `sin` at .*test_targets\.py.*outside of the kernel"
    ) as error:
        lower(functools.partial(call, kernel, plt.CompilerParams()), "cuda", X)
    assert str(error.value).partition(" See docs")[0].count(". ") == 2


@pytest.mark.parametrize("target", TARGETS)
def test_checks_of_arrays(target):
    def kernel(x_ref, o_ref):
        fx.check(x_ref[...] > 0, "not positive")
        o_ref[...] = x_ref[...]

    platform, options = TARGETS[target]
    x = jax.ShapeDtypeStruct((4 * BLOCK,), jnp.float32)
    assert "tensor<4x" in lower(logged(lambda x: call(kernel, options, x)), platform, x)


REDUCTIONS = {
    "all": lambda x: jnp.all(x > 0),
    "any": lambda x: jnp.any(x > 0),
    "of an array of two axes": lambda x: jnp.all(x.reshape(2, -1) > 0),
    "of one axis": lambda x: jnp.any(jnp.all(x.reshape(2, -1) > 0, axis=1)),
    "in a loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, ok: ok & jnp.all(x > i), jnp.all(x > -1)),
    "in a branch": lambda x: jax.lax.cond(x[0] > 0, lambda: jnp.all(x > 1), lambda: jnp.any(x > 2)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_booleans_for_triton(name):
    """JAX has no code of Triton's for them. A kernel with effects reduces integers, to the same result."""
    of = REDUCTIONS[name]

    def kernel(x, o):
        fx.check(of(x[...]), "not so")
        fx.print("{}", of(x[...]))
        o[...] = x[...]

    if "axis" not in name and "axes" not in name and "branch" not in name:  # what Triton takes of arrays
        platform, options = TARGETS["triton"]
        assert lower(logged(functools.partial(call, kernel, options)), platform, X)
    rewritten = log_rules._with_reductions_of_integers(jax.make_jaxpr(of)(jnp.zeros(8)))
    assert "reduce_and" not in str(rewritten) and "reduce_or" not in str(rewritten)
    for seed in range(8):
        x = jax.random.randint(jax.random.key(seed), (8,), -1 + seed % 3, 4).astype(jnp.float32)
        assert jax.core.eval_jaxpr(rewritten.jaxpr, rewritten.consts, x) == [of(x)]
