"""Effects outside of any program: each is an epoch of its own and waits its turn behind programs still running."""

from __future__ import annotations

from typing import Any

import numpy as np

from dispatch._barrier import wait_for_plain_programs
from dispatch._drain import drain
from dispatch._sink import native, publish
from dispatch._streams import current_stream
from effects._primitive import effect_p
from effects._sites import Site


@effect_p.def_impl
def _effect_impl(*operands: Any, site: Site) -> list[Any]:
    values = [np.asarray(x) for x in operands]
    wait_for_plain_programs()
    drain.start()
    stream = current_stream()
    depth = len(stream.dispatching)
    try:
        number, runtime_token = stream.open("an eager call")
        stream.eager[number] = site
        first, epoch, phase, index = map(int, runtime_token)
        publish(site, (first, epoch, phase, index), values)
        native.close([(first, epoch, phase, index + bool(site.effect.ordered))], 0)
        stream.dispatching.pop()
    except BaseException:
        stream.abandon(depth)
        raise
    return []
