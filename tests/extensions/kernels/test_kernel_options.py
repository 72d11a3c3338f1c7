"""How kernels are treated beside what their calls say, which is one part of the keys of JAX's caches."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import effects as fx
from effects import _jax
from effects._jax.kernels import KernelOptions
from tests.helpers import ROOT

CONTEXTS = """
import jax
made, make = [], jax.make_user_context
jax.make_user_context = lambda *default: made.append(default) or make(*default)
import effects
from effects._jax import kernel_options
print(made)
"""


@pytest.mark.slow
def test_dispatches_of_plain_functions_have_two_parts_more():
    """JAX compares all contexts at every dispatch: one is for JAX's callbacks, one for kernels, both None as a rule."""
    done = subprocess.run([sys.executable, "-c", CONTEXTS], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[(None,), (None,)]\n"
    assert _jax.kernel_options() == KernelOptions()


def test_parts_leave_each_other():
    with _jax.with_kernel_options(grown_to=8):
        with _jax.with_kernel_options(visit="x"), fx.config.override(bounds_checks=True):
            assert _jax.kernel_options() == KernelOptions("x", True, False, 8)
        assert _jax.kernel_options() == KernelOptions(grown_to=8)
    assert _jax.kernel_options() == KernelOptions()


def test_setting_changes_within_other_options():
    """A change of `bounds_checks` counts at once while other options are in force, and for functions traced before."""

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[pl.ds(4 * pl.program_id(0), 8)]

    x = jnp.arange(8)
    program = jax.jit(pl.pallas_call(kernel, out_shape=x, grid=(2,), interpret=True))
    failed = []
    with _jax.with_kernel_options(logs_simulated=True):
        for is_set in (False, True, False):
            with fx.config.override(bounds_checks=is_set), fx.capture(suppress=True) as records:
                program(x)
                try:
                    fx.effects_barrier()
                except fx.CheckError:
                    failed.append(is_set)
            assert len(records) == is_set
    assert failed == [True]
