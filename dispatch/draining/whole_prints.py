"""Python's own `print` beside a drain that writes: each call writes its text at once, so that neither tears the other's
lines.

Python writes each argument, each separator and the end by themselves. Between two of these another thread may run:
where `sys.stdout` has no buffer, where its buffer is full, and in notebooks, whose `sys.stdout` is written in Python.
"""

from __future__ import annotations

import builtins
from typing import Any

from effects._config import Config, config
from effects.lowering.native_module import native

_pythons: Any = print
_at_once: Any = None  # made when it is first needed


def write_prints_at_once() -> None:
    """From now on, as long as the setting `whole_prints` is on. Called before the drain can write anything."""
    config.listen(_configure)


def _configure(settings: Config) -> None:
    global _at_once
    if settings.whole_prints and builtins.print is _pythons:  # else somebody has put another in its place
        _at_once = _at_once or native.print_at_once(_pythons)
        builtins.print = _at_once
    elif not settings.whole_prints and builtins.print is _at_once:
        builtins.print = _pythons
