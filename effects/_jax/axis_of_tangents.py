"""Axes along which `jax.jacfwd` maps tangents."""

from __future__ import annotations

import dataclasses
import sys
from types import FrameType
from typing import Any

from jax._src import traceback_util
from jax._src.interpreters import batching


def is_axis_of_tangents(axis_data: Any) -> bool:
    """Whether `jax.jacfwd` maps a function's tangents along this axis. What is primal is there once.

    The same goes for the axis along which the derivative of a `custom_vmap` has what is not mapped in all it takes.

    It is an axis as any other to JAX, so we look who made it: its maker is still at work when the rules for it are.
    """
    if isinstance(axis_data, _AxisOfTangents):
        return True
    frame: FrameType | None = sys._getframe(1)
    maker = None
    while frame is not None:
        if frame.f_locals.get("axis_data") is axis_data:
            maker = frame
        frame = frame.f_back
    frame = maker.f_back if maker is not None else None
    while frame is not None and frame.f_code.co_filename == traceback_util.__file__:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_qualname in (
        "jacfwd.<locals>.jacfun",
        "custom_vmap_jvp.<locals>.jvp_of_rule_rule",
    )


class _AxisOfTangents(batching.AxisData):
    """One that is known to be so. It is equal to no other axis, so that JAX's caches tell them apart."""


def axis_that_tells(axis_data: Any) -> Any:
    """The axis, such that what is cached for it is not taken for another."""
    if isinstance(axis_data, _AxisOfTangents) or not is_axis_of_tangents(axis_data):
        return axis_data
    return _AxisOfTangents(*(getattr(axis_data, field.name) for field in dataclasses.fields(axis_data)))
