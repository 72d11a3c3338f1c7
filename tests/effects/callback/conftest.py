"""How functions with callbacks are called, and callbacks by the drain."""

import jax
import pytest

import effects as fx


@pytest.fixture(params=["fx.jit", "jax.jit", "eager"])
def jit(request):
    """The three ways in which a function with effects is called."""
    return {"fx.jit": fx.jit, "jax.jit": jax.jit, "eager": lambda f: f}[request.param]


@pytest.fixture(params=["direct", "general"])
def path(request):
    """The two paths to the answer of a callback that a program waits for: somebody who sees records needs the general
    one."""
    if request.param == "direct":
        yield
        return
    with fx.add_handler(lambda record: None):
        yield
