"""Libraries that only some handlers need, and that users install for them."""

from __future__ import annotations

import importlib
from typing import Any

MSG_LIBRARY = (
    "`fx.{handler}` needs {library}, which cannot be imported ({error}). The libraries of handlers are installed on "
    "request. Run `pip install 'token-effects[{extra}]'`."
)


def library(name: str, handler: str, extra: str) -> Any:
    """A library, imported when a handler is made. `extra` is the optional dependency that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        text = MSG_LIBRARY.format(handler=handler, library=name, error=error, extra=extra)
        raise ImportError(text, name=name) from error
