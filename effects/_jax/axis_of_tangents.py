"""Axes along which JAX maps tangents: `jax._src.api` and `jax._src.custom_batching`.

To JAX they are axes as any other, which no name tells apart. Their name here is part of what JAX's caches compare, so
that a jaxpr with effects that was batched for `jax.jacfwd` is not taken for one that was batched for a user's `vmap`.
"""

from __future__ import annotations

import functools
from typing import Any

from jax._src import api

from effects._jax import patches


class _Tangents:
    """The name of an axis of tangents."""

    def __repr__(self) -> str:
        return "<tangents>"


_TANGENTS = _Tangents()


def is_axis_of_tangents(axis_data: Any) -> bool:
    """Whether tangents are mapped along this axis, by `jax.jacfwd` or by the derivative of a `custom_vmap`. What is
    primal there is evaluated once, and so its effects happen once."""
    return axis_data.name is _TANGENTS


@patches.implements("axis of tangents")
def _name_axes_of_pushforwards(vmap: Any) -> Any:
    """JAX's own calls of `vmap`. That of `jacfwd` maps a pushforward, whose function and primals are bound."""

    @functools.wraps(vmap)
    def named(fun: Any, *args: Any, **options: Any) -> Any:
        if isinstance(fun, functools.partial) and fun.func is api._jvp:
            options["axis_name"] = _TANGENTS
        return vmap(fun, *args, **options)

    named.__module__ = __name__
    return named


@patches.implements("axis of tangents in custom_vmap")
def _name_axes_of_rules(vmap: Any) -> Any:
    """What JAX calls for nothing but the derivative of a `custom_vmap` rule."""

    @functools.wraps(vmap)
    def named(fun: Any, *args: Any, axis_name: Any, **options: Any) -> Any:
        return vmap(fun, *args, axis_name=_TANGENTS, **options)

    named.__module__ = __name__
    return named
