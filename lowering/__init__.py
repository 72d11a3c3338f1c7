"""Tokens through programs: the pass that gives every effect its place, and the rules it follows.

from effects import lowering

@lowering.holds(my_primitive_p)
def _my_primitive(extra, *args, body, **params):
    return extra.bind(*extra.values, *args, body=extra.rewrite(body), **params)
"""

from effects.lowering import batching as batching
from effects.lowering import control_flow as control_flow
from effects.lowering import custom_partitioning as custom_partitioning
from effects.lowering import derivatives as derivatives
from effects.lowering import effect as effect
from effects.lowering import shard_map as shard_map
from effects.lowering.holders import Extra as Extra
from effects.lowering.holders import Holder as Holder
from effects.lowering.holders import holds as holds
from effects.lowering.masks import MaskContext as MaskContext
from effects.lowering.masks import MaskRule as MaskRule
from effects.lowering.masks import register_mask_rule as register_mask_rule
from effects.lowering.tokens import TokenContext as TokenContext
from effects.lowering.tokens import TokenRule as TokenRule
from effects.lowering.tokens import register_token_rule as register_token_rule
from effects.lowering.tokens import thread_tokens as thread_tokens

_PAGE = "docs/reference/transformations.md"
