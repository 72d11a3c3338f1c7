"""Running threaded programs: runtime tokens in, records and output tokens out, replay on the host."""

import effects._jax as _jax  # first: whoever comes first, `effects` loads all three from the bottom up
from dispatch.calling import eager as eager
from dispatch.calling.export import deserialize as deserialize
from dispatch.calling.export import export as export
from dispatch.calling.jit import jit as jit
from dispatch.draining.barrier import effects_barrier as effects_barrier
from dispatch.draining.drain import stats as stats

_jax.hide_frames_in(__path__[0])
