"""Programs for CUDA as JAX's plugin compiles and runs them, on GPUs that are simulated: see `tests/gpu/simulated`."""

from __future__ import annotations

import re

import pytest

from tests.gpu.simulated.environment import NoPlugin, environment
from tests.gpu.suites import assert_passes
from tests.helpers import run_python

pytestmark = pytest.mark.slow

ASYNCHRONOUS = "tests/extensions/asynchronous"
PROGRAMS = "tests/gpu/test_on_gpu.py"
ON_FIRST = ("random_programs", "many_records", "full_ring")
"""Those programs take the first GPU alone, and longer than others."""

SUITES = {
    "one": [
        *("tests/gpu/graphs.py", "tests/extensions/kernels/test_on_gpu.py", PROGRAMS),
        *(f"--deselect={PROGRAMS}::test_random_programs[{chunk}]" for chunk in (1, 2, 3)),
    ],
    "four": [
        *(PROGRAMS, "tests/lowering/regions/test_regions.py", "tests/lowering/test_whole_values.py"),
        f"-k=not {' and not '.join(ON_FIRST)}",
    ],
    "asynchronous": [
        *(f"{ASYNCHRONOUS}/test_{name}.py" for name in ("lanes_and_turns", "several_devices", "placement")),
        f"{ASYNCHRONOUS}/test_callbacks.py",
        # XLA ends a process in which a device never comes to a collective. The other is an error of its program, later.
        # Of narrow types, for which XLA takes longest, there is one of integers and one of floats.
        "-k=not keeps_no_other_waiting and not forged_ticket and not (narrow_types and (int2 or uint))",
    ],
}
TRIES_OUT = "--xla_gpu_autotune_level=4"
"""XLA's default, which the simulated GPUs' flags change."""


@pytest.mark.parametrize("suite, gpus", [("one", 1), ("four", 4), ("asynchronous", 4)])
def test_suites_pass_on_simulated_gpus(suite, gpus):
    """What a GPU would have been given is right, and in the right order."""
    assert_passes(SUITES[suite], _variables(gpus))


def test_programs_pass_when_kernels_are_tried_out():
    """As XLA does by itself where it compiles for a GPU, while other programs run there."""
    variables = _variables(1)
    flags = f"{variables['XLA_FLAGS']} {TRIES_OUT}"
    assert_passes([PROGRAMS, "-k", "callback or wait"], {**variables, "XLA_FLAGS": flags})


def _variables(gpus):
    try:
        return environment(gpus)
    except NoPlugin as error:
        pytest.skip(str(error))


GRAPHS = """
import ctypes, glob, os
import jax, jax.numpy as jnp
import effects as fx

@fx.jit
def f(x):
    def turn(i, x):
        for axis in (0, 1) * 3:
            x = jnp.sort(x + 1, axis=axis)
        fx.print("{} {}", x[0, 0], x[7, 7])
        for axis in (0, 1) * 3:
            x = jnp.sort(x * 2, axis=axis)
        return x

    return jax.lax.fori_loop(0, 3, turn, x)

x = jnp.arange(64.0)[::-1].reshape(8, 8).block_until_ready()
launches = ctypes.CDLL("libcuda.so.1").simulated_graph_launches
before = launches()
for _ in range(3):
    f(x)
fx.effects_barrier()
print(launches() - before, "launches")
(file,) = glob.glob(os.path.join(os.environ["FOLDER"], "*jit_f*after_thunk_passes.txt"))
print(open(file).read())
"""


def test_cuda_graphs_are_made_of_what_is_around_effects(tmp_path):
    """XLA makes graphs of kernels, leaves calls that record outside, and launches both in turn."""
    variables = _variables(1)
    flags = f"{variables['XLA_FLAGS']} --xla_dump_to={tmp_path}"
    done = run_python(GRAPHS, env={**variables, "XLA_FLAGS": flags, "FOLDER": str(tmp_path)})
    assert done.returncode == 0, done.stderr[-2000:]
    body = done.stdout[done.stdout.index("body:") :]
    assert re.findall(r"^ {4}\d+: (\w+)", body, re.M) == ["kCommandBuffer", "kCustomCall", "kCommandBuffer"]
    turns = ["6.0 69.0", "390.0 4422.0", "24966.0 283014.0"]
    assert done.stdout.splitlines()[:10] == [*turns * 3, f"{3 * 3 * 2} launches"]


ENDS_AT_A_WARNING = """
import logging, os, sys, threading
import jax, jax.numpy as jnp, numpy as np
import effects as fx

fx.config.stall_seconds = 1.0

class End(logging.Handler):
    def emit(self, record):
        print(record.levelname, record.getMessage(), flush=True)
        os._exit(7)

logging.getLogger("effects").addHandler(End())
"""

WAITS_FOR_GPU = (
    ENDS_AT_A_WARNING
    + """mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
inner = jax.jit(lambda x: x + 1)
inner(jnp.float32(0)).block_until_ready()

def compute(x):
    return np.asarray(inner(jnp.float32(x[0]))).reshape(1)

def branch(x):
    return fx.callback(compute, jax.ShapeDtypeStruct((1,), "float32"), x)

def region(x):
    x = jax.lax.cond(x[0] == 1, branch, lambda x: x, x)
    return jax.lax.psum(x, "x") + x

f = fx.jit(jax.shard_map(region, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x")))
x = jax.device_put(jnp.arange(2.0), jax.NamedSharding(mesh, jax.P("x")))
for _ in range(5):
    f(x).block_until_ready()
"""
)


WAITS_FOR_LAUNCH = (
    ENDS_AT_A_WARNING
    + """FLOAT = jax.ShapeDtypeStruct((), "float32")
zero = jnp.float32(0)
inner = jax.jit(lambda x: x + 1)
inner(zero).block_until_ready()
total = jax.jit(lambda x: jnp.sum(jnp.arange(2048.0) * x))

def compiles(x):
    return np.float32(total(jnp.float32(x)))

def launches(x):
    thread = threading.Thread(target=total, args=(zero,))
    thread.start()
    while thread.is_alive():
        inner(zero)
    return np.float32(0)

call = {
    "compiles": lambda x: fx.callback(compiles, FLOAT, x),
    "launches": lambda x: fx.callback(launches, FLOAT, x),
    "in_its_own_time": lambda x: fx.async_done(fx.async_callback(compiles, FLOAT, x)),
}[sys.argv[1]]
print(float(fx.jit(call)(zero)))
"""
)


@pytest.mark.parametrize("how, name", [("compiles",) * 2, ("launches",) * 2, ("in_its_own_time", "compiles")])
def test_callback_that_waits_for_a_compilation_is_named(how, name):
    """XLA tries out kernels when it compiles, and waits there for programs that are being launched; nothing is launched
    then. The log says so, and without trying out all is well."""
    variables = _variables(1)
    code = WAITS_FOR_LAUNCH.replace("sys.argv[1]", repr(how))
    if how == "launches":
        done = run_python(code, env=variables)
        assert (done.returncode, done.stdout) == (0, "0.0\n"), done.stderr[-2000:]
    done = run_python(code, env={**variables, "XLA_FLAGS": f"{variables['XLA_FLAGS']} {TRIES_OUT}"})
    assert done.returncode == 7, done.stderr[-2000:]
    assert done.stdout.startswith("WARNING Nothing has moved for 1")
    assert re.search(rf"callback `{name}` at <string>:\d+, which has run for", done.stdout)


def test_callback_that_waits_for_a_gpu_is_named():
    """A GPU of its program is in a collective, and waits there for the one whose callback it is."""
    done = run_python(WAITS_FOR_GPU, env=_variables(2))
    assert done.returncode == 7, done.stderr[-2000:]
    assert done.stdout.startswith("WARNING Nothing has moved for 1")
    assert re.search(r"callback `compute` at <string>:\d+, which has run for", done.stdout)
