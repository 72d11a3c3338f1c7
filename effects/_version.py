"""The installed version."""

import importlib.metadata

try:
    __version__ = importlib.metadata.version("token-effects")
except importlib.metadata.PackageNotFoundError:  # a source tree with a native module copied into it
    __version__ = "unknown"
