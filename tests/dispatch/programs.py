"""Programs that tests of several subjects run."""

from __future__ import annotations

import jax

import effects as fx


def count_lines(label):
    """A program of n that prints n lines."""
    return fx.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, _: fx.print(label + " {}", i), None))
