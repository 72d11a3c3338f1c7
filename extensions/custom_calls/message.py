"""Messages: the content of the site of a custom call, whose handler publishes records while it runs."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, cast

from effects._api.log import Event
from effects._model.content import HandlerContent, described_by
from effects._model.line import Line
from effects._model.record import Record
from effects._model.site import Site


@described_by("target")
@dataclasses.dataclass(frozen=True)
class Message(HandlerContent):
    """A record of a custom call's handler: a level and a text. A negative level is that of a line and any other that of
    an event, so each record becomes one or the other when it is read."""

    target: str
    has_effect: bool  # True if the call has an effect of its own, besides its results

    def resolve(self, site: Site, payload: Any) -> Site:
        level, text = site.read(payload)
        said = _decode(text)
        if level < 0:
            return site.saying(Line("{}"), (said,), {})
        event = json.loads(said)
        fields = event["fields"]
        return site.saying(Event(event["event"], int(level), tuple(fields)), (), fields)

    def text(self, record: Record) -> str:
        return _decode(record.args[1])


def _decode(text: Any) -> str:
    return bytes(text).decode(errors="replace")


def message_of(site: Site) -> Message:
    """The content of the site of a custom call."""
    return cast(Message, site.content)
