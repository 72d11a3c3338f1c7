"""Public names that are imported when they are first asked for. Those of an extension are there while it is."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from effects import _removed

MSG_TAKEN_OUT = (
    "`{name}` needs the extension `{extension}`, which is not installed. Each extension is a folder of "
    "`effects/extensions`, and its names are there while the folder is. Install token-effects with "
    "`extensions/{extension}`, or do without `{name}`."
)


def homes_of(names: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """By name the module that has it, of the names by module."""
    return {name: module for module, of_module in names.items() for name in of_module}


def find(face: str, homes: Mapping[str, str], name: str) -> Any:
    """A name of a module that users import, which calls this in its `__getattr__` and has the name from then on."""
    if name not in homes:
        raise _removed.missing_name(face, name)
    try:
        home = importlib.import_module(homes[name])
    except ModuleNotFoundError as error:
        if (text := _missing(name, error)) is None:
            raise
        raise _removed.error_for_asker(text) from None
    value = home if home.__name__ == f"{face}.{name}" else getattr(home, name)
    setattr(sys.modules[face], name, value)
    return value


@contextlib.contextmanager
def required_by(name: str) -> Iterator[None]:
    """Around imports of an extension: the error for one that is not there says that `name` needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (text := _missing(name, error)) is None:
            raise
        raise ModuleNotFoundError(text, name=error.name) from None


def _missing(name: str, error: ModuleNotFoundError) -> str | None:
    """The message, if it is the package of an extension that was not found."""
    found = re.fullmatch(r"effects\.extensions\.(\w+)", error.name or "")
    return None if found is None else MSG_TAKEN_OUT.format(name=name, extension=found.group(1))
