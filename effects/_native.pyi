"""The native module, built from `dispatch/native/`."""

from typing import Any

def __getattr__(name: str) -> Any: ...
