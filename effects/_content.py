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
import numpy as np


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of `fx.print`, or of `jax.debug.print`, which knows NumPy's print options when it is traced."""

    fmt: str
    options: tuple[tuple[str, Any], ...] | None = None  # NumPy's print options; None: those in force at the call

    def describe(self) -> dict[str, Any]:
        return {"line": self.fmt} if self.options is None else {"line": self.fmt, "options": self.options}

    def text(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        return self.fmt.format(*args, **kwargs) if self.options is None else fill(self.fmt, self._options, args, kwargs)

    @functools.cached_property
    def _options(self) -> dict[str, Any]:
        return dict(self.options or ())


def fill(fmt: str, options: dict[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """The text of a format under NumPy's print options."""
    if options == np.get_printoptions():  # setting them takes longer than asking
        return fmt.format(*args, **kwargs)
    with np.printoptions(**options):
        return fmt.format(*args, **kwargs)


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
    """A call of `fx.callback`, or of a callback of JAX's."""

    function: HostFunction
    results: tuple[Any, ...] | None = None  # types of the results in one lane; None: nobody waits for any
    tree: Any = None  # their treedef
    pass_record: bool = False
    vmap_method: str | None = None  # as for `jax.pure_callback`; None: lane by lane
    prints: bool = False  # whether the function returns text to print
    otherwise: Callable[..., Any] | None = None  # JAX's own way from operands to results, where there is none of ours

    @functools.cached_property
    def is_one(self) -> bool:
        """Whether it returns one array by itself."""
        return self.tree == _ONE

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
        self.name = name or function_name(fn)


def function_name(fn: Any) -> str:
    """What a function is called in messages."""
    return getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None) or type(fn).__qualname__


_ONE = jax.tree.structure(0)

_PROCESS = uuid.uuid4().hex
_numbers = itertools.count()

Content = Line | Event | HostCall


def content_from(description: Mapping[str, Any]) -> Content:
    """The content that describes itself so. A function is known by its name only."""
    if "line" in description:
        options = description.get("options")
        return Line(description["line"], options and tuple((name, value) for name, value in options))
    if "event" in description:
        return Event(description["event"], description["level"], tuple(description["fields"]))
    function = HostFunction(None, description["function"], description["name"])
    return HostCall(function, () if description["awaited"] else None, jax.tree.structure(()))
