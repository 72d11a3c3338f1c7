"""The installed version."""

import importlib.metadata

try:
    __version__ = importlib.metadata.version("token-effects")
except importlib.metadata.PackageNotFoundError:  # a source tree whose native module was put there by hand
    __version__ = "unknown"
