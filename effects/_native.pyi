"""The native module, built from `dispatch/native/`."""

from typing import Any

class QuickCalls:
    """The base of what programs are called through."""

def __getattr__(name: str) -> Any: ...
