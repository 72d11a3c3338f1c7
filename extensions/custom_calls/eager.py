"""A custom call outside of any program: a program that is one call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from effects.dispatch.calling.eager import EAGER
from effects.dispatch.calling.jit import jit
from effects.extensions.custom_calls.primitive import custom_call_p


@custom_call_p.def_impl
def _custom_call_impl(*operands: Any, **params: Any) -> Any:
    with jax.disable_jit(False):  # there is no other way to call a handler
        return _program_of(**params)(*operands)


@functools.lru_cache(maxsize=256)
def _program_of(**params: Any) -> Callable[..., Any]:
    """A program that is one custom call."""

    def eager_call(*operands: Any) -> Any:
        return custom_call_p.bind(*operands, **params)

    eager_call.__qualname__ = eager_call.__name__ = EAGER.name
    return jit(eager_call)
