"""What is done once a module has been imported that many programs do not need, such as those of Pallas.

To import such modules ahead would take longer than the import of this library. What waits for a module runs ahead of
the next line of whoever imports it, so that nobody sees the module without it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_waiting: dict[str, list[Callable[[], None]]] = {}


def when_imported(name: str, do: Callable[[], None]) -> None:
    """Calls `do` once the module of this name has been imported: now, or before whoever imports it has it."""
    if name in sys.modules:
        do()
    else:
        _waiting.setdefault(name, []).append(do)


class _Finder(MetaPathFinder):
    """Finds modules that something waits for, as the other finders do."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _waiting:
            return None
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _LoaderThenDo(spec.loader)
        return spec


class _LoaderThenDo(Loader):
    """Loads a module as another loader does, which the module then names as its own, and does what waits for it."""

    def __init__(self, loader: Loader):
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for do in _waiting.pop(module.__name__, ()):
            do()


sys.meta_path.insert(0, _Finder())
