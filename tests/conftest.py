"""Every test runs with four host devices, and what it left behind is its own."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"

import contextlib
import ctypes
import io
import itertools
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.helpers import build_handlers, find_compiler

pytest_plugins = ["effects_pytest"]


@pytest.fixture
def lines():
    """`lines(f, *args)` calls `f` and returns the lines that it printed, once all are out."""

    def collect(f, *args, **kwargs):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            f(*args, **kwargs)
            fx.effects_barrier(all_threads=True, timeout=120)
        return out.getvalue().splitlines()

    return collect


@pytest.fixture(scope="session")
def gates(tmp_path_factory):
    """`gates()` makes a gate: `gate(x)` is x, held on the device until `gate.open()`. No Python runs in the program."""
    compiler = find_compiler()
    library = tmp_path_factory.mktemp("gate") / "gate.so"
    source = Path(__file__).parent / "native" / "gate.cc"
    subprocess.run(
        [*compiler, "-std=c++17", "-O1", "-w", "-fPIC", "-shared", f"-I{jax.ffi.include_dir()}", source, "-o", library],
        check=True,
    )
    loaded = ctypes.CDLL(str(library))
    target = f"test_gate_{id(loaded)}"
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(loaded.GateWait), platform="cpu")
    numbers = itertools.count()

    class Gate:
        def __init__(self, fails=False):
            self._number, self._fails = next(numbers), fails

        def __call__(self, x):
            # Work enough that XLA does not run the program in the calling thread, as it does with cheap ones.
            work = jnp.ones((128, 128)) @ jnp.ones((128, 128))
            x = x + 0 * work[0, 0]
            call = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(x.shape, x.dtype), has_side_effect=True)
            return call(x, gate=np.int64(self._number), fails=np.bool_(self._fails))

        def open(self):
            loaded.OpenGate(ctypes.c_int64(self._number))

    return Gate


@pytest.fixture
def seen():
    """What the handlers of native/custom_calls.cc have noted since it was last called."""
    library = ctypes.CDLL(str(build_handlers()))

    def take(size=200_000):
        out = (ctypes.c_int32 * size)()
        count = library.take_seen(out, ctypes.c_int64(size))
        return list(out[:count])

    library.take_seen.restype = ctypes.c_int64
    take()
    return take


@pytest.fixture(autouse=True, scope="module")
def _bounded_memory():
    yield
    jax.clear_caches()
