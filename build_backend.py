"""The build backend of scikit-build-core. It looks for a compiler, and says how long a build takes, before JAX is
downloaded."""

import contextlib
import os
import shutil

from scikit_build_core import build as _build
from scikit_build_core.build import *  # noqa: F403 - the other hooks

# The oldest JAX that we support: XLA refuses handlers built with newer headers than its own, and takes older ones.
_JAX = "jax>=0.10,<0.11; python_version >= '3.11'"

_COMPILERS = ("c++", "g++", "clang++")
MSG_NO_COMPILER = (
    "No C++ compiler was found. token-effects has a native part, which is built when it is installed, with a C++17 "
    "compiler. Install one (Debian and Ubuntu: apt install g++; Fedora: dnf install gcc-c++), or name one in the "
    "environment variable CXX, and install again. A wheel for this system and version of Python needs none."
)
MSG_BUILDS = "token-effects: its native part is compiled, which takes about a minute on two cores."


def get_requires_for_build_wheel(config_settings=None):
    """What a wheel is built with."""
    _say_what_happens()
    return [*_build.get_requires_for_build_wheel(config_settings), _JAX]


def get_requires_for_build_editable(config_settings=None):
    """What an installation that refers to the source tree is built with."""
    _say_what_happens()
    return [*_build.get_requires_for_build_editable(config_settings), _JAX]


def _say_what_happens():
    """Says that a compiler is missing, or on the terminal how long it takes: an installer shows nothing meanwhile."""
    if not any(map(shutil.which, (os.environ["CXX"].split()[0],) if os.environ.get("CXX") else _COMPILERS)):
        raise SystemExit(MSG_NO_COMPILER)
    with contextlib.suppress(OSError), open("/dev/tty", "w") as terminal:
        print(f"\n{MSG_BUILDS}", file=terminal)
