"""What tests look at that is private: if it moves, this is the one place that says where it is."""

from dispatch import _known_sites as _known_sites
from dispatch import _stuck as _stuck
from dispatch._drain import drain as drain
from dispatch._placed import PlacedTokens as PlacedTokens
from dispatch._streams import current_stream as current_stream
from dispatch._streams import streams as streams
from effects import _cli as _cli
from effects import _errors as _errors
from effects import _handlers as _handlers
from effects import _jax_compat as _jax_compat
from effects._content import Line as Line
from effects._merge import LogError as LogError
from effects._merge import merge as merge
from effects._merge import text_of as text_of
from effects._primitive import effect_p as effect_p
from effects._sites import Site as Site
from effects._sites import site_from as site_from
from effects._sites import take_arguments as take_arguments
from effects._sites import where_called as where_called
from lowering import _jax_callbacks as _jax_callbacks
from lowering._rules import find_rule as find_rule

compat = _jax_compat
