"""Tokens through programs: the pass that gives every effect its place, and the rules it follows.

import lowering

@lowering.holds(my_primitive_p)
def _my_primitive(extra, *args, body, **params):
    return extra.bind(*extra.values, *args, body=extra.rewrite(body), **params)
"""

import effects._jax as _jax  # first: whoever comes first, `effects` loads all three from the bottom up
from lowering import rules as rules
from lowering.holders import Extra as Extra
from lowering.holders import Holder as Holder
from lowering.holders import holds as holds
from lowering.passes.masks import MaskContext as MaskContext
from lowering.passes.masks import MaskRule as MaskRule
from lowering.passes.masks import register_mask_rule as register_mask_rule
from lowering.passes.thread import thread_tokens as thread_tokens
from lowering.passes.tokens import TokenContext as TokenContext
from lowering.passes.tokens import TokenRule as TokenRule
from lowering.passes.tokens import register_token_rule as register_token_rule

_jax.hide_frames_in(__path__[0])
