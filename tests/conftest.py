"""Every test runs with four host devices, and what it left behind is its own."""

import os

from tests.environment import environment

os.environ.update(environment())  # before JAX is imported

import contextlib
import ctypes
import gc
import io
import itertools
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import effects as fx
from tests.helpers import build_gate, build_handlers

pytest_plugins = ["effects_pytest"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell: what tests start inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)


TAKE_LONGEST = ("tests/test_native.py", "tests/gpu", "tests/oracle")  # beginnings of paths


def pytest_collection_modifyitems(config, items):
    """Leaves out tests that are marked slow, unless `-m` says what runs, or their file is named on the command line.

    What takes longest comes first: else one worker would still be at it when the others have nothing left to do. The
    order is otherwise kept, since `--dist worksteal` gives a worker tests that follow each other: they share the
    fixtures of their module, and tests with several processes of their own seldom run side by side.
    """
    if not config.option.markexpr:
        named = {Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args}
        left_out = [item for item in items if item.get_closest_marker("slow") and item.path not in named]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    root = Path(__file__).parents[1]
    items.sort(key=lambda item: not item.path.relative_to(root).as_posix().startswith(TAKE_LONGEST))


def pytest_collection_finish(session):
    """The collector need not look at what stays for the whole run: modules, and the tests themselves."""
    gc.collect()
    gc.freeze()


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


@pytest.fixture
def gates(_gate_type):
    """`gates()` makes a gate: `gate(x)` is x, held on the device until `gate.open()`, or the test's end. No Python runs
    in the program."""
    made = []

    def make(**options):
        made.append(_gate_type(**options))
        return made[-1]

    yield make
    for gate in made:
        gate.open()


@pytest.fixture(scope="session")
def _gate_type():
    loaded = ctypes.CDLL(str(build_gate()))
    target = f"test_gate_{id(loaded)}"
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(loaded.GateWait), platform="cpu")
    numbers = itertools.count()

    class Gate:
        def __init__(self, fails=False):
            self._number, self._fails = next(numbers), fails

        def __call__(self, x, is_cheap=False):
            if not is_cheap:
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
    """What the handlers of native/custom_calls.cc have noted since it was last called, once all programs are over, or
    with `so_far=True` at once."""
    library = ctypes.CDLL(str(build_handlers()))

    def take(size=200_000, so_far=False):
        if not so_far:
            fx.effects_barrier(all_threads=True, timeout=120)
        out = (ctypes.c_int32 * size)()
        count = library.take_seen(out, ctypes.c_int64(size))
        return list(out[:count])

    library.take_seen.restype = ctypes.c_int64
    take()
    return take


@pytest.fixture(autouse=True, scope="module")
def _bounded_memory():
    """Modules share what JAX has traced and compiled, twenty of them."""
    yield
    if next(_modules) % 20 == 0:
        jax.clear_caches()


_modules = itertools.count(1)
