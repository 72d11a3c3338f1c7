"""The primitive of host effects, and what transformations make of it.

`effect_p` takes the operands of one site and gives nothing back. How it becomes part of a program stands in
`lowering/`; how it happens at once, outside of any program, in `dispatch/`.
"""

from __future__ import annotations

from typing import Any

from effects import _jax_compat as compat
from effects._sites import Site

effect_p = compat.Primitive("effect")
effect_p.multiple_results = True


@effect_p.def_effectful_abstract_eval
def _effect_abstract_eval(*operands: Any, site: Site) -> tuple[list[Any], set[Any]]:
    return [], {site.effect}


def _effect_jvp(primals: Any, tangents: Any, *, site: Site) -> tuple[list[Any], list[Any]]:
    """The primal program has the effect; tangents have none."""
    effect_p.bind(*primals, site=site)
    return [], []


compat.ad.primitive_jvps[effect_p] = _effect_jvp
