"""A pytest plugin: each `pl.pallas_call` of a test is compiled by itself, by whatever `jax.jit` is for tests.

Most of JAX's tests of Pallas call their kernels without `jax.jit`, so that nothing in them would be ours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental import pallas as pl

_pallas_call = pl.pallas_call


def _compiled(*arguments: Any, **options: Any) -> Callable[..., Any]:
    kernel = _pallas_call(*arguments, **options)
    caller = sys._getframe(1).f_globals.get("__name__", "")
    return kernel if caller.partition(".")[0] in ("effects", "jax", "jaxlib") else jax.jit(kernel)


pl.pallas_call = _compiled  # type: ignore[assignment]
