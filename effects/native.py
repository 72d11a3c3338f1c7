"""Calls of native code that keep their place in program order."""

from effects import _later
from effects._errors import CustomCallError as CustomCallError

with _later.required_by("effects.native"):
    from effects.extensions.custom_calls.api import custom_call as custom_call
    from effects.extensions.custom_calls.targets import cmake_dir as cmake_dir
    from effects.extensions.custom_calls.targets import include_dir as include_dir
    from effects.extensions.custom_calls.targets import register_custom_call as register_custom_call

__all__ = [
    "CustomCallError",
    "cmake_dir",
    "custom_call",
    "include_dir",
    "register_custom_call",
]
