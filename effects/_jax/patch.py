"""What a change of JAX is: the places that it changes, and the row that says why."""

import dataclasses
import textwrap
from typing import Any, NamedTuple

import jax
from jax._src.interpreters import mlir


class PatchPoint(NamedTuple):
    """An attribute of a module or a class of JAX's, or an entry of one of its tables."""

    name: str
    owner: Any
    key: Any

    def get(self) -> Any:
        if isinstance(self.owner, dict):
            return self.owner.get(self.key)
        return getattr(self.owner, self.key)

    def put(self, value: Any) -> None:
        if isinstance(self.owner, dict):
            self.owner[self.key] = value
        else:
            setattr(self.owner, self.key, value)


class _Lowering(PatchPoint):
    """The rule in an entry of JAX's table of lowerings."""

    def get(self) -> Any:
        return self.owner[self.key].rule

    def put(self, value: Any) -> None:
        self.owner[self.key] = dataclasses.replace(self.owner[self.key], rule=value)


def attribute(owner: Any, name: str) -> PatchPoint:
    owner_name = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
    return PatchPoint(f"{owner_name}.{name}", owner, name)


def entry(module: Any, table: str, primitive: Any) -> PatchPoint:
    return PatchPoint(f"{module.__name__}.{table}[{primitive}]", getattr(module, table), primitive)


def lowering(primitive: Any) -> PatchPoint:
    return _Lowering(f"{mlir.__name__}._lowerings[{primitive}]", mlir._lowerings, primitive)


def method(module: Any, primitive: str, name: str) -> PatchPoint:
    return PatchPoint(f"{module.__name__}.{primitive}.{name}", getattr(module, primitive), name)


class Patch(NamedTuple):
    """One change of JAX.

    Attributes:
        name: What it is called.
        points: What of JAX is changed.
        now: What is different.
        why: What would go wrong without it.
        since: The oldest supported version of JAX that needs it. No supported version is older than 0.10.
        until: What would make it needless.
    """

    name: str
    points: tuple[PatchPoint, ...]
    now: str
    why: str
    since: str
    until: str

    @property
    def changes(self) -> tuple[str, ...]:
        """The dotted names of what of JAX is changed."""
        return tuple(point.name for point in self.points)

    def lines(self) -> list[tuple[str, str]]:
        """The columns, by name, as they are printed."""
        changes = [("changes" if i == 0 else "", name) for i, name in enumerate(self.changes)]
        return [*changes, ("now", self.now), ("why", self.why), ("since", f"JAX {self.since}"), ("until", self.until)]

    def __repr__(self) -> str:
        texts = [
            textwrap.fill(text, 110, initial_indent=f"    {name:9}", subsequent_indent=" " * 13, break_on_hyphens=False)
            for name, text in self.lines()
        ]
        return "\n".join([self.name, *texts])


class Patches(tuple[Patch, ...]):
    """The rows of the table. Printed, they are the table."""

    def __repr__(self) -> str:
        return "\n\n".join([_TITLE, *map(repr, self)])

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        parts: list[Any] = [Text(_TITLE)]
        for row in self:
            grid = Table.grid("", "", padding=(0, 2, 0, 0))
            for name, text in row.lines():
                grid.add_row(Text(f"    {name}", "dim"), Text(text, "cyan" if name in ("changes", "") else ""))
            parts += [Text(f"\n{row.name}", "bold"), grid]
        return Group(*parts)


_TITLE = f"What importing `effects` changes in JAX {jax.__version__}:"
