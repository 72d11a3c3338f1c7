"""What the records of a site are, by kind of effect: a line, an event, a call of a function, or a message
of a custom call's."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from effects._functions import HostFunction


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of `fx.print`, or of `jax.debug.print`, which knows NumPy's print options when it is traced."""

    fmt: str
    options: tuple[tuple[str, Any], ...] | None = None  # NumPy's print options; None: those in force at the call
    of_record: tuple[str, ...] = ()  # fields that are filled with what the record says: `device`, `index`

    def describe(self) -> dict[str, Any]:
        described: dict[str, Any] = {"line": self.fmt}
        if self.options is not None:
            described["options"] = self.options
        if self.of_record:
            described["of_record"] = self.of_record
        return described

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
    tree: Any = None  # their treedef, or its text in a process that has no more
    pass_record: bool = False
    vmap_method: str | None = None  # as for `jax.pure_callback`; None: lane by lane
    prints: bool = False  # whether the function returns text to print
    otherwise: Callable[..., Any] | None = None  # JAX's own way from operands to results, where there is none of ours

    @functools.cached_property
    def is_one(self) -> bool:
        """Whether it returns one array by itself."""
        return self.has_structure(_ONE)

    def has_structure(self, tree: Any) -> bool:
        """Whether results are of this structure."""
        return tree == self.tree or str(tree) == self.tree

    @property
    def is_vectorized(self) -> bool:
        """Whether it is called once for all lanes."""
        return self.vmap_method is not None and not self.vmap_method.startswith("sequential")

    def describe(self) -> dict[str, Any]:
        return {
            "function": self.function.key,
            "name": self.function.name,
            "registered": self.function.registered,
            "results": None if self.results is None else [result.describe() for result in self.results],
            "structure": str(self.tree),
            "pass_record": self.pass_record,
        }

    def text(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        given = [*map(str, args), *(f"{name}={value}" for name, value in kwargs.items())]
        return f"{self.function.name}({', '.join(given)})"


@dataclasses.dataclass(frozen=True)
class Message:
    """What the handler of a custom call publishes: a level and a text. It says itself whether it is a line or an event,
    so each record becomes one or the other when it is read."""

    target: str
    has_effect: bool  # whether the call has an effect of its own, and is not only there for its results

    def describe(self) -> dict[str, Any]:
        return {"target": self.target, "has_effect": self.has_effect}

    def text(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        return bytes(args[1]).decode(errors="replace")

    def read(self, level: Any, text: Any) -> tuple[Line | Event, tuple[Any, ...], dict[str, Any]]:
        """A record's content proper, and its arguments."""
        said = bytes(text).decode(errors="replace")
        if level < 0:
            return Line("{}"), (said,), {}
        event = json.loads(said)
        fields = event["fields"]
        return Event(event["event"], int(level), tuple(fields)), (), fields


_ONE = jax.tree.structure(0)

Content = Line | Event | HostCall | Message


def content_from(description: Mapping[str, Any], read_operand: Callable[[Any], Any]) -> Content:
    """The content that describes itself so. A function is known by its name only."""
    if "line" in description:
        options = description.get("options")
        options = options and tuple((name, value) for name, value in options)
        return Line(description["line"], options, tuple(description.get("of_record", ())))
    if "event" in description:
        return Event(description["event"], description["level"], tuple(description["fields"]))
    if "target" in description:
        return Message(description["target"], description["has_effect"])
    function = HostFunction(None, description["function"], description["name"], description["registered"])
    results = description["results"]
    return HostCall(
        function,
        None if results is None else tuple(map(read_operand, results)),
        description["structure"],
        description["pass_record"],
    )
