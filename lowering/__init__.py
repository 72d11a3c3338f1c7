"""Tokens through programs: the pass that gives every effect its place, and the rules it follows.

import lowering

@lowering.register_token_rule(my_primitive_p)
def _my_primitive_token_rule(ctx, tokens, *args, **params):
    ...
    return tokens, outs
"""

import effects as _effects  # noqa: F401, I001 - whoever comes first, the order of loading is effects, lowering, dispatch

from effects import _jax
from lowering import _batched as _batched
from lowering import _call as _call
from lowering import _cond as _cond
from lowering import _custom_call as _custom_call
from lowering import _differentiated as _differentiated
from lowering import _emit as _emit
from lowering import _jax_callbacks as _jax_callbacks
from lowering import _region as _region
from lowering import _scan as _scan
from lowering import _while as _while
from lowering._rules import TokenContext as TokenContext
from lowering._rules import TokenRule as TokenRule
from lowering._rules import register_token_rule as register_token_rule
from lowering._thread import thread_tokens as thread_tokens

_jax.hide_frames_in(__path__[0])
