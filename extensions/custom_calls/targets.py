"""Handlers of custom calls: native functions, by name and platform."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from pathlib import Path
from typing import Any

import jax

from effects import _errors as errors
from effects import _jax
from effects._model.device import PLATFORMS, platforms_with_handlers
from effects._model.where import Where
from effects._model.wire import CUSTOM_CALL_STATE, CUSTOM_CALL_TARGET
from effects.lowering.native_module import native

MSG_TARGET_NAME = (
    "A custom call was given the name {name}. It is known by a non-empty string. Write, say, "
    "`fx.register_custom_call('my_library.scale', handler)`."
)


MSG_TARGET_PLATFORM = (
    "The custom call {name!r} was registered for the platform {platform!r}. Handlers run on {known}. Pass one of these "
    "as `platform`."
)
MSG_TARGET_TAKEN = (
    "The custom call {name!r} was registered for `{platform}` with another handler. Compiled programs know handlers by "
    "name, so a name keeps the handler that it has. Choose another name."
)
MSG_TARGET_SYMBOL = (
    "The custom call {name!r} was registered with the symbol {symbol!r}, which {library!r} does not have. A handler is "
    "a function with C linkage, as `XLA_FFI_DEFINE_HANDLER_SYMBOL` makes it. Pass one of the names that `nm -D` shows "
    "for the library."
)
MSG_TARGET_HANDLER = (
    "The custom call {name!r} was registered with {handler}. A handler is native: a capsule, a function of a `ctypes` "
    "library, one that returns a capsule, or a pair (library, symbol). For a Python function use `fx.callback`."
)
MSG_UNKNOWN_TARGET = (
    "The custom call `{target}` at {where} has no handler for {platform}. A program calls handlers by name; registered "
    "are {known}. Register it with `fx.register_custom_call` first."
)


_targets: dict[str, dict[str, tuple[int, Any]]] = {}
"""By name and platform: a handler's address, and what keeps it in memory. Written under the lock; nothing leaves it."""

_lock = threading.Lock()


def register_custom_call(name: str, handler: Any, *, platform: str = "cpu") -> None:
    """Makes a native function known, so that `custom_call` can call it.

    Registering the same function again changes nothing; a different one under a taken name is an error. One name may
    have a function for each platform.

    Args:
        name: The name by which programs call it. Those that are exported, or compiled and kept, carry it.
        handler: A function that XLA's FFI macros have defined, as one of: a `PyCapsule`; a function of a library that
            `ctypes` has loaded; a function without arguments that returns a capsule, as nanobind makes them; a pair
            (path of a shared library, symbol). One of XLA's older signature, which cannot be told from these, ends
            the process: write `token_effects::OfC`.
        platform: `"cpu"`, `"cuda"` or `"rocm"`.

    Raises:
        TypeError: if the handler is none of these.
        ValueError: if the name is taken, or the platform unknown.
        OSError: if the library cannot be loaded.

    Example:
        A handler that comes with JAX.

        >>> import effects as fx
        >>> from jaxlib.cpu import _lapack
        >>> _lapack.initialize()
        >>> fx.register_custom_call("cholesky", _lapack.registrations()["lapack_spotrf_ffi"])
    """
    if not isinstance(name, str) or not name:
        raise errors.type_error(MSG_TARGET_NAME.format(name=errors.shown(name)))
    if platform not in (known := platforms_with_handlers()):
        raise errors.value_error(MSG_TARGET_PLATFORM.format(name=name, platform=platform, known=", ".join(known)))
    address, kept = _address_of(name, handler)
    with _lock:
        known, _ = _targets.setdefault(name, {}).setdefault(platform, (address, kept))
        if known != address:
            raise errors.value_error(MSG_TARGET_TAKEN.format(name=name, platform=platform))
        _register_ours(platform)
        native.set_target(name, platform, address)


@functools.cache
def _register_ours(platform: str) -> None:
    """Registers the handler of XLA's that calls the user's."""
    xla_name = PLATFORMS[platform].handlers
    assert xla_name is not None
    in_plugin = platform != "cpu"
    _jax.register_ffi_type(CUSTOM_CALL_STATE, *native.loaded_call_type(in_plugin), platform=xla_name)
    stages = {stage: capsule for _, stage, capsule in native.custom_call_handlers(in_plugin)}
    jax.ffi.register_ffi_target(CUSTOM_CALL_TARGET, stages, platform=xla_name)


_register_ours("cpu")  # a program compiled elsewhere may run before any user handler is registered


def _address_of(name: str, handler: Any) -> tuple[int, Any]:
    """Returns a handler's address, and the object that keeps it in memory."""
    given: Any = handler
    if isinstance(handler, tuple) and len(handler) == 2 and isinstance(handler[1], str):
        library, symbol = handler
        if isinstance(library, (str, os.PathLike)):
            library = ctypes.CDLL(os.fspath(library))
        if isinstance(library, ctypes.CDLL):
            try:
                handler = library[symbol]
            except AttributeError:
                raise errors.value_error(MSG_TARGET_SYMBOL.format(name=name, symbol=symbol, library=library)) from None
    elif callable(handler) and not isinstance(handler, _CTYPES_FUNCTION):
        with contextlib.suppress(TypeError):  # the function has parameters
            handler = handler()
    if isinstance(handler, _CTYPES_FUNCTION):
        return ctypes.cast(handler, ctypes.c_void_p).value or 0, handler
    if type(handler).__name__ == "PyCapsule":
        return _capsule_pointer(handler, _capsule_name(handler)), handler
    raise errors.type_error(MSG_TARGET_HANDLER.format(name=name, handler=errors.shown(given)))


_CTYPES_FUNCTION: Any = ctypes.CFUNCTYPE(None).__mro__[-2]  # `_CFuncPtr`, which ctypes does not name
_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype, _capsule_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def platforms_of(name: str) -> tuple[str, ...]:
    """The platforms for which there is a handler under this name."""
    return tuple(_targets.get(name, ()))


def unknown_target(target: str, where: Where, platform: str = "any platform") -> errors.CustomCallError:
    """An error for a target that has no handler."""
    known = ", ".join(f"`{name}` ({', '.join(platforms_of(name))})" for name in sorted(_targets)) or "none"
    message = MSG_UNKNOWN_TARGET.format(target=target, where=where, platform=platform, known=known)
    return errors.CustomCallError(message, target, str(where), "NOT_FOUND", message)


# The files for building native code.

_HERE = Path(__file__).parents[2]


def include_dir() -> str:
    """The folder to include from: `#include "token_effects/custom_call.h"`. That of XLA is `jax.ffi.include_dir()`.

    Example:
        >>> import effects as fx, os
        >>> os.listdir(os.path.join(fx.include_dir(), "token_effects"))
        ['custom_call.h']
    """
    return str(_HERE / "include")


def cmake_dir() -> str:
    """The folder in which CMake finds the package `token_effects`: pass it as `token_effects_DIR`.

    Example:
        >>> import effects as fx, os
        >>> os.listdir(fx.cmake_dir())
        ['token_effects-config.cmake']
    """
    return str(_HERE / "cmake")
