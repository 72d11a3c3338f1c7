"""The native module, checked to be of the same version as the Python code, and its layout of the wire."""

from __future__ import annotations

from typing import Any

INTERFACE = 45
"""The interface version, which must equal `kInterface` in `dispatch/native/wire.h`."""

MSG_NATIVE_MISSING = (
    "The native module `effects._native` is not there. It is built when the package is installed. Install the package "
    "with `pip install .` in its folder. See docs/troubleshooting.md#installation."
)
MSG_NATIVE_VERSION = (
    "The native module is of another version than the Python code: its interface is {found}, and {expected} is "
    "expected. Both must come from one installation. Install the package anew with `pip install .`. See "
    "docs/troubleshooting.md#installation."
)


try:
    from effects import _native as native
except ImportError as _error:
    raise ImportError(MSG_NATIVE_MISSING) from _error

layout: dict[str, Any] = native.wire() if hasattr(native, "wire") else {}
"""The wire, as `dispatch/native/python/wire.cc` hands it out."""

if (_found := layout.get("numbers", {}).get("interface", "missing")) != INTERFACE:
    raise ImportError(MSG_NATIVE_VERSION.format(found=_found, expected=INTERFACE))
