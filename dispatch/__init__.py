"""Running threaded programs: runtime tokens in, records and output tokens out, replay on the host."""

from effects.dispatch.calling import eager as eager
from effects.dispatch.calling.jit import jit as jit
from effects.dispatch.runtime.runtime import effects_barrier as effects_barrier
from effects.dispatch.runtime.runtime import stats as stats

_PAGE = "docs/reference/running.md"
