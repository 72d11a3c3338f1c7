"""Batches of records, of which one that is refused keeps no other back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def each(things: Iterable[Any], take: Callable[[Any], object]) -> None:
    """Takes each. What one raises keeps none of the others from being taken; the first error is raised at the end."""
    first: BaseException | None = None
    for thing in things:
        try:
            take(thing)
        except BaseException as error:
            first = first or error
    if first is not None:
        raise first
