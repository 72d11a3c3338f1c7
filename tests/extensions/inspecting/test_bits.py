"""Results compared bit by bit: how many differ, and by how much."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import pytest

from effects.extensions.inspecting.compare import difference

FLOATS = ("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e8m0fnu")


@pytest.mark.parametrize("name", FLOATS)
def test_neighbours_are_one_ulp_apart(name):
    """In every type of floats, whatever bits it has."""
    first = np.array([1, 2, 0.5], getattr(ml_dtypes, name, name))
    second = first.copy()
    second.view(f"u{second.itemsize}")[1] += 1
    found = difference("result", first, second)
    assert (found.count, found.size, found.max_ulp) == (1, 3, 1)
    assert found.max_absolute == float(second[1]) - 2


def test_special_values():
    """Zeros of both signs are no unit apart, and NaNs are counted by themselves."""
    nan = np.float32(np.nan)
    first = np.array([0.0, nan, nan, 1.0, -1e-45], np.float32)
    second = np.array([-0.0, -nan, 1.0, 1.0, 1e-45], np.float32)
    found = difference("result", first, second)
    assert (found.count, found.nans, found.nan_payloads, found.max_ulp) == (3, 1, 1, 2)
    assert str(found).endswith(", 1 of these NaN in one program only, the bits of 1 NaNs")
    assert difference("result", first, first.copy()) is None
    only_bits = difference("result", first[1:2], second[1:2])
    assert (only_bits.count, only_bits.max_ulp, str(only_bits)) == (0, 0, "result: the bits of 1 NaNs")


@pytest.mark.parametrize(
    ("first", "second", "greatest"),
    [
        ([2**63 - 1, 0], [-(2**63), 0], 2.0**64),
        (np.array([True, False]), np.array([True, True]), 1.0),
        (np.array([3], np.uint8), np.array([250], np.uint8), 247.0),
        (np.array([3 + 4j]), np.array([0j]), 5.0),
        (np.array([np.inf]), np.array([1.0]), np.inf),
    ],
)
def test_greatest_difference(first, second, greatest):
    """No type overflows."""
    assert difference("result", np.array(first), np.array(second)).max_absolute == greatest


def test_keys_are_compared_by_their_data():
    """Arrays of PRNG keys have no bits of their own."""
    assert difference("result", jax.random.key(0), jax.random.key(0)) is None
    assert difference("result", jax.random.key(0), jax.random.key(1)).max_absolute == 1.0
