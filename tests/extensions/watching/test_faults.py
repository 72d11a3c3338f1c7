"""`fx.watch` finds the planted fault of each program, and computes what the program does without."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import effects as fx
from tests.extensions.watching import faults
from tests.extensions.watching.faults import FAULTS

JITS = {"fx.jit": fx.jit, "jax.jit": jax.jit, "eager": lambda f: f}


def _raised(program, args):
    """What a program raises for bad values."""
    with pytest.raises(fx.CheckError) as caught:
        jax.block_until_ready(program(*args))
        fx.effects_barrier()
    return caught.value.failures


def _same(first, second):
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found(name):
    """The error says the operation, the line, and in which iteration, lane and device, and there is only one."""
    fault = FAULTS[name]
    [error] = _raised(fx.jit(fault.program), fault.args)
    assert isinstance(error, fx.NonFinite)
    assert error.where == f"{faults.__file__}:{fault.line}", str(error)
    for each in ("operation", "iteration", "lane", "index", "backward"):
        assert getattr(error, each) == getattr(fault, each), (each, str(error))
    assert fault.device is None or error.device == fault.device
    assert "went on" in str(error) and error.count >= 1 and (error.operands or not fault.args)
