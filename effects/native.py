"""Calls of native code that keep their place in program order."""

import typing as _typing

from effects import _lazy
from effects._errors import CustomCallError as CustomCallError

_LATER = {
    "cmake_dir": "effects.extensions.custom_calls.targets",
    "custom_call": "effects.extensions.custom_calls.api",
    "include_dir": "effects.extensions.custom_calls.targets",
    "register_custom_call": "effects.extensions.custom_calls.targets",
}
"""By name, the module that is imported at the name's first use."""

if _typing.TYPE_CHECKING:  # the names that `_LATER` imports
    from effects.extensions.custom_calls.api import custom_call as custom_call
    from effects.extensions.custom_calls.targets import cmake_dir as cmake_dir
    from effects.extensions.custom_calls.targets import include_dir as include_dir
    from effects.extensions.custom_calls.targets import register_custom_call as register_custom_call
else:  # else type checkers would accept every name
    __all__ = ["CustomCallError", *_LATER]

    def __getattr__(name: str) -> _typing.Any:
        return _lazy.find(__name__, _LATER, name)
