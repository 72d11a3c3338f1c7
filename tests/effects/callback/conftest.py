"""How functions with callbacks are called."""

import jax
import pytest

import effects as fx


@pytest.fixture(params=["fx.jit", "jax.jit", "eager"])
def jit(request):
    """The three ways in which a function with effects is called."""
    return {"fx.jit": fx.jit, "jax.jit": jax.jit, "eager": lambda f: f}[request.param]
