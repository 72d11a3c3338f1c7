"""Messages: the content of the site of a custom call, whose handler prints lines while it runs."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

from effects._model.content import HandlerContent, described_by
from effects._model.line import Line
from effects._model.record import Record
from effects._model.site import Site


@described_by("target")
@dataclasses.dataclass(frozen=True)
class Message(HandlerContent):
    """A line of a custom call's handler. Its record becomes that of a print when it is read."""

    target: str
    has_effect: bool  # True if the call has an effect of its own, besides its results

    def resolve(self, site: Site, payload: Any) -> Site:
        return site.with_text(Line("{}"), (_decode(*site.read(payload)),), {})

    def text(self, record: Record) -> str:
        return _decode(*record.args)


def _decode(text: Any) -> str:
    return bytes(text).decode(errors="replace")


def message_of(site: Site) -> Message:
    """The content of the site of a custom call."""
    return cast(Message, site.content)
