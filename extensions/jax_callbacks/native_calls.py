"""`jax.ffi.ffi_call` and `buffer_callback` with `has_side_effect=True`, in their place on the device.

Each takes the token of the built-in effects and gives it back, with no number of its own: the host hears nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from effects import _jax
from effects._model.dependency import add_dependency
from effects._model.effect import JAX_FFI, jax_effects, token_key
from effects._model.wire import STREAM
from effects.lowering.tokens import TokenContext, Tokens, register_token_rule

native_call_p: _jax.Primitive = _jax.Primitive("native_call")
native_call_p.multiple_results = True
"""(*operands) -> the results of `call`, a primitive of JAX's."""


@native_call_p.def_effectful_abstract_eval
def _abstract_eval(*operands: Any, call: Any, **params: Any) -> tuple[Any, Any]:
    return call.abstract_eval(*operands, **params)[0], jax_effects(JAX_FFI)


@native_call_p.def_impl
def bind_native(*operands: Any, call: Any, **params: Any) -> list[Any]:
    return call.bind(*operands, **params)


@register_token_rule(native_call_p)
def _token_rule(ctx: TokenContext, tokens: Tokens, *operands: Any, **params: Any) -> tuple[Tokens, list[Any]]:
    key = token_key(JAX_FFI)

    def make(token: Any, *operands: Any) -> list[Any]:
        outs = bind_native(*add_dependency([token], operands), **params)
        return [*add_dependency(outs, [token]), *outs]

    def leave_out(token: Any, *operands: Any) -> list[Any]:
        return [token, *(jnp.zeros(atom.aval.shape, atom.aval.dtype) for atom in ctx.eqn.outvars)]

    if _have_elements(ctx.eqn.invars) and _have_elements(ctx.eqn.outvars):
        token, *outs = make(tokens[key], *operands)
    else:
        # Without a value to depend on, the call is in a branch that is always taken: no stream has the number. XLA
        # runs what takes the branch's token after all of the branch.
        is_never = tokens[key][STREAM] == np.uint32(0xFFFFFFFF)
        token, *outs = jax.lax.cond(is_never, leave_out, make, tokens[key], *operands)
    return {key: token}, outs


def _have_elements(atoms: Sequence[Any]) -> bool:
    """True unless XLA folds all of these to constants, as it does with empty arrays."""
    return any(0 not in getattr(atom.aval, "shape", (0,)) for atom in atoms)
