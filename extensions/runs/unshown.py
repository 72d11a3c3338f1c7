"""Records whose original text this process cannot make: their lines say so."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from effects._model.content import Content, NativeText, content_from
from effects._model.effect import Effect
from effects._model.operand import flat_arguments, nodes_unknown_elsewhere
from effects._model.record import Record, site_of
from effects._model.site import Site, site_from
from effects._model.where import Where

KIND = "only its program knows the kind `{kind}`"
CLASSES = "only its program knows {classes}"
FAILED = "its text cannot be made ({error!r})"
NO_SITE = "the file does not describe it"
NO_EFFECT = "?"


@dataclasses.dataclass(frozen=True)
class Unshown(Content):
    """Stands for a content whose text cannot be made here."""

    why: str
    content: Content | None = None  # None: unknown

    @property
    def title(self) -> str:
        return self.why if self.content is None else self.content.title

    def in_order(self, fields: dict[str, Any]) -> dict[str, Any]:
        return fields if self.content is None else self.content.in_order(fields)

    @property
    def labels(self) -> Mapping[str, Any]:
        return {} if self.content is None else self.content.labels

    def text(self, record: Record) -> str:
        title = [] if self.content is None else [repr(self.title)]
        values = [*map(str, record.args), *(f"{name}={value}" for name, value in record.fields.items())]
        return f"[not shown as in its program: {self.why}] {' '.join(title + values)}".rstrip()


def is_shown(record: Record) -> bool:
    """True if this process makes the same text of a record as its program did."""
    return not isinstance(site_of(record).content, Unshown)


def read_site(text: str) -> Site:
    """Reads the description of a site. A content whose text this process cannot make becomes `Unshown`."""
    classes = nodes_unknown_elsewhere(json.loads(text).get("tree")) if '"other' in text else set()

    def content_of(description: Mapping[str, Any], read_operand: Callable[[Any], Any]) -> Content:
        try:
            content = content_from(description, read_operand)
        except (ValueError, ImportError):
            return Unshown(KIND.format(kind=next(iter(description))))
        if classes and isinstance(content, NativeText):
            names = ", ".join(f"`{name}`" for name in sorted(classes))
            return Unshown(CLASSES.format(classes=names), content)
        return content

    return site_from(text, content_of)


def site_without_description(number: int) -> Site:
    """The site of records whose file has lost the site's description."""
    site = Site(Effect(NO_EFFECT), Unshown(NO_SITE), (), flat_arguments(0), Where("?", 0, "?"))
    site.__dict__["description"] = str(number)
    return site
