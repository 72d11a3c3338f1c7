"""Asynchronous operations, which a program starts now and ends later."""

import typing as _typing

from effects import _lazy
from effects._errors import FutureError as FutureError

_HOMES = {
    "effects.extensions.asynchronous.api": (
        *("Future", "async_callback", "async_done", "async_start", "async_update", "copy_start"),
    ),
    "effects.extensions.asynchronous.collectives": (
        *("all_gather_start", "all_to_all_start", "ppermute_start", "psum_scatter_start", "psum_start"),
    ),
    "effects.extensions.inspecting.inspect": ("InspectedOperation", "Inspection", "inspect", "parse"),
    "effects.extensions.inspecting.text": ("TextError",),
}
_LATER = _lazy.homes_of(_HOMES)
"""By name, the module that is imported at the name's first use."""

if _typing.TYPE_CHECKING:  # the names that `_LATER` imports
    from effects.extensions.asynchronous.api import Future as Future
    from effects.extensions.asynchronous.api import async_callback as async_callback
    from effects.extensions.asynchronous.api import async_done as async_done
    from effects.extensions.asynchronous.api import async_start as async_start
    from effects.extensions.asynchronous.api import async_update as async_update
    from effects.extensions.asynchronous.api import copy_start as copy_start
    from effects.extensions.asynchronous.collectives import all_gather_start as all_gather_start
    from effects.extensions.asynchronous.collectives import all_to_all_start as all_to_all_start
    from effects.extensions.asynchronous.collectives import ppermute_start as ppermute_start
    from effects.extensions.asynchronous.collectives import psum_scatter_start as psum_scatter_start
    from effects.extensions.asynchronous.collectives import psum_start as psum_start
    from effects.extensions.inspecting.inspect import InspectedOperation as InspectedOperation
    from effects.extensions.inspecting.inspect import Inspection as Inspection
    from effects.extensions.inspecting.inspect import inspect as inspect
    from effects.extensions.inspecting.inspect import parse as parse
    from effects.extensions.inspecting.text import TextError as TextError
else:  # otherwise type checkers would accept every name
    __all__ = ["FutureError", *_LATER]

    def __getattr__(name: str) -> _typing.Any:
        return _lazy.find(__name__, _LATER, name)
