"""`fx.install` and `fx.uninstall`: `jax.jit` is `fx.jit` in the whole process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from effects import _jax
from effects.dispatch.calling.jit import jit


def install() -> None:
    """Makes `jax.jit` the same as `fx.jit`, for all code that asks JAX for it from now on.

    Modules that have imported it by name, as `from jax import jit`, have ours too. What was compiled before stays as it
    is. A second call does nothing more. The command `effects run train.py` does this ahead of a program's first line.

    Example:
        >>> import effects as fx, jax
        >>> fx.install()
        >>> @jax.jit
        ... def halve(x):
        ...     fx.print("halving {}", x)
        ...     return x / 2
        >>> halve(halve(8.0)).item()
        2.0
        >>> fx.uninstall()
        >>> fx.effects_barrier()
        halving 8.0
        halving 4.0
    """
    install_as(jit)


def install_as(replacement: Callable[..., Any]) -> None:
    """Puts a replacement in the place of `jax.jit`, in all modules that have it."""
    with _lock:
        for module, name in _places_of(_jax.jit):
            setattr(module, name, replacement)
            _replaced.append((module, name, replacement))


def uninstall() -> None:
    """Gives JAX its own `jax.jit` back, where `fx.install` has replaced it.

    What was compiled meanwhile stays as it is, and a module that was imported meanwhile keeps the name that it has
    imported. Where somebody else has replaced `jax.jit` since, that stays.

    Example:
        >>> import effects as fx, jax
        >>> fx.install()
        >>> jax.jit is fx.jit
        True
        >>> fx.uninstall()
        >>> jax.jit is fx.jit
        False
    """
    with _lock:
        for module, name, replacement in _replaced:
            if vars(module).get(name) is replacement:
                setattr(module, name, _jax.jit)
        _replaced.clear()


_lock = threading.Lock()

_replaced: list[tuple[ModuleType, str, Any]] = []
"""The places where `jax.jit` was replaced, and the replacement. Guarded by the lock."""


def _places_of(value: Any) -> Iterator[tuple[ModuleType, str]]:
    """The modules that have a value, and its names there. JAX's private modules are left alone, and so is this library,
    which compiles its programs with `jax.jit`."""
    for module_name, module in list(sys.modules.items()):
        package, _, rest = module_name.partition(".")
        if package in ("effects", "jaxlib") or (package == "jax" and rest.startswith("_src")):
            continue
        if isinstance(module, ModuleType):
            yield from ((module, name) for name, each in list(vars(module).items()) if each is value)
