"""Effects of your own, and the rules by which tokens and masks pass through primitives of your own."""

from effects._errors import MissingTokenRule as MissingTokenRule
from effects._errors import NotDifferentiable as NotDifferentiable
from effects._jax.patches import patches as patches
from effects._model.effect import Effect as Effect
from effects._model.effect import register_effect as register_effect
from effects._model.effect import registered_effects as registered_effects
from effects.lowering import Extra as Extra
from effects.lowering import Holder as Holder
from effects.lowering import MaskContext as MaskContext
from effects.lowering import MaskRule as MaskRule
from effects.lowering import TokenContext as TokenContext
from effects.lowering import TokenRule as TokenRule
from effects.lowering import holds as holds
from effects.lowering import register_mask_rule as register_mask_rule
from effects.lowering import register_token_rule as register_token_rule
