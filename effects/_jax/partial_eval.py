"""Tables of how programs are divided for differentiation: `jax._src.interpreters.partial_eval`."""

from __future__ import annotations

from jax._src.interpreters import partial_eval as pe

custom_partial_eval_rules = pe.custom_partial_eval_rules
"""How primitives are divided into what is known and what waits for a tangent."""

partial_eval_rules = pe.partial_eval_jaxpr_custom_rules
"""How equations of rematerialized regions are divided into what runs forward and what runs backward."""
