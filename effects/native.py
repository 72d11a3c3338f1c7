"""Calls of native code that keep their place in program order."""

from effects._api.custom_call import custom_call as custom_call
from effects._api.paths import cmake_dir as cmake_dir
from effects._api.paths import include_dir as include_dir
from effects._api.targets import register_custom_call as register_custom_call
from effects._errors import CustomCallError as CustomCallError

__all__ = [
    "CustomCallError",
    "cmake_dir",
    "custom_call",
    "include_dir",
    "register_custom_call",
]
