"""Running threaded programs: runtime tokens in, records and output tokens out, replay on the host."""

import effects._jax_compat as _jax_compat  # first: whoever comes first, `effects` loads all three from the bottom up
from dispatch import _eager as _eager
from dispatch._barrier import effects_barrier as effects_barrier
from dispatch._drain import stats as stats
from dispatch._export import deserialize as deserialize
from dispatch._export import export as export
from dispatch._jit import jit as jit

_jax_compat.hide_frames_in(__path__[0])
