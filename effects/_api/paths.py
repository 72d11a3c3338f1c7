"""Where the files are that native code is built with."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent.parent


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
