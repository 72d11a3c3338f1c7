"""The native module, loaded and compared with what Python takes it for."""

from __future__ import annotations

from effects._model import wire as wire

MSG_NATIVE_MISSING = (
    "The native module `effects._native` is not there. It is built when the package is installed. Install the package "
    "with `pip install .` in its folder."
)
MSG_NATIVE_VERSION = (
    "The native module is of another version than the Python code: `{what}` is {found} there, and {expected} here. "
    "Both must come from one installation. Install the package anew with `pip install .`."
)


try:
    from effects import _native as native
except ImportError as _error:
    raise ImportError(MSG_NATIVE_MISSING) from _error
if (_difference := wire.first_difference(native.wire() if hasattr(native, "wire") else {})) is not None:
    _what, _found, _expected = _difference
    raise ImportError(MSG_NATIVE_VERSION.format(what=_what, found=_found, expected=_expected))
