"""Names that are imported when they are first asked for, and the error for those of an extension that is not there."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any

from effects import _removed

MSG_MISSING_EXTENSION = (
    "`{name}` needs the extension `{extension}`, which is not installed. An extension is a folder of "
    "`effects/extensions`, and what it offers can be had where the folder is. Install token-effects with "
    "`effects/extensions/{extension}`, or do without `{name}`."
)


def load(module: str, face: str, name: str) -> Any:
    """The thing of this name. Called by the `__getattr__` of the module `face`, whose caller gets the error.

    Args:
        module: The module that has it, or is it.
        face: The module that offers it.
        name: The name in both.
    """
    short = "fx" if face == "effects" else face
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (text := _missing(f"{short}.{name}", error)) is None:
            raise
        raise _removed.error_for(text, sys._getframe(2)) from None
    if module == f"{face}.{name}":
        return found
    try:
        return getattr(found, name)
    except AttributeError as error:  # a module whose names are imported later, too
        raise _removed.error_for(str(error), sys._getframe(2)) from None


@contextlib.contextmanager
def required_by(name: str) -> Iterator[None]:
    """Around imports of an extension: an error for one that is not there says that `name` needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (text := _missing(name, error)) is None:
            raise
        raise ModuleNotFoundError(text, name=error.name) from None


def _missing(name: str, error: ModuleNotFoundError) -> str | None:
    """The message, if it is the package of an extension that was not found."""
    package, _, extension = (error.name or "").rpartition(".")
    if package != "effects.extensions":
        return None
    return MSG_MISSING_EXTENSION.format(name=name, extension=extension)
