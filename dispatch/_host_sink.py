"""The host's side of the programs that `lowering/` makes; see `HostSink` there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dispatch._drain import drain
from dispatch._known_sites import meet
from dispatch._sink import UNTRACKED_TOKEN, native, publish
from dispatch._streams import is_nested
from effects._sites import Site
from effects._wire import INDEX
from lowering._record import set_host_sink


class _HostSink:
    def meet(self, site: Site) -> object:
        drain.start()  # before the program is called, by whomever
        return meet(site)

    def record(self, site: Site, token: Any, operands: Sequence[Any]) -> list[Any]:
        results = publish_and_wait(site, tuple(map(int, token)), operands)
        token = np.array(token)
        if site.effect.ordered:
            token[INDEX] += 1
        return [token, *results]

    def close(self, tokens: Sequence[Any]) -> Any:
        native.close([tuple(map(int, token)) for token in tokens], 0)
        return np.array(tokens[0])

    def plain(self, site: Site, operands: Sequence[Any]) -> list[Any]:
        return publish_and_wait(site, UNTRACKED_TOKEN, operands)


def publish_and_wait(
    site: Site, token: tuple[int, ...], operands: Sequence[Any], device: int | None = None
) -> list[np.ndarray]:
    """Publishes a record from the host; returns what a callback returns, once it has run in its turn."""
    reply = None if site.results is None else native.HostReply()
    publish(site, token, operands, device, reply)
    if reply is None:
        return []
    if is_nested():
        native.set_offer_urgent()
    results = zip(site.results or (), reply.wait(), strict=True)
    return [np.ndarray(result.shape, result.stored, data) for result, data in results]


set_host_sink(_HostSink())
