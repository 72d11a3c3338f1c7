"""Dependencies between values: a value is available only after others are, and XLA cannot remove the dependency."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from effects import _jax

after_p = _jax.Primitive("after")
after_p.multiple_results = True
"""(*others, *values) -> values. The first `tokens` operands are the others; most of them are tokens."""


def after(others: Iterable[Any], values: Sequence[Any]) -> list[Any]:
    """The values, with a dependency on the others; on a token: until its effects have been published."""
    others, values = list(others), list(values)
    arrays = [at for at, value in enumerate(values) if not _jax.is_reference_type(_jax.typeof(value))]
    if arrays:
        outs = after_p.bind(*others, *(values[at] for at in arrays), tokens=len(others))
        for at, out in zip(arrays, outs, strict=True):
            values[at] = out
    return values


@after_p.def_impl
def _after_impl(*operands: Any, tokens: int) -> Sequence[Any]:
    return operands[tokens:]


@after_p.def_abstract_eval
def _after_abstract_eval(*operands: Any, tokens: int) -> Sequence[Any]:
    return operands[tokens:]


def _after_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, tokens: int) -> tuple[Sequence[Any], Sequence[Any]]:
    return after_p.bind(*primals, tokens=tokens), tangents[tokens:]


def _after_batch(
    axis_data: Any, operands: Sequence[Any], dims: Sequence[Any], *, tokens: int
) -> tuple[Sequence[Any], Sequence[Any]]:
    return after_p.bind(*operands, tokens=tokens), dims[tokens:]


_jax.ad.primitive_jvps[after_p] = _after_jvp
_jax.batching.fancy_primitive_batchers[after_p] = _after_batch
