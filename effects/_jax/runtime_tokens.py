"""The tokens between the programs that JAX dispatches, `jax._src.dispatch`, and where JAX's code waits for XLA."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from types import FrameType
from typing import Any

import jax
from jax._src import compiler, core, dispatch
from jax._src.interpreters import pxla

from effects._jax.core import Tracer

jax_tokens = dispatch.runtime_tokens
"""`current_tokens` of it: those of programs with ordered effects that this thread dispatched outside `effects.jit`."""


def block_until_token(token: Any) -> None:
    """Waits for a token of JAX's. What its program raised, the program's results say."""
    with contextlib.suppress(Exception):
        token.block_until_ready()


def is_token_ready(token: Any) -> bool:
    """Whether a token of JAX's is there."""
    return token._buf.is_ready()


def unordered_tokens() -> list[Any]:
    """The newest token of each device, of the programs that this thread dispatched with unordered effects of JAX's."""
    return list(jax_tokens.output_runtime_tokens.values())


def forget_failed_tokens(is_ours: Callable[[str], bool]) -> None:
    """Drops this thread's tokens of programs that have failed with an error that is told otherwise.

    JAX would raise it in the next program that takes the token, and again when the process ends.
    """
    for tokens in (jax_tokens.current_tokens, jax_tokens.output_runtime_tokens):
        for key, token in list(tokens.items()):
            try:
                token.block_until_ready()
            except Exception as error:
                if is_ours(str(error)):
                    del tokens[key]


def array_of(value: Any) -> Any:
    """The array that a value is, or that a token of JAX's has; None if it is neither, or a tracer."""
    value = value._buf if isinstance(value, core.Token) else value
    return value if isinstance(value, jax.Array) and not isinstance(value, Tracer) else None


def devices_of(value: Any) -> list[Any]:
    """The devices of what JAX's Python code dispatches a program with; none if the value is something else."""
    return list(value._local_devices) if isinstance(value, pxla.ExecuteReplicated) else []


_COMPILES = inspect.unwrap(compiler.backend_compile_and_load).__code__


def is_compiling(frame: FrameType) -> bool:
    """Whether XLA compiles where a thread stands in this frame."""
    return frame.f_code is _COMPILES
