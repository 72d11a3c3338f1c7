"""Pallas kernels that print, log, check and call Python."""

import typing as _typing

from effects import _lazy

_LATER = {
    "check_grid_races": "effects.extensions.kernels.grid_races",
    "pallas_call": "effects.extensions.kernels.api",
}
"""By name, the module that is imported at the name's first use."""

if _typing.TYPE_CHECKING:  # the names that `_LATER` imports
    from effects.extensions.kernels.api import pallas_call as pallas_call
    from effects.extensions.kernels.grid_races import check_grid_races as check_grid_races
else:  # else type checkers would accept every name
    __all__ = [*_LATER]

    def __getattr__(name: str) -> _typing.Any:
        return _lazy.find(__name__, _LATER, name)
