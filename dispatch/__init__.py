"""Running threaded programs: runtime tokens in, records and output tokens out, replay on the host."""

import effects as _effects  # noqa: F401, I001 - whoever comes first, the order of loading is effects, lowering, dispatch

from effects import _jax
from dispatch import _eager as _eager
from dispatch import _exit as _exit
from dispatch import _host_sink as _host_sink
from dispatch._barrier import effects_barrier as effects_barrier
from dispatch._drain import stats as stats
from dispatch._export import deserialize as deserialize
from dispatch._export import export as export
from dispatch._jit import jit as jit

_jax.hide_frames_in(__path__[0])
