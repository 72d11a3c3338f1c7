"""Effects outside of any program: each is an epoch of its own and waits its turn behind programs still running."""

from __future__ import annotations

from typing import Any

import numpy as np

from dispatch._barrier import wait_for_plain_programs
from dispatch._drain import drain
from dispatch._sink import native, plan_natively, publish
from dispatch._streams import Epoch, current_stream
from effects._primitive import effect_p
from effects._sites import Site


@effect_p.def_impl
def _effect_impl(*operands: Any, site: Site) -> list[Any]:
    values = [np.asarray(x) for x in operands]
    wait_for_plain_programs()
    drain.start()
    plan_natively(site)
    epoch = Epoch("an eager call")
    stream = current_stream()
    token = tuple(map(int, stream.open(epoch)))
    epoch.effects = (site.effect.name,)
    stream_number, number, phase, index = token
    publish(site, token, values)  # type: ignore[arg-type]
    native.close([(stream_number, number, phase, index + bool(site.effect.ordered))], 0)
    return []
