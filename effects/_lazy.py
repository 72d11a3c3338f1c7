"""Lazy imports of public names. The names of an extension exist as long as its folder does."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from effects import _removed

MSG_TAKEN_OUT = (
    "`{name}` needs the extension `{extension}`, which is not installed. An extension is a folder, and its names are "
    "there while the folder is. Install token-effects with `extensions/{extension}`, or do without `{name}`."
)

MSG_LIBRARY = (
    "`{name}` needs {library}, which is not installed. It compiles as the `jit` of that library does. Install it: "
    "pip install {library}"
)


def homes_of(names: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Inverts a mapping from modules to names: by name, the module that has it."""
    return {name: module for module, of_module in names.items() for name in of_module}


def find(face: str, homes: Mapping[str, str], name: str) -> Any:
    """Imports a name for the `__getattr__` of the public module `face`, and stores it there for later accesses."""
    if name not in homes:
        raise _removed.missing_name(face, name)
    try:
        home = importlib.import_module(homes[name])
    except ModuleNotFoundError as error:
        if text := _missing(name, error):
            raise _removed.error_for_asker(text) from None
        raise
    value = home if home.__name__ == f"{face}.{name}" else getattr(home, name)
    setattr(sys.modules[face], name, value)
    return value


@contextlib.contextmanager
def required_by(name: str) -> Iterator[None]:
    """A context for imports of what may not be installed: if it is not, the error says that `name` needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if text := _missing(name, error):
            raise ModuleNotFoundError(text, name=error.name) from None
        raise


def _missing(name: str, error: ModuleNotFoundError) -> str | None:
    """The message, if what was not found is an extension or a library of which we have the `jit`; else None."""
    if error.name in ("equinox", "flax"):
        return MSG_LIBRARY.format(name=name, library=error.name)
    found = re.fullmatch(r"effects\.extensions\.(\w+)", error.name or "")
    return MSG_TAKEN_OUT.format(name=name, extension=found[1]) if found else None
