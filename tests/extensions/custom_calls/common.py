"""What the tests of custom calls share."""

from __future__ import annotations

import jax
import pytest
from jax.sharding import AxisType

import effects as fx

STEP = fx.register_effect(fx.Effect("step of a custom call", kind="device"))


HANDLERS = [
    "add",
    "announce",
    "attributes",
    "fail_at",
    "fail_with",
    "flat",
    "fold",
    "in_place",
    "later",
    "note",
    "note_attribute",
    *("old_add", "old_count", "old_note", "old_swap"),
    "say",
    "sizes",
    "sum_by_scratch",
    "throws",
]


EVERY_WAY = pytest.mark.parametrize("way", [fx.jit, jax.jit, lambda f: f], ids=["fx.jit", "jax.jit", "eager"])


def mesh_of_four():
    return jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
