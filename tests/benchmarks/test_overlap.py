"""The computation beside which `overlap` measures."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from benchmarks._overlap import LINKS, _chain


def _products(jaxpr):
    """How many there are in the text, and how many are computed."""
    counts = [(1, 1) for equation in jaxpr.eqns if equation.primitive.name == "dot_general"]
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            written, computed = _products(equation.params["jaxpr"].jaxpr)
            counts.append((written, computed * equation.params["length"]))
        elif "jaxpr" in equation.params:
            counts.append(_products(equation.params["jaxpr"].jaxpr))
    return tuple(map(sum, zip(*counts, strict=True))) if counts else (0, 0)


@pytest.mark.parametrize("work", [1, LINKS, LINKS + 1, 40 * LINKS + 7])
def test_chain_has_a_bounded_length(work):
    """However fast the device is, the program is compiled in bounded time, and computes all that it is to compute."""
    written, computed = _products(jax.make_jaxpr(lambda x: _chain(x, work))(jnp.ones((2, 2))).jaxpr)
    assert (written, computed) == (min(work, LINKS), work)
