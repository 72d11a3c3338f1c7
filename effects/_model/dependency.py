"""Dependencies between values: a value is available only after others are, and XLA cannot remove the dependency."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax

from effects import _jax

dependency_p = _jax.Primitive("dependency")
dependency_p.multiple_results = True
"""(*others, *values) -> values. The first `tokens` operands are the others; most of them are tokens."""


def add_dependency(others: Iterable[Any], values: Sequence[Any]) -> list[Any]:
    """Makes values depend on others; on a token: they are available once its effects have been published."""
    others = [x for x in others if _jax.typeof(x).dtype != jax.dtypes.float0]  # the tangent of an integer has no value
    values, types = list(values), [_jax.typeof(value) for value in values]
    arrays = [at for at, t in enumerate(types) if not _jax.is_reference_type(t) and t.dtype != jax.dtypes.float0]
    if arrays:
        outs = dependency_p.bind(*others, *(values[at] for at in arrays), tokens=len(others))
        for at, out in zip(arrays, outs, strict=True):
            values[at] = out
    return values


dependency_p.def_impl(lambda *operands, tokens: operands[tokens:])
dependency_p.def_abstract_eval(lambda *operands, tokens: operands[tokens:])
_jax.ad.primitive_jvps[dependency_p] = lambda primals, tangents, *, tokens: (
    dependency_p.bind(*primals, tokens=tokens),
    tangents[tokens:],
)
_jax.batching.fancy_primitive_batchers[dependency_p] = lambda axis_data, operands, dims, *, tokens: (
    dependency_p.bind(*operands, tokens=tokens),
    dims[tokens:],
)
