"""A pytest plugin: `jax.jit` is `fx.jit` for tests, and for what JAX compiles on their behalf.

Modules of the library and of JAX keep JAX's own, since what they compile is not the test's. JAX's `test_util` gets
ours: it compiles the functions of tests.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from typing import Any

import jax
import pytest

import effects as fx

_jax_jit = jax.jit


def _jit(fun: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    return _jit_for(sys._getframe(1).f_globals.get("__name__", ""))(*(() if fun is None else (fun,)), **options)


def _jit_for(module: str) -> Callable[..., Any]:
    of_library = module.partition(".")[0] in ("effects", "jax", "jaxlib")
    return _jax_jit if of_library and module != "jax._src.test_util" else fx.jit


jax.jit = _jit  # type: ignore[assignment]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """What effects print and raise belongs to the test that has them."""
    yield
    fx.effects_barrier(timeout=60)
