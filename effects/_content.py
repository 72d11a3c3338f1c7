"""What the records of a site are, by kind of effect: a line, an event, or a call of a function."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of `fx.print`."""

    fmt: str

    def describe(self) -> dict[str, Any]:
        return {"line": self.fmt}

    def text(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        return self.fmt.format(*args, **kwargs)


@dataclasses.dataclass(frozen=True)
class Event:
    """An event of `fx.log`."""

    event: str
    level: int
    fields: tuple[str, ...]  # their names, in the order in which they were written

    def describe(self) -> dict[str, Any]:
        return {"event": self.event, "level": self.level, "fields": self.fields}

    @property
    def level_name(self) -> str:
        return logging.getLevelName(self.level)

    def text(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        return " ".join([self.event, *(f"{name}={value}" for name, value in kwargs.items())])


@dataclasses.dataclass(frozen=True)
class HostCall:
    """A call of `fx.callback`."""

    function: HostFunction
    results: tuple[Any, ...] | None = None  # types of the results in one lane; None: nobody waits for any
    tree: Any = None  # their treedef
    pass_record: bool = False
    vmap_method: str | None = None  # as for `jax.pure_callback`; None: lane by lane

    @functools.cached_property
    def is_one(self) -> bool:
        """Whether it returns one array by itself."""
        return self.tree == _ONE

    @property
    def is_vectorized(self) -> bool:
        """Whether it is called once for all lanes."""
        return self.vmap_method is not None and not self.vmap_method.startswith("sequential")

    def describe(self) -> dict[str, Any]:
        return {"function": self.function.key, "name": self.function.name, "awaited": self.results is not None}

    def text(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        given = [*map(str, args), *(f"{name}={value}" for name, value in kwargs.items())]
        return f"{self.function.name}({', '.join(given)})"


class HostFunction:
    """A function of the user's, with a key by which records name it.

    The key is of this process alone: nobody else has the function.
    """

    __slots__ = ("__weakref__", "fn", "key", "name")

    def __init__(self, fn: Callable[..., Any] | None, key: str | None = None, name: str | None = None):
        self.fn = fn
        self.key = key or f"{_PROCESS}-{next(_numbers)}"
        self.name = name or getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None) or type(fn).__qualname__


_ONE = jax.tree.structure(0)

_PROCESS = uuid.uuid4().hex
_numbers = itertools.count()

Content = Line | Event | HostCall


def content_from(description: Mapping[str, Any]) -> Content:
    """The content that describes itself so. A function is known by its name only."""
    if "line" in description:
        return Line(description["line"])
    if "event" in description:
        return Event(description["event"], description["level"], tuple(description["fields"]))
    function = HostFunction(None, description["function"], description["name"])
    return HostCall(function, () if description["awaited"] else None, jax.tree.structure(()))
